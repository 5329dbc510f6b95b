"""Output of benchmarks: lines of progress, Markdown tables, figures, and the files they are written to."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from omnidraft.errors import InputError

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")  # told apart by the color-blind, too
SIZE = (10.0, 6.0)  # inches of a figure, of 100 dots each
EVERY_S = 10.0  # between lines of progress
T = TypeVar("T")


def progress(console: Console, what: str, steps: int) -> Callable[[], None]:
    """A function to call after each step, which says now and then how long the rest will take."""
    began = said = time.monotonic()
    done = 0

    def step() -> None:
        nonlocal done, said
        done += 1
        now = time.monotonic()
        if now - said >= EVERY_S:
            said = now
            left = (now - began) / done * (steps - done)
            console.print(f"{what}: {done} of {steps}, about {left:.0f} s left")

    return step


def markdown_table(heads: Sequence[object], rows: Iterable[Sequence[object]], text_columns: int = 1) -> str:
    """A Markdown table; all columns but the first `text_columns` are aligned right."""
    rule = ["---" if place < text_columns else "---:" for place in range(len(heads))]
    lines = [heads, rule, *rows]
    escaped = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def down(value: float | None, digits: int) -> str:
    """A figure where more is better, never rounded up; a dash for None."""
    return "–" if value is None else f"{math.floor(value * 10**digits) / 10**digits:.{digits}f}"


def percent(value: float | None) -> str:
    """A share of one as a percentage, never rounded up."""
    return "–" if value is None else down(100 * value, 0) + " %"


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


@contextmanager
def writing(stem: Path) -> Iterator[None]:
    """Make the folder of files named after `stem`, and say what to do where they cannot be written."""
    if not stem.name:
        raise InputError(f"{str(stem)!r} is no name for files: give --out another place, such as results/mine")
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InputError(f"cannot write {stem} ({error}): give --out another place") from error
