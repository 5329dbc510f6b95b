"""What a terminal shows of a demonstration: a view that is drawn anew, and line charts.

The charts are in braille, each character two dots wide and four high.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

BLANK = 0x2800
BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a character, by column and row from the top
BARS = "·▁▂▃▄▅▆▇█"
LABEL = 6  # characters for the values at the axis
FEWEST = 40  # values that the width stands for at least, so that a short line does not jump


def bars(values: Sequence[int], count: int) -> str:
    """The last so many values, each as a bar of its height in eighths of a line; none for 0, the tallest above 7."""
    return "".join(BARS[min(value, len(BARS) - 1)] for value in values[-count:])


@contextmanager
def display(console: Console) -> Iterator[Live | None]:
    """A view that each update draws anew; None where the output is no terminal."""
    if not console.is_terminal:
        yield None
        return
    with Live(console=console, auto_refresh=False) as live:
        yield live


def chart(
    series: Sequence[tuple[Sequence[float | None], str]],
    width: int,
    height: int,
    *,
    step: float,
    rule: float | None = None,
) -> list[Text]:
    """Lines of text that show each series in its style; the later ones lie on top.

    The axis ends at multiples of `step`; a dotted line is drawn at `rule`.  None in a series is a value not known yet.
    """
    known = [value for values, _ in series for value in values if value is not None]
    known += [] if rule is None else [rule]
    low = math.floor(min(known, default=0.0) / step) * step
    high = max(low + step, math.ceil(max(known, default=step) / step) * step)
    columns, rows = 2 * max(1, width - LABEL - 2), 4 * height
    cells = np.full((height, columns // 2), BLANK)
    styles = [["dim"] * (columns // 2) for _ in range(height)]

    def row(value: float) -> int:
        return round((high - value) / (high - low) * (rows - 1))

    def dot(column: int, place: int, style: str) -> None:
        cells[place // 4, column // 2] |= BITS[column % 2][place % 4]
        styles[place // 4][column // 2] = style

    if rule is not None:
        for column in range(0, columns, 4):
            dot(column, row(rule), "dim")
    for values, style in series:
        places = [(number, value) for number, value in enumerate(values) if value is not None]
        if not places:
            continue
        scale = (max(FEWEST, len(values)) - 1) / (columns - 1)
        first, last = places[0][0], places[-1][0]
        heights = np.interp(np.arange(columns) * scale, [at for at, _ in places], [value for _, value in places])
        before = row(float(heights[math.ceil(first / scale)]))
        for column in range(math.ceil(first / scale), min(columns - 1, math.floor(last / scale)) + 1):
            now = row(float(heights[column]))
            for place in range(min(before, now), max(before, now) + 1):
                dot(column, place, style)
            before = now
    return [_line(number, height, low, high, cells[number], styles[number]) for number in range(height)]


def _line(number: int, height: int, low: float, high: float, cells: Iterable[int], styles: Iterable[str]) -> Text:
    """One row of characters, with the value at either end of the axis."""
    value = {0: high, height - 1: low}.get(number)
    line = Text("" if value is None else f"{value:.2f}", style="dim")
    line.pad_left(LABEL - len(line))
    line.append(" ┤" if value is not None else " │")
    for style, its in itertools.groupby(zip(cells, styles, strict=True), key=lambda both: both[1]):
        line.append("".join(chr(cell) for cell, _ in its), style=style)
    return line
