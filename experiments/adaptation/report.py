"""The tables and figures of the adaptation study, from what its file holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from omnidraft.bench.environment import writing
from omnidraft.bench.figure import COLORS

Row = dict[str, Any]
WINDOW = 20  # answers of a moving average
SIZE = (10.0, 4.5)  # inches, of 100 dots each


def write(result: Row, stem: Path) -> None:
    """Write STEM.md and, where matplotlib is installed, a figure for each part that has one."""
    with writing(stem):
        stem.with_suffix(".md").write_text(markdown(result), encoding="utf-8")
        for part, draw in FIGURES.items():
            if result.get(part):
                figure(result[part], draw, stem.with_name(f"{stem.name}-{part}.png"))


# ---------------------------------------------------------------- tables


def markdown(result: Row) -> str:
    """All tables that there are figures for."""
    pieces = []
    if rows := result.get("rows"):
        pieces.append(("Before and after the stream", _table(rows, STREAM)))
    if rows := result.get("background"):
        pieces.append(("Beside a trainer in the background", _table(rows, BACKGROUND)))
    for temperature in sorted({row["temperature"] for row in result.get("losses", [])}):
        rows = [row for row in result["losses"] if row["temperature"] == temperature]
        pieces.append((f"Losses, {rows[0]['target']}, temperature {temperature:g}", _table(rows, METHODS)))
    if rows := result.get("ranks"):
        pieces.append((f"Adapters, {rows[0]['target']}", _table(rows, METHODS)))
    visits = result.get("targets", [])
    pieces += [(f"{row['targets'][0]} before and after {row['targets'][1]}", _visits(row)) for row in visits]
    return "\n".join(f"## {title}\n\n{table}" for title, table in pieces)


def _before_after(key: str) -> Callable[[Row], str]:
    return lambda row: f"{row[f'{key}_before']:.3f} → {row[f'{key}_after']:.3f}"


def _optional(key: str, form: str) -> Callable[[Row], str]:
    return lambda row: "–" if row.get(key) is None else format(row[key], form)


Columns = dict[str, Callable[[Row], str]]
METHODS: Columns = {
    "method": lambda row: row["method"],
    "acceptance rate": _before_after("acceptance"),
    "block efficiency": _before_after("block_efficiency"),
    "training, s": _optional("training_s", ".1f"),
}
STREAM: Columns = {
    "target": lambda row: row["target"],
    "seed": lambda row: f"{row['seed']}{', live' if 'live' in row['method'] else ''}",
    **{name: METHODS[name] for name in ("acceptance rate", "block efficiency", "training, s")},
    "net speedup": _optional("net_speedup", ".3f"),
    "frozen speedup": _optional("frozen_speedup", ".3f"),
    "crossover prompt": _optional("crossover_prompt", "d"),
}
BACKGROUND: Columns = {
    "target": lambda row: row["target"],
    "prompts": _optional("prompts", "d"),
    "reply time, of that without": _optional("reply_time_ratio", ".3f"),
    "the slowest twentieth": _optional("slowest_ratio", ".3f"),
    "acceptance rate after": _optional("acceptance_rate", ".3f"),
    "inline": _optional("acceptance_rate_inline", ".3f"),
}


def _table(rows: Sequence[Row], columns: Columns) -> str:
    lines = [list(columns), ["---"] * len(columns), *([write(row) for write in columns.values()] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _visits(row: Row) -> str:
    lines = [["n-gram cache", "when", "acceptance rate", "block efficiency"], ["---"] * 4]
    for name, tests in row["tests"].items():
        for when, (accepted, proposed, tokens, rounds) in tests.items():
            lines.append([name, when, f"{accepted / proposed:.4f}", f"{tokens / rounds:.4f}"])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# ---------------------------------------------------------------- figures


def moving(curve: Sequence[Sequence[int]], window: int = WINDOW) -> list[float]:
    """Block efficiency over the last `window` answers, at each."""
    tokens, rounds = ([0, *accumulate(answer[column] for answer in curve)] for column in (2, 3))
    ends = range(1, len(curve) + 1)
    return [(tokens[end] - tokens[max(0, end - window)]) / (rounds[end] - rounds[max(0, end - window)]) for end in ends]


def figure(rows: Sequence[Row], draw: Callable[[Row, Any], None], path: Path) -> None:
    """Write a figure with a panel for each row, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    drawing = Figure(figsize=SIZE, dpi=100, layout="constrained")
    panels = drawing.subplots(1, len(rows), sharey=True, squeeze=False)[0]
    for row, panel in zip(rows, panels, strict=True):
        draw(row, panel)
        panel.grid(alpha=0.3)
    panels[0].legend(frameon=False)
    drawing.savefig(path, format="png")


def _live(row: Row, panel: Any) -> None:
    """Cumulative speedups over the target alone."""
    plain = list(accumulate(row["plain_s"]))
    prompts = range(1, len(plain) + 1)
    for color, (label, key) in zip(COLORS, {"learning, net": "adapted_s", "frozen": "frozen_s"}.items(), strict=False):
        total = accumulate(row[key])
        panel.plot(prompts, [p / s for p, s in zip(plain, total, strict=True)], color=color, label=label)
    panel.axhline(1.0, color="black", linewidth=1.0)
    panel.set_title(row["target"])
    panel.set_xlabel("prompts")
    panel.set_ylabel("cumulative speedup over the target alone")


def _switch(row: Row, panel: Any) -> None:
    """Block efficiency along a stream that changes its task."""
    for number, (label, curve) in enumerate(row["curves"].items()):
        style = ":" if label.endswith("frozen") else "-"
        first, then = (moving(part) for part in (curve[: row["at"]], curve[row["at"] :]))  # no mean is of both
        panel.plot(range(1, len(curve) + 1), [*first, *then], style, color=COLORS[number // 2], label=label)
    panel.axvline(row["at"] + 0.5, color="black", linewidth=1.0)
    panel.set_title(f"{row['target']}: {row.get('tasks', 'GSM8K, then MBPP')}")
    panel.set_xlabel("prompts")
    panel.set_ylabel(f"block efficiency, last {WINDOW} prompts")


def _targets(row: Row, panel: Any) -> None:
    """Block efficiency along two targets and back."""
    for color, (label, parts) in zip(COLORS, row["curves"].items(), strict=False):
        start = 0
        for number, curve in enumerate(parts):
            places = range(start + 1, start + len(curve) + 1)
            panel.plot(places, moving(curve), color=color, label=None if number else label)
            start += len(curve)
            if number < len(parts) - 1:
                panel.axvline(start + 0.5, color="black", linewidth=1.0)
    names = [*row["targets"], row["targets"][0]]
    panel.set_title(", then ".join(names))
    panel.set_xlabel("prompts")
    panel.set_ylabel(f"block efficiency, last {WINDOW} prompts")


FIGURES: dict[str, Callable[[Row, Any], None]] = {"curves": _live, "switch": _switch, "targets": _targets}
