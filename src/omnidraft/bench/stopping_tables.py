"""The tables of `omnidraft bench stopping`."""

from __future__ import annotations

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
    names = list(dict.fromkeys(_name(row) for row in rows if row["policy"] != "plain"))
    lines = [["target", "task", "temperature", "plain, tokens/s", *names, "rate, of the best fixed"]]
    for (target, task, temperature), its in cells.items():
        by_name = {_name(row): row for row in its}
        best = max(float(row[unit]) for row in its if row["policy"] == "fixed")
        plain = its[0][f"plain_{unit}"]
        speedups = [f"{by_name[name][unit] / plain:.3f}" if name in by_name else "–" for name in names]
        share = f"{by_name['rate'][unit] / best:.3f}"
        lines.append([target, task, f"{temperature:g}", f"{plain:.1f}", *speedups, share])
    return lines


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
    lines = [["target", "case", "rate, of the target alone", "prompts", "rounds without a draft", "mostly as"]]
    for row in rows:
        share, idle = f"{row['undrafted']:.2f}", row["idle"] or "–"
        lines.append([row["target"], row["case"], f"{row['ratio']:.3f}", str(row["prompts"]), share, idle])
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
    return f"fixed {row['draft_len']}" if row["policy"] == "fixed" else str(row["policy"])


def _table(lines: Lines) -> str:
    whole = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in whole)
