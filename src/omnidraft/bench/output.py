"""Output of benchmarks: numbers, Markdown tables, and the files they are written to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omnidraft.errors import InputError


def markdown_table(heads: Sequence[object], rows: Iterable[Sequence[object]], text_columns: int = 1) -> str:
    """A Markdown table; all columns but the first `text_columns` are aligned right."""
    rule = ["---" if place < text_columns else "---:" for place in range(len(heads))]
    lines = [heads, rule, *rows]
    escaped = ([str(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def down(value: float | None, digits: int) -> str:
    """A number of which more is better, rounded down; a dash for None."""
    return "–" if value is None else f"{math.floor(value * 10**digits) / 10**digits:.{digits}f}"


def percent(value: float | None) -> str:
    """A fraction as a percentage, rounded down; a dash for None."""
    return "–" if value is None else down(100 * value, 0) + " %"


@contextmanager
def writing(stem: Path) -> Iterator[None]:
    """Make the folder of the files that are named after `stem`; raises InputError if they cannot be written."""
    if not stem.name:
        raise InputError(f"{str(stem)!r} is no name for files: give --out another place, such as results/mine")
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InputError(f"cannot write {stem} ({error}): give --out another place") from error
