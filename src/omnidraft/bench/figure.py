"""The figure of a comparison: speedups as bars, and what the forward passes alone would allow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omnidraft.bench.records import METHODS
from omnidraft.bench.report import ALL, Row

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")  # told apart by the color-blind, too
SIZE = (10.0, 6.0)  # inches, of 100 dots each


def draw(rows: Sequence[Row], path: Path) -> bool:
    """Write the figure as PNG, a panel for each target; False where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    shown = [row for row in rows if row["task"] != ALL and not row["unavailable"]]
    targets, tasks = (list(dict.fromkeys(row[key] for row in shown)) for key in ("target", "task"))
    methods = [name for name in METHODS if any(row["method"] == name for row in shown)][::-1]  # first at the top
    figure = Figure(figsize=SIZE, dpi=100, layout="constrained")
    panels = figure.subplots(1, max(1, len(targets)), sharey=True, squeeze=False)[0]
    height = 0.8 / max(1, len(tasks))
    for panel, target in zip(panels, targets, strict=False):
        for number, task in enumerate(tasks):
            its = [row for row in shown if (row["target"], row["task"]) == (target, task)]
            places = [methods.index(row["method"]) + 0.4 - (number + 0.5) * height for row in its]
            speedups = [row["speedup"] for row in its]
            errors = [row["speedup"] * (row["deviation"] or 0.0) for row in its]
            color = COLORS[number % len(COLORS)]
            panel.barh(places, speedups, 0.85 * height, xerr=errors, color=color, label=task, ecolor="#333333")
            ceilings = [row["speedup"] / row["share_of_ceiling"] if row["share_of_ceiling"] else 0.0 for row in its]
            panel.barh(places, ceilings, 0.85 * height, fill=False, edgecolor=color, linewidth=0.8)
        panel.axvline(1.0, color="black", linewidth=1.0)
        panel.set_yticks(range(len(methods)), methods)
        panel.set_title(target)
        panel.set_xlabel("speedup over generate (outline: the forward passes alone)")
    if shown:  # below the panels, where no bar can be
        bars, names = panels[0].get_legend_handles_labels()
        figure.legend(bars, names, loc="outside lower center", ncols=len(names), frameon=False)
    figure.savefig(path, format="png")
    return True
