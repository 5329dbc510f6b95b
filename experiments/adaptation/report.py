"""The tables and figures of the adaptation study."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from experiments.command import write_report
from experiments.results import Results, Row
from omnidraft.bench.environment import writing
from omnidraft.bench.figure import COLORS, figure
from omnidraft.bench.tables import markdown_table

WINDOW = 20  # answers of a moving average
SIZE = (10.0, 4.5)  # inches, of 100 dots each


def write(results: Results, stem: Path) -> None:
    """Write STEM.md and, where matplotlib is installed, a figure for each part that has one."""
    write_report(stem, markdown(results))
    with writing(stem):
        for part, draw in FIGURES.items():
            if results.of(part):
                figure(results.of(part), draw, stem.with_name(f"{stem.name}-{part}.png"), SIZE)


# ---------------------------------------------------------------- tables


def markdown(results: Results) -> str:
    """All tables that there are figures for."""
    tables = {
        "Before and after the stream": (results.of("rows"), STREAM),
        "Beside a trainer in the background": (results.of("background"), BACKGROUND),
    }
    losses = results.of("losses")
    for temperature in sorted({row["temperature"] for row in losses}):
        title = f"Losses, {losses[0]['target']}, temperature {temperature:g}"
        tables[title] = ([row for row in losses if row["temperature"] == temperature], METHODS)
    if ranks := results.of("ranks"):
        tables[f"Adapters, {ranks[0]['target']}"] = (ranks, METHODS)
    pieces = {
        title: markdown_table(list(columns), ([write(row) for write in columns.values()] for row in rows))
        for title, (rows, columns) in tables.items()
        if rows
    }
    pieces |= {" before and after ".join(row["targets"]): _visits(row) for row in results.of("targets")}
    return "\n".join(f"## {title}\n\n{table}" for title, table in pieces.items())


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


def _visits(row: Row) -> str:
    lines = [
        [name, when, f"{accepted / proposed:.4f}", f"{tokens / rounds:.4f}"]
        for name, tests in row["tests"].items()
        for when, (accepted, proposed, tokens, rounds) in tests.items()
    ]
    return markdown_table(["n-gram cache", "when", "acceptance rate", "block efficiency"], lines, 2)


# ---------------------------------------------------------------- figures


def moving(parts: Sequence[int], wholes: Sequence[int]) -> list[float]:
    """Sums of one over sums of the other, of the last WINDOW answers, at each."""
    part, whole = ([0, *accumulate(values)] for values in (parts, wholes))
    starts = (max(0, end - WINDOW) for end in range(1, len(part)))
    return [(part[end] - part[start]) / max(1, whole[end] - whole[start]) for end, start in enumerate(starts, 1)]


def _efficiency(curve: Sequence[Sequence[int]]) -> list[float]:
    return moving([answer[2] for answer in curve], [answer[3] for answer in curve])


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
        first, then = (_efficiency(part) for part in (curve[: row["at"]], curve[row["at"] :]))  # no mean is of both
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
            panel.plot(places, _efficiency(curve), color=color, label=None if number else label)
            start += len(curve)
            if number < len(parts) - 1:
                panel.axvline(start + 0.5, color="black", linewidth=1.0)
    names = [*row["targets"], row["targets"][0]]
    panel.set_title(", then ".join(names))
    panel.set_xlabel("prompts")
    panel.set_ylabel(f"block efficiency, last {WINDOW} prompts")


FIGURES: dict[str, Callable[[Row, Any], None]] = {"curves": _live, "switch": _switch, "targets": _targets}
