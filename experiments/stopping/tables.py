"""The tables of the draft-length study."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.compared import UNITS, Row, medians
from experiments.results import Results
from omnidraft.bench.tables import markdown_table

TITLES = {"speedup": "Speedup over plain decoding", "speedup_cpu": "The same in time of the processor"}


def markdown(results: Results) -> str:
    """All tables that there are rows for."""
    tables = {TITLES[unit]: _cells(results.of("cells"), unit) for unit in UNITS}
    tables["Calibration"] = _calibration(results.of("calibration"))
    tables["Where drafts cannot pay"] = _hopeless(results.of("hopeless"))
    tables["A drafter that learns, and its head"] = _schedules(results.of("schedules"))
    return "\n".join(f"## {title}\n\n{table}" for title, table in tables.items() if table.count("\n") > 2)


def _cells(rows: Sequence[Row], unit: str) -> str:
    """A line for each target, task and temperature: the median over repeats of each way's speedup."""
    cells: dict[tuple[str, str, float], list[Row]] = {}
    for row in rows:
        cells.setdefault((row["target"], row["task"], row["temperature"]), []).append(row)
    names = [way for way in medians(rows) if way != "plain"]
    lines = []
    for (target, task, temperature), its in cells.items():
        found = medians(its)
        speeds = {way: row[unit] for way, row in found.items()}
        shown = [f"{speeds[name]:.3f}" if name in speeds else "–" for name in names]
        best = max(speed for way, speed in speeds.items() if way.startswith("fixed"))
        plain = found["plain"][UNITS[unit]]
        lines.append([target, task, f"{temperature:g}", f"{plain:.1f}", *shown, f"{speeds['goodput'] / best:.3f}"])
    heads = ["target", "task", "temperature", "plain, tokens/s", *names, "goodput, of the best fixed length"]
    return markdown_table(heads, lines, 2)


def _calibration(rows: Sequence[Row]) -> str:
    """Share of draft tokens accepted, and their number, by tenth of the predicted chance."""
    lines = []
    for row in rows:
        found = {min(9, int(one["chance"] * 10)): one for one in row["bins"]}
        shares = [f"{found[i]['accepted']:.2f} ({found[i]['tokens']})" if i in found else "–" for i in range(10)]
        error = f"{row['expected_calibration_error']:.3f}"
        lines.append([row["target"], row["way"], f"{row['temperature']:g}", error, *shares])
    bins = [f"{low / 10:.1f}–{(low + 1) / 10:.1f}" for low in range(10)]
    return markdown_table(["target", "by", "temperature", "expected error", *bins], lines, 2)


def _hopeless(rows: Sequence[Row]) -> str:
    heads = ["target", "case", "goodput, of plain decoding", "in time of the processor", "prompts"]
    lines = [
        [
            *(row["target"], row["case"], f"{row['speedup']:.3f}", f"{row['speedup_cpu']:.3f}", row["prompts"]),
            *(f"{row['without_draft']:.2f}", row["no_draft_reason"] or "–"),
        ]
        for row in sorted(rows, key=lambda row: str(row["target"]))
    ]
    return markdown_table([*heads, "rounds without a draft", "mostly as"], lines, 2)


def _schedules(rows: Sequence[Row]) -> str:
    """Acceptance rate and speedup, a column for each target and task."""
    places = list(dict.fromkeys((row["target"], row["task"]) for row in rows))
    found = {at: medians(row for row in rows if (row["target"], row["task"]) == at) for at in places}
    lines = [
        [way, *(f"{its[way]['acceptance_rate']:.2f} {its[way]['speedup']:.2f}x" for its in found.values())]
        for way in medians(rows)
        if all(way in its for its in found.values())
    ]
    return markdown_table(["learns", *(f"{target}, {task}" for target, task in places)], lines)
