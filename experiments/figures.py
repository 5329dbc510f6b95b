"""Panels of figures, each of a row of results; none is drawn without matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from experiments.results import Row

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")  # told apart by the color-blind, too
SIZE = (10.0, 6.0)  # inches of a figure, of 100 dots each
WINDOW = 20  # answers of a moving average
T = TypeVar("T")


def figure(items: Sequence[T], draw: Callable[[T, Any], None], path: Path, size: tuple[float, float] = SIZE) -> bool:
    """Write a PNG with a panel for each item, and one legend below; False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    drawing = Figure(figsize=size, dpi=100, layout="constrained")
    panels = drawing.subplots(1, max(1, len(items)), sharey=True, squeeze=False)[0]
    for item, panel in zip(items, panels, strict=False):
        draw(item, panel)
    handles, names = panels[0].get_legend_handles_labels()
    if names:
        drawing.legend(handles, names, loc="outside lower center", ncols=min(3, len(names)), frameon=False)
    drawing.savefig(path, format="png")
    return True


def moving(parts: Sequence[int], wholes: Sequence[int], window: int = WINDOW) -> list[float]:
    """Sums of one over sums of the other, of the last `window` answers, at each."""
    part, whole = ([0, *accumulate(values)] for values in (parts, wholes))
    starts = (max(0, end - window) for end in range(1, len(part)))
    return [(part[end] - part[start]) / max(1, whole[end] - whole[start]) for end, start in enumerate(starts, 1)]


def _efficiency(curve: Sequence[Sequence[int]]) -> list[float]:
    return moving([answer[2] for answer in curve], [answer[3] for answer in curve])


def _labeled(panel: Any, title: str, x: str, y: str) -> None:
    panel.set_title(title, fontsize="small")
    panel.set_xlabel(x)
    panel.set_ylabel(y)


def tasks(row: Row, panel: Any) -> None:
    """Block efficiency along a stream that changes its task."""
    for number, (label, curve) in enumerate(row["curves"].items()):
        style = ":" if label.endswith("frozen") else "-"
        before, then = (_efficiency(part) for part in (curve[: row["at"]], curve[row["at"] :]))  # no mean is of both
        panel.plot(range(1, len(curve) + 1), [*before, *then], style, color=COLORS[number // 2], label=label)
    panel.axvline(row["at"] + 0.5, color="black", linewidth=1.0)
    _labeled(panel, f"{row['target']}: {row['tasks']}", "prompts", f"block efficiency, last {WINDOW} prompts")


def targets(row: Row, panel: Any) -> None:
    """Block efficiency along two targets and back."""
    for color, (label, parts) in zip(COLORS, row["curves"].items(), strict=False):
        start = 0
        for number, curve in enumerate(parts):
            places = range(start + 1, start + len(curve) + 1)
            panel.plot(places, _efficiency(curve), color=color, label=None if number else label)
            start += len(curve)
            if number < len(parts) - 1:
                panel.axvline(start + 0.5, color="black", linewidth=1.0)
    first, second = (target.rsplit("/", 1)[-1] for target in row["targets"])
    _labeled(panel, f"{first}, then {second}, then {first}", "prompts", f"block efficiency, last {WINDOW} prompts")


# ---------------------------------------------------------------- the n-gram cache


def by_place(rows: Sequence[Row]) -> list[Row]:
    """The studies of each target and task, one for each seed of a cache."""
    studies = sorted(rows, key=itemgetter("target", "task", "seed"))
    groups = groupby(studies, key=itemgetter("target", "task"))
    return [{"at": f"{target.rsplit('/', 1)[-1]}\n{task}", "studies": list(its)} for (target, task), its in groups]


def uses(row: Row, panel: Any) -> None:
    """Emissions of each n-gram, the commonest first."""
    times = row["studies"][0]["uses"]  # whatever the seed: drafts do not change what is said
    panel.plot(range(1, len(times) + 1), times, color=COLORS[0], label="n-grams")
    panel.set_xscale("log")
    panel.set_yscale("log")
    _labeled(panel, row["at"], "n-grams, the commonest first", "times emitted")


def hits(row: Row, panel: Any) -> None:
    """N-grams accepted a round, and the share of those proposed, along the stream."""
    for color, study in zip(COLORS, row["studies"], strict=False):
        rounds, proposed, accepted = ([point[column] for point in study["curve"]] for column in (1, 2, 3))
        begin = min(WINDOW, len(rounds)) - 1  # before that, a handful of proposals
        prompts = range(begin + 1, len(rounds) + 1)
        a_round, of_proposed = (moving(accepted, wholes)[begin:] for wholes in (rounds, proposed))
        panel.plot(prompts, a_round, color=color, label=f"seed {study['seed']}: accepted a round")
        panel.plot(prompts, of_proposed, ":", color=color, label=f"seed {study['seed']}: share of those proposed")
    _labeled(panel, row["at"], "answers", f"n-grams, over the last {WINDOW} answers")


def growth(row: Row, panel: Any) -> None:
    """N-grams in a cache that began empty, by target tokens emitted."""
    for study in row["studies"]:
        if study["seed"] == "empty":
            tokens = list(accumulate(point[0] for point in study["curve"]))
            panel.plot(tokens, [point[4] for point in study["curve"]], color=COLORS[0], label="n-grams")
    _labeled(panel, row["at"], "target tokens emitted", "n-grams in the cache")
