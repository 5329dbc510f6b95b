"""Rows of results, and their Markdown.  A row is a method on one task of a target, or on all tasks."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from omnidraft.bench.output import down, markdown_table, percent
from omnidraft.bench.records import BASELINE, METHODS, Results, Run
from omnidraft.errors import InputError

ALL = "all"  # the row over all tasks
VARYING = {"target", "tasks", "date", "command"}  # of a setting; if others differ, figures cannot be compared
TIMES = ("draft", "verify", "overhead")  # of a round after the first of an answer
COLUMNS = (
    *("method", "tokens/s (quartiles)", "± repeats", "speedup", "tokens per pass", "acceptance rate"),
    *("drafts a round", "rounds without", "ms of a round: draft / verify / rest", "identical"),
)
Row = dict[str, Any]
T = TypeVar("T")


# ---------------------------------------------------------------- rows


def rows(results: Sequence[Results]) -> list[Row]:
    """A row for each target, task and method, and for each target and method one over "all" tasks.

    A figure that a method does not have is None.  Raises InputError for a task of a target that occurs twice.
    """
    table = []
    for target, files in _grouped(results, lambda result: result.setting["target"]).items():
        tasks = [task for result in files for task in result.setting["tasks"]]
        for task in tasks:
            if tasks.count(task) > 1:
                raise InputError(f"task {task!r} of target {target!r} is in two result files: leave one of them out")
        for task in [*tasks, ALL]:
            others = (run.method for result in files for run in result.runs)
            for method in dict.fromkeys([*METHODS, *others]):
                row = _row(files, method, {task} if task != ALL else set(tasks))
                if row is not None:
                    table.append({"target": target, "task": task, "method": method, **row})
    return table


def _row(results: Sequence[Results], method: str, tasks: set[str]) -> Row | None:
    results = [result for result in results if not tasks.isdisjoint(result.setting["tasks"])]
    for result in results:
        if method in result.unavailable:
            return dict.fromkeys(_figures(result.runs, result.runs)) | {"unavailable": result.unavailable[method]}
    # beside the same prompts of the baseline: from the files that have the method at all
    results = [result for result in results if any(run.method == method for run in result.runs)]
    all_runs = [run for result in results for run in result.runs if run.task in tasks]
    runs, base = ([run for run in all_runs if run.method == name] for name in (method, BASELINE))
    return _figures(runs, base) | {"unavailable": None} if runs else None


def _figures(runs: Sequence[Run], base: Sequence[Run]) -> Row:
    prompts, repeats = _grouped(runs, lambda run: (run.task, run.prompt)), _grouped(runs, lambda run: run.repeat)
    speeds = [statistics.median(run.tokens / run.seconds for run in group) for group in prompts.values()]
    low, middle, high = statistics.quantiles(speeds * 2 if len(speeds) == 1 else speeds, n=4, method="inclusive")
    by_repeat = [_total(group, "tokens") / _total(group, "seconds") for group in repeats.values()]
    different = {prompt for prompt, group in prompts.items() if any(run.identical is False for run in group)}
    sampled = any(run.identical is None for run in runs)
    tokens, seconds = (_total(runs, name) for name in ("tokens", "seconds"))
    base_seconds = _total(base, "seconds")
    if base:  # answers may differ in length: sampled ones, and greedy ones in half precision
        base_seconds *= tokens / _total(base, "tokens")
    rounds = _total(runs, "rounds")
    timed = rounds - len(runs) if all(run.draft_s is not None for run in runs) else 0
    return {
        "tokens_per_s": middle,
        "tokens_per_s_q1": low,
        "tokens_per_s_q3": high,
        "tokens_per_s_total": tokens / seconds,
        "deviation": statistics.stdev(by_repeat) / statistics.mean(by_repeat) if len(by_repeat) > 1 else None,
        "speedup": _ratio(base_seconds, seconds),
        "block_efficiency": _ratio(tokens, rounds),
        "acceptance_rate": _ratio(_total(runs, "symbols_accepted"), _total(runs, "symbols")),
        "draft_length": _ratio(_total(runs, "drafted"), rounds),
        "without_draft": _ratio(_total(runs, "rounds_without_draft"), rounds),
        **{f"{time}_ms": _ratio(1e3 * _total(runs, f"{time}_s"), timed) if timed else None for time in TIMES},
        "identical": None if sampled else not different,
        "different": None if sampled else len(different),
        "prompts": len(prompts),
        "repeats": len(repeats),
        "tokens": tokens,
    }


def _grouped(items: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    groups: dict[Any, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def _total(records: Iterable[object], name: str) -> float:
    total: float = sum(getattr(record, name) for record in records)
    return total


def _ratio(share: float, whole: float) -> float | None:
    return share / whole if whole else None


def differences(results: Mapping[str, Results]) -> list[str]:
    """Differences between the settings of result files, a line each."""
    differing = []
    for key in dict.fromkeys(key for result in results.values() for key in result.setting if key not in VARYING):
        values = {name: result.setting.get(key) for name, result in results.items()}
        if len(set(map(str, values.values()))) > 1:
            differing.append(f"{key} differs: " + ", ".join(f"{value} in {name}" for name, value in values.items()))
    hashes: dict[str, set[str]] = defaultdict(set)
    for result in results.values():
        for task, prompts in result.setting["tasks"].items():
            hashes[task].add(prompts["hash"])
    return differing + [f"the prompts of task {task} differ" for task, several in hashes.items() if len(several) > 1]


# ---------------------------------------------------------------- Markdown


def markdown(results: Mapping[str, Results], rows: Sequence[Row]) -> str:
    """A table of the settings, by file name, then a table for each target and task."""
    settings = {name: _shown(result.setting) for name, result in results.items()}
    keys = dict.fromkeys(key for setting in settings.values() for key in setting)
    cells = [[key, *(setting.get(key, "–") for setting in settings.values())] for key in keys]
    lines = [markdown_table(["setting", *settings], cells, 1 + len(settings))]
    lines += [f"Warning: {difference}.\n" for difference in differences(results)]
    places = _grouped(rows, lambda row: (row["target"], row["task"]))
    for (target, task), group in places.items():
        if task == ALL and sum(other == target for other, _ in places) == 2:  # it would say the same twice
            continue
        # the first row is that of the baseline, which every file has
        lines.append(f"### {target}, {task}: {group[0]['prompts']} prompts, {group[0]['repeats']} repeats\n")
        lines.append(markdown_table(COLUMNS, map(_cells, group)))
    return "\n".join(lines)


def _shown(setting: Mapping[str, Any]) -> dict[str, str]:
    shown = {key: str(value) for key, value in setting.items() if key != "tasks" and value is not None}
    for task, prompts in setting["tasks"].items():
        left_out, digest = prompts["left_out"], prompts["hash"]
        shown[f"task {task}"] = f"{prompts['prompts']} prompts ({left_out} left out), hash {digest}"
    return shown


def _cells(row: Row) -> list[str]:
    if row["unavailable"]:
        return [row["method"], f"unavailable: {row['unavailable']}", *[""] * (len(COLUMNS) - 2)]
    identical = {None: "sampled", True: "yes", False: f"NO, {row['different']} differ"}
    return [
        row["method"],
        "{} ({}–{})".format(*(down(row[f"tokens_per_s{which}"], 1) for which in ("", "_q1", "_q3"))),
        "–" if row["deviation"] is None else f"{math.ceil(100 * row['deviation'])} %",
        down(row["speedup"], 2),
        down(row["block_efficiency"], 2),
        down(row["acceptance_rate"], 2),
        down(row["draft_length"], 1),
        percent(row["without_draft"]),
        " / ".join("–" if (ms := row[f"{time}_ms"]) is None else f"{ms:.1f}" for time in TIMES),
        identical[row["identical"]],
    ]
