"""The tables of the draft-length study."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
Lines = list[list[str]]


def markdown(result: Row) -> str:
    """All tables that there are rows for."""
    made = (
        ("Speedup over the target alone", _cells(result["cells"], "tokens_per_s")),
        ("The same in time of the processor", _cells(result["cells"], "tokens_per_cpu_s")),
        ("Are its chances true?", _calibration(result["calibration"])),
        ("Where drafts cannot pay", _hopeless(result["never_slower"])),
        ("A drafter that learns, and its head", _schedules(result["schedules"])),
    )
    return "\n".join(f"## {title}\n\n{_table(lines)}" for title, lines in made if len(lines) > 1)


def _cells(rows: Sequence[Row], unit: str) -> Lines:
    cells: dict[tuple[str, str, float], list[Row]] = {}
    for row in rows:
        cells.setdefault((row["target"], row["task"], row["temperature"]), []).append(row)
    others = sorted(
        (row for row in rows if row["policy"] != "plain"),
        key=lambda row: (row["policy"] != "fixed", row["draft_length"]),
    )
    names = list(dict.fromkeys(map(_name, others)))
    lines = [["target", "task", "temperature", "plain, tokens/s", *names, "goodput, of the best fixed"]]
    for (target, task, temperature), its in cells.items():
        found = {_name(row): _speedup(row, unit) for row in its}
        speedups = [f"{found[name]:.3f}" if name in found else "–" for name in names]
        plain = next(row for row in its if row["policy"] == "plain")[unit]
        lines.append([target, task, f"{temperature:g}", f"{plain:.1f}", *speedups, f"{_of_best(its, unit):.3f}"])
    return lines


def _speedup(row: Row, unit: str) -> float:
    """The median over repeats, each beside plain decoding in the same one: not all rows need have the same repeats."""
    return float(statistics.median(each[unit] / each[f"plain_{unit}"] for each in row["repeats"]))


def _of_best(rows: Sequence[Row], unit: str) -> float:
    """`goodput` beside the best fixed length, each beside plain decoding in its own repeats: they may be others."""
    rate = next(row for row in rows if row["policy"] == "goodput")
    return _speedup(rate, unit) / max(_speedup(row, unit) for row in rows if row["policy"] == "fixed")


def _calibration(rows: Sequence[Row]) -> Lines:
    """Chance and share accepted in each bin."""
    bins = [f"{low / 10:.1f}–{(low + 1) / 10:.1f}" for low in range(10)]
    lines = [["target", "temperature", "by", "expected error", *bins]]
    for row in rows:
        found = {min(9, int(one["chance"] * 10)): one for one in row["bins"]}
        shares = [f"{found[i]['accepted']:.2f} ({found[i]['tokens']})" if i in found else "–" for i in range(10)]
        error = f"{row['expected_calibration_error']:.3f}"
        lines.append([row["target"], f"{row['temperature']:g}", row["policy"], error, *shares])
    return lines


def _hopeless(rows: Sequence[Row]) -> Lines:
    head = ["target", "case", "goodput, of the target alone", "in time of the processor", "prompts"]
    lines = [[*head, "rounds without a draft", "mostly as"]]
    for row in sorted(rows, key=lambda row: str(row["target"])):
        share, idle = f"{row['undrafted']:.2f}", row["idle"] or "–"
        ratios = (f"{row['ratio']:.3f}", f"{row['ratio_cpu']:.3f}")
        lines.append([row["target"], row["case"], *ratios, str(row["prompts"]), share, idle])
    return lines


def _schedules(rows: Sequence[Row]) -> Lines:
    """Acceptance and speedup, a column for each target and task."""
    places = list(dict.fromkeys((row["target"], row["task"]) for row in rows))
    lines = [["learns", *(f"{target}, {task}" for target, task in places)]]
    for method in dict.fromkeys(row["method"] for row in rows):
        found = {(row["target"], row["task"]): row for row in rows if row["method"] == method}
        cells = [
            f"{found[at]['acceptance_rate']:.2f} {found[at]['speedup']:.2f}x" if at in found else "–" for at in places
        ]
        lines.append([method, *cells])
    return lines


def _name(row: Row) -> str:
    return f"fixed {row['draft_length']}" if row["policy"] == "fixed" else str(row["policy"])


def _table(lines: Lines) -> str:
    whole = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in whole)
