"""Figures 5 to 9 of the paper's evaluation, from what its file holds; none without matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from experiments.adaptation import report
from experiments.results import Results, Row
from omnidraft.bench.figure import COLORS, figure


def draw(results: Results, folder: Path) -> None:
    """Write the figures that there is something for."""
    for name, (section, panel) in FIGURES.items():
        if rows := results.of(section):
            figure(_rows(section, rows), panel, folder / f"{name}.png", report.SIZE)


def _rows(section: str, rows: Sequence[Row]) -> list[Row]:
    """A panel for each target and task; the seeds of a cache share one."""
    if section != "cache":
        return list(rows)
    places = dict.fromkeys((row["target"], row["task"]) for row in rows)
    return [
        {"at": f"{target}, {task}", "studies": [row for row in rows if (row["target"], row["task"]) == (target, task)]}
        for target, task in places
    ]


def _uses(row: Row, panel: Any) -> None:
    """How often each n-gram was emitted, the commonest first."""
    uses = row["studies"][0]["uses"]  # whatever the seed: drafts do not change what is said
    panel.plot(range(1, len(uses) + 1), uses, color=COLORS[0], label="n-grams")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_title(row["at"])
    panel.set_xlabel("n-grams, the commonest first")
    panel.set_ylabel("times emitted")


def _hits(row: Row, panel: Any) -> None:
    """N-grams accepted a round, and the share of those proposed, along the stream."""
    for color, study in zip(COLORS, row["studies"], strict=False):
        rounds, proposed, accepted = ([point[column] for point in study["curve"]] for column in (1, 2, 3))
        begin = min(report.WINDOW, len(rounds)) - 1  # before that, a handful of proposals
        prompts = range(begin + 1, len(rounds) + 1)
        a_round, of_proposed = (report.moving(accepted, wholes)[begin:] for wholes in (rounds, proposed))
        panel.plot(prompts, a_round, color=color, label=f"seed {study['seed']}: accepted a round")
        panel.plot(prompts, of_proposed, ":", color=color, label=f"seed {study['seed']}: share of those proposed")
    panel.set_title(row["at"])
    panel.set_xlabel("answers")
    panel.set_ylabel(f"n-grams, over the last {report.WINDOW} answers")


def _growth(row: Row, panel: Any) -> None:
    """N-grams in a cache that began empty, by target tokens emitted."""
    for study in row["studies"]:
        if study["seed"] == "empty":
            tokens = list(accumulate(point[0] for point in study["curve"]))
            panel.plot(tokens, [point[4] for point in study["curve"]], color=COLORS[0], label="n-grams")
    panel.set_title(row["at"])
    panel.set_xlabel("target tokens emitted")
    panel.set_ylabel("n-grams in the cache")


FIGURES: dict[str, tuple[str, Callable[[Row, Any], None]]] = {
    "figure-5": ("switch", report.FIGURES["switch"]),
    "figure-6": ("targets", report.FIGURES["targets"]),
    "figure-7": ("cache", _uses),
    "figure-8": ("cache", _hits),
    "figure-9": ("cache", _growth),
}
