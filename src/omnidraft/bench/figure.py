"""Figures of rows: a panel for each, and that of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from omnidraft.bench.records import METHODS
from omnidraft.bench.report import ALL, Row

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")  # told apart by the color-blind, too
SIZE = (10.0, 6.0)  # inches, of 100 dots each
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


def speedups(rows: Sequence[Row], path: Path) -> bool:
    """Speedups as bars, a panel for each target."""
    shown = [row for row in rows if row["task"] != ALL and not row["unavailable"]]
    targets, tasks = (list(dict.fromkeys(row[key] for row in shown)) for key in ("target", "task"))
    methods = [name for name in METHODS if any(row["method"] == name for row in shown)][::-1]  # first at the top
    height = 0.8 / max(1, len(tasks))

    def draw(target: str, panel: Any) -> None:
        for number, task in enumerate(tasks):
            its = [row for row in shown if (row["target"], row["task"]) == (target, task)]
            places = [methods.index(row["method"]) + 0.4 - (number + 0.5) * height for row in its]
            speeds = [row["speedup"] for row in its]
            errors = [row["speedup"] * (row["deviation"] or 0.0) for row in its]
            color = COLORS[number % len(COLORS)]
            panel.barh(places, speeds, 0.85 * height, xerr=errors, color=color, label=task, ecolor="#333333")
        panel.axvline(1.0, color="black", linewidth=1.0)
        panel.set_yticks(range(len(methods)), methods)
        panel.set_title(target)
        panel.set_xlabel("speedup over generate")

    return figure(targets, draw, path)
