"""Results -> rows -> Markdown and a figure.  A row is a method on a task of a target, or on all its tasks."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from omnidraft.bench.records import BASELINE, METHODS, Counts, Results, Run
from omnidraft.bench.tables import down, markdown_table, percent
from omnidraft.errors import InputError

ALL = "all"  # the row over all tasks
SAME = (  # of a setting: where these differ, figures cannot be compared
    *("dtype", "threads", "device", "cpu", "cores", "platform", "python"),
    *("torch", "transformers", "omnidraft", "commit"),
    *("drafter", "max_new_tokens", "draft_length", "temperature", "repeats", "seed"),
)
Row = dict[str, Any]


# ---------------------------------------------------------------- rows


def rows(results: Sequence[Results]) -> list[Row]:
    """A row for each target, task and method, and for each target and method one over "all" its tasks.

    A figure that a method has no measure for is None.  Raises InputError for a task of a target that occurs twice.
    """
    targets: dict[str, list[Results]] = defaultdict(list)
    for result in results:
        targets[result.setting["target"]].append(result)
    made = []
    for target, theirs in targets.items():
        tasks = [task for result in theirs for task in result.setting["tasks"]]
        for task in tasks:
            if tasks.count(task) > 1:
                raise InputError(f"task {task!r} of target {target!r} is in two result files: leave one of them out")
        for task in [*tasks, ALL]:
            for method in METHODS:
                row = _row(theirs, method, {task} if task != ALL else set(tasks))
                if row is not None:
                    made.append({"target": target, "task": task, "method": method, **row})
    return made


def _row(results: Sequence[Results], method: str, tasks: set[str]) -> Row | None:
    results = [result for result in results if not tasks.isdisjoint(result.setting["tasks"])]
    reasons = [result.unavailable[method] for result in results if method in result.unavailable]
    if reasons:
        return dict.fromkeys(_figures([], [])) | {"unavailable": reasons[0]}
    # beside the same prompts and repeats of the baseline, from the files that have the method at all
    results = [result for result in results if any(run.method == method for run in result.runs)]
    least = min((1 + max(run.repeat for run in result.runs) for result in results), default=0)
    runs, base = (
        [
            run
            for result in results
            for run in result.runs
            if run.task in tasks and run.method == name and run.repeat < least
        ]
        for name in (method, BASELINE)
    )
    if not runs:
        return None
    return _figures(runs, base) | {"unavailable": None}


def _figures(runs: Sequence[Run], base: Sequence[Run]) -> Row:
    prompts, repeats = _grouped(runs, lambda run: (run.task, run.prompt)), _grouped(runs, lambda run: run.repeat)
    speeds = [statistics.median(run.tokens / run.seconds for run in its) for its in prompts.values()]
    by_repeat = [_speed(its) for its in repeats.values()]
    different = {prompt for prompt, its in prompts.items() if any(run.identical is False for run in its)}
    sampled = any(run.identical is None for run in runs)
    seconds, base_seconds = _seconds(runs), _seconds(base)
    if sampled and _tokens(base):  # such answers differ in length
        base_seconds *= _tokens(runs) / _tokens(base)
    low, middle, high = _quartiles(speeds)
    return {
        "tokens_per_s": middle,
        "tokens_per_s_q1": low,
        "tokens_per_s_q3": high,
        "tokens_per_s_total": _ratio(_tokens(runs), seconds),
        "deviation": statistics.stdev(by_repeat) / statistics.mean(by_repeat) if len(by_repeat) > 1 else None,
        "speedup": _ratio(base_seconds, seconds),
        **_drafting([run.counts for run in runs if run.counts], _tokens(runs), seconds),
        "identical": None if sampled else not different,
        "different": None if sampled else len(different),
        "prompts": len(prompts),
        "repeats": len(repeats),
        "tokens": _tokens(runs),
    }


def _drafting(counts: Sequence[Counts], tokens: int, seconds: float) -> Row:
    def total(name: str) -> float | None:
        values = [getattr(its, name) for its in counts]
        return None if None in values or not values else float(sum(values))

    return {
        "block_efficiency": _ratio(tokens, total("rounds")),
        "acceptance_rate": _ratio(total("symbols_accepted"), total("symbols")),
        "draft_length": _ratio(total("drafted"), total("rounds")),
        **{f"{part}_share": _ratio(total(f"{part}_s"), seconds) for part in ("draft", "verify", "overhead")},
    }


def _grouped(runs: Iterable[Run], key: Callable[[Run], Any]) -> dict[Any, list[Run]]:
    groups: dict[Any, list[Run]] = defaultdict(list)
    for run in runs:
        groups[key(run)].append(run)
    return groups


def _tokens(runs: Sequence[Run]) -> int:
    return sum(run.tokens for run in runs)


def _seconds(runs: Sequence[Run]) -> float:
    return sum(run.seconds for run in runs)


def _speed(runs: Sequence[Run]) -> float:
    return _ratio(_tokens(runs), _seconds(runs)) or 0.0


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if whole and part is not None else None


def _quartiles(values: Sequence[float]) -> tuple[float | None, ...]:
    if len(values) < 2:
        return tuple(values) * 3 or (None,) * 3
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))


def differences(results: Mapping[str, Results]) -> list[str]:
    """What differs between the settings of result files, by name, a line each."""
    found = []
    for key in SAME:
        values = {name: result.setting.get(key) for name, result in results.items()}
        if len(set(map(str, values.values()))) > 1:
            found.append(f"{key} differs: " + ", ".join(f"{value} in {name}" for name, value in values.items()))
    hashes: dict[str, set[str]] = defaultdict(set)
    for result in results.values():
        for task, its in result.setting["tasks"].items():
            hashes[task].add(its["hash"])
    done = {name: 1 + max((run.repeat for run in result.runs), default=-1) for name, result in results.items()}
    if len(set(done.values())) > 1:
        found.append(
            "repeats made differ, and only as many are compared: " + ", ".join(f"{n} in {k}" for k, n in done.items())
        )
    return found + [f"the prompts of task {task} differ" for task, its in hashes.items() if len(its) > 1]


# ---------------------------------------------------------------- Markdown


def markdown(results: Mapping[str, Results], made: Sequence[Row]) -> str:
    """The settings, by name of their file, then a table for each target and task."""
    settings = {name: _flat(result.setting) for name, result in results.items()}
    keys = dict.fromkeys(key for setting in settings.values() for key in setting)
    shown = [[key, *(str(setting.get(key, "–")) for setting in settings.values())] for key in keys]
    lines = [markdown_table(["setting", *settings], shown, 1 + len(settings)).rstrip()]
    lines += [f"\nWarning: {difference}." for difference in differences(results)]
    places = dict.fromkeys((row["target"], row["task"]) for row in made)
    for target, task in places:
        if task == ALL and sum(other == target for other, _ in places) == 2:  # it would say the same twice
            continue
        its = [row for row in made if (row["target"], row["task"]) == (target, task)]
        first = next((row for row in its if row["prompts"]), None)
        if first is not None:
            lines += [f"\n### {target}, {task}: {first['prompts']} prompts, {first['repeats']} repeats\n"]
        lines.append(_table(its).rstrip())
    return "\n".join(lines) + "\n"


def _flat(setting: Mapping[str, Any]) -> dict[str, str]:
    flat = {key: str(value) for key, value in setting.items() if key != "tasks" and value is not None}
    if "resumed" in setting:
        flat["resumed"] = ", ".join(f"{name} {value}" for name, value in setting["resumed"].items())
    for task, its in setting["tasks"].items():
        flat[f"task {task}"] = f"{its['prompts']} prompts ({its['left_out']} left out), hash {its['hash']}"
    return flat


def _table(its: Sequence[Row]) -> str:
    columns: dict[str, Callable[[Row], str]] = {
        "method": lambda row: row["method"],
        "tokens/s (quartiles)": lambda row: "{} ({}–{})".format(
            *(down(row[key], 1) for key in ("tokens_per_s", "tokens_per_s_q1", "tokens_per_s_q3"))
        ),
        "± repeats": lambda row: "–" if row["deviation"] is None else f"{math.ceil(100 * row['deviation'])} %",
        "speedup": lambda row: down(row["speedup"], 2),
        "block efficiency": lambda row: down(row["block_efficiency"], 2),
        "acceptance rate": lambda row: down(row["acceptance_rate"], 2),
        "drafted a round": lambda row: down(row["draft_length"], 1),
        "draft / verify / overhead": lambda row: " / ".join(
            percent(row[f"{part}_share"]) for part in ("draft", "verify", "overhead")
        ),
        "identical": lambda row: {None: "sampled", True: "yes", False: f"NO, {row['different']} differ"}[
            row["identical"]
        ],
    }
    lines = []
    for row in its:
        if row["unavailable"]:
            lines.append([row["method"], f"unavailable: {row['unavailable']}", *[""] * (len(columns) - 2)])
        else:
            lines.append([cell(row) for cell in columns.values()])
    return markdown_table(list(columns), lines)
