"""Markdown tables, and figures in them that are never rounded up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


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
