"""Tables and a picture of streams of one user: their first answers, their thirds, and all along."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from experiments.results import Results, Row
from omnidraft.bench.output import down, markdown_table

FIRST = 10  # answers
WINDOW = 10  # answers of a moving mean
BASE = "frozen"  # what others are set against
COLUMNS, PANEL = 4, (3.0, 2.3)  # of the picture: panels in a row, and inches of one
INK = "#808080"  # whatever is no curve: on light and dark pages it becomes their own color of text
CURVES = {BASE: INK, "memory": "#0072B2", "learning": "#D55E00"}  # told apart on either ground
LOOK: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "font.sans-serif": ["DejaVu Sans"],
    "svg.fonttype": "none",
    "svg.hashsalt": "streams",
    "font.size": 9,
}
STYLE = "<style>svg { color: #1f2328 } @media (prefers-color-scheme: dark) { svg { color: #e6edf3 } }</style>"


def parts(count: int) -> dict[str, range]:
    """The parts of a stream of that length that have answers."""
    ends = [count * third // 3 for third in range(4)]
    thirds = {f"{name} third": range(*ends[n : n + 2]) for n, name in enumerate(("first", "second", "last"))}
    found = {f"first {min(FIRST, count)}": range(min(FIRST, count)), **thirds, "all": range(count)}
    return {name: its for name, its in found.items() if its}


METRICS = {  # sums of a count of answers over those of others
    "Target tokens a pass": ("tokens", ("rounds",)),
    "Tokens a second, learning included": ("tokens", ("seconds", "learning_s")),
    "Acceptance rate": ("accepted", ("proposed",)),
}


def rate(metric: str, answers: Sequence[Row]) -> float | None:
    """The figure of some answers; None where there is nothing to divide by."""
    above, below = METRICS[metric]
    whole = sum(answer[name] for answer in answers for name in below)
    return sum(answer[above] for answer in answers) / whole if whole else None


def streams_of(results: Results) -> dict[tuple[str, str, float], list[Row]]:
    """The answers of each target, stream and temperature, in their order, each by way."""
    found = defaultdict(list)
    for key, row in results.of("answers").items():
        target, stream, warm, _ = key.rsplit("|", 3)
        found[target, stream, float(warm)].append(row)
    return {place: [row["ways"] for row in sorted(rows, key=lambda r: r["number"])] for place, rows in found.items()}


def table(found: Mapping[tuple[str, str, float], list[Row]], metric: str) -> str:
    """A line for each part of each stream: the figure of each way, and those of others over the frozen drafter's."""
    ways = list(dict.fromkeys(way for rows in found.values() for way in rows[0]))
    others = [way for way in ways if way != BASE] if BASE in ways else []
    lines = []
    for (target, stream, warm), rows in found.items():
        for name, places in parts(len(rows)).items():
            its = [rows[place] for place in places]
            values = {way: rate(metric, [row[way] for row in its]) if way in its[0] else None for way in ways}
            base = values.get(BASE)
            over = [None if not base or value is None else value / base for value in map(values.get, others)]
            figures = [down(value, 2) for value in [*values.values(), *over]]
            lines.append([target, stream, f"{warm:g}", name, *figures])
    heads = ["target", "stream", "temperature", "answers", *ways, *(f"{way}, over {BASE}" for way in others)]
    return f"## {metric}\n\n{markdown_table(heads, lines, 4)}"


def checked(results: Results) -> str:
    """How many greedy answers of each way are those of the first one, and what was learned."""
    lines = []
    for (target, stream, warm), rows in streams_of(results).items():
        learned = results.of("learned").get(f"{target}|{stream}|{warm:g}", {}).get("learning", {})
        for way in rows[0]:
            same = None if warm else sum(row[way]["identical"] for row in rows)
            spent = sum(row[way]["learning_s"] for row in rows)
            counts = [learned.get(name, "–") if way == "learning" else "–" for name in ("updates", "rolled_back")]
            cells = [len(rows), "–" if same is None else same, *counts, f"{spent:.1f}"]
            lines.append([target, stream, f"{warm:g}", way, *cells])
    heads = ["target", "stream", "temperature", "way", "answers", "identical", "updates", "rolled back", "learning, s"]
    return f"## Answers and learning\n\n{markdown_table(heads, lines, 4)}"


def sections(results: Results) -> list[str]:
    """A table of each figure."""
    found = streams_of(results)
    return [*(table(found, metric) for metric in METRICS), checked(results)]


def picture(results: Results, path: Path) -> bool:
    """Write an SVG, for light and dark pages, of tokens a pass along the greedy streams; False without matplotlib."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return False
    found = {place: rows for place, rows in streams_of(results).items() if not place[2]}
    if not found:
        return False
    columns = min(COLUMNS, len(found))
    lines = -(-len(found) // columns)
    with rc_context(LOOK):
        drawing = Figure(figsize=(PANEL[0] * columns, PANEL[1] * lines + 0.4), layout="constrained")
        panels = drawing.subplots(lines, columns, squeeze=False).flatten()
        for panel, (place, rows) in zip(panels, found.items(), strict=False):
            _draw(panel, place[1], rows)
        for panel in panels[len(found) :]:
            panel.set_axis_off()
        drawing.supxlabel("answers")
        drawing.supylabel(f"tokens a pass, mean of {WINDOW} answers")
        handles, names = panels[0].get_legend_handles_labels()
        drawing.legend(handles, names, loc="outside upper center", ncols=len(names), frameon=False)
        drawing.savefig(path, format="svg", transparent=True, metadata={"Date": None})
    text = path.read_text(encoding="utf-8").replace(INK, "currentColor")
    path.write_text(text.replace("<defs>", f"{STYLE}\n <defs>", 1), encoding="utf-8")
    return True


def moving(parts: Sequence[int], wholes: Sequence[int]) -> list[float]:
    """Sums of one over sums of the other, of the last answers, at each."""
    part, whole = ([0, *accumulate(values)] for values in (parts, wholes))
    starts = (max(0, end - WINDOW) for end in range(1, len(part)))
    return [(part[end] - part[start]) / max(1, whole[end] - whole[start]) for end, start in enumerate(starts, 1)]


def _draw(panel: Any, stream: str, rows: Sequence[Row]) -> None:
    """A panel of one stream."""
    for way, color in CURVES.items():
        if way in rows[0]:
            tokens, rounds = ([row[way][name] for row in rows] for name in ("tokens", "rounds"))
            panel.plot(range(1, len(rows) + 1), moving(tokens, rounds), color=color, label=way, linewidth=1.8)
    panel.set_title(stream, fontsize=10)
    panel.set_ylim(bottom=1)
    panel.grid(color=INK, alpha=0.25, linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
