"""Result files: JSON lines, a setting first, then what was measured, then an end that says how much there must be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from omnidraft.errors import InputError

FORMAT = "omnidraft compare 1"
BASELINE = "generate"
METHODS = (
    BASELINE,
    "plain",
    "uad",
    "lookup",
    "intersection",
    "paper",
    "exact",
    "goodput",
)  # in the order of every table


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What the rounds of our own loop did; times in seconds."""

    rounds: int
    drafted: int
    proposed: int
    accepted: int
    symbols: int
    symbols_accepted: int
    draft_s: float
    verify_s: float
    translate_s: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """One timed answer."""

    repeat: int
    task: str
    prompt: int  # index within the task
    method: str
    tokens: int
    seconds: float
    identical: bool | None  # to the tokens of `generate`; None: sampled
    counts: Counts | None  # None: not our loop


@dataclass(frozen=True, kw_only=True)
class Passes:
    """The forward passes of a method over all `prompts` prompts of a task, in one repeat."""

    task: str
    method: str
    prompts: int
    tokens: int
    prompt_tokens: int
    target_passes: int
    fed: int  # tokens that went through the target, prompts included
    target_s: float  # what these passes cost on quiet models, in seconds
    drafter_s: float


@dataclass(frozen=True, kw_only=True)
class Results:
    """All that one run of the comparison found out."""

    setting: dict[str, Any]
    runs: list[Run] = field(default_factory=list)
    passes: list[Passes] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)  # method -> reason


class Writer:
    """Collects results, and writes each at once where a file is given."""

    def __init__(self, setting: dict[str, Any], file: TextIO | None = None) -> None:
        self.results = Results(setting=setting)
        self._file = file
        self._line({"kind": "setting", "format": FORMAT, **setting})

    def add(self, record: Run | Passes) -> None:
        if isinstance(record, Run):
            self.results.runs.append(record)
        else:
            self.results.passes.append(record)
        self._line({"kind": type(record).__name__.lower(), **asdict(record)})

    def drop(self, method: str, reason: str) -> None:
        """Leave a method out from now on."""
        self.results.unavailable[method] = reason
        self._line({"kind": "unavailable", "method": method, "reason": reason})

    def end(self) -> None:
        self._line({"kind": "end", "runs": len(self.results.runs), "passes": len(self.results.passes)})

    def _line(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()


def read(path: Path) -> Results:
    """Read a result file; raises InputError, naming it, for one that is truncated, damaged, or none."""
    again = "run the comparison again"
    results, end = _parsed(path)
    if end is None:
        raise InputError(f"result file {path} is truncated, it has no end line: {again}, with --resume {path.name}")
    for kind, found in (("runs", len(results.runs)), ("passes", len(results.passes))):
        if end.get(kind) != found:
            raise InputError(f"result file {path} is truncated, it has {found} of {end.get(kind)} {kind}: {again}")
    grid = Counter((run.method, run.task, run.repeat, run.prompt) for run in results.runs)
    repeats = {run.repeat for run in results.runs}
    whole = {
        (method, task, repeat, prompt)
        for method in {run.method for run in results.runs} - results.unavailable.keys()
        for task, its in results.setting["tasks"].items()
        for repeat in repeats
        for prompt in range(its["prompts"])
    }
    kept = {key for key in grid if key[0] not in results.unavailable}
    if kept != whole or any(count > 1 for count in grid.values()):
        raise InputError(f"result file {path} is damaged, not every method has every prompt once a repeat: {again}")
    return results


def unfinished(path: Path) -> Results:
    """What is whole in a file that may have been cut off at any time: its setting, and all runs of finished repeats.

    Raises InputError for what is no result file.
    """
    results, _ = _parsed(path, torn=True)
    prompts = sum(its["prompts"] for its in results.setting["tasks"].values())
    counts = Counter((run.method, run.repeat) for run in results.runs)
    methods = {run.method for run in results.runs} - results.unavailable.keys()
    repeat = 0
    while methods and all(counts[method, repeat] == prompts for method in methods):
        repeat += 1
    runs = [run for run in results.runs if run.repeat < repeat]
    return Results(setting=results.setting, runs=runs, unavailable=results.unavailable)


def _parsed(path: Path, *, torn: bool = False) -> tuple[Results, dict[str, Any] | None]:
    """The records of a file, and what its end line says; with `torn`, a broken last line is passed over."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read result file {path} ({error}): check the path") from error
    lines = text.splitlines()
    again = "run the comparison again"
    if not lines or FORMAT not in lines[0]:
        raise InputError(f"{path} is no result file: give one that `omnidraft bench compare --out` wrote")
    try:
        if torn and not _is_json(lines[-1]):
            del lines[-1]
        records = [json.loads(line) for line in lines]
        if records[0]["format"] != FORMAT:
            raise InputError(f"{path} is of format {records[0]['format']!r}, not {FORMAT!r}: {again}")
        end = records.pop() if records[-1]["kind"] == "end" else None
        return _results(records), end
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"result file {path} is truncated, it has a broken line: {again}") from error
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"result file {path} is damaged ({error!r}): {again}") from error


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True


def _results(records: Sequence[dict[str, Any]]) -> Results:
    setting = {name: value for name, value in records[0].items() if name not in ("kind", "format")}
    if not {"target", "tasks"} <= setting.keys():
        raise KeyError("target")
    for its in setting["tasks"].values():
        if not (isinstance(its["prompts"], int) and isinstance(its["left_out"], int) and isinstance(its["hash"], str)):
            raise TypeError(f"tasks: {its}")
    results = Results(setting=setting)
    for record in records[1:]:
        kind = record.pop("kind")
        if kind == "run":
            counts = record.pop("counts")
            results.runs.append(Run(**record, counts=counts and Counts(**counts)))
            if not results.runs[-1].seconds > 0:
                raise ValueError("a run of no seconds")
        elif kind == "passes":
            results.passes.append(Passes(**record))
        elif kind == "unavailable":
            results.unavailable[record["method"]] = record["reason"]
        else:
            raise KeyError(kind)
    return results
