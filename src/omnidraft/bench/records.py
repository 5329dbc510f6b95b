"""Result files: JSON lines, a setting first, then what was measured, then an end that says how much there must be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from omnidraft.errors import InputError

FORMAT = "omnidraft compare 1"
BASELINE = "generate"
METHODS = (BASELINE, "plain", "uad", "lookup", "intersection", "paper", "exact")  # in the order of every table


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
    """The forward passes of one untimed turn of a method over the first `prompts` prompts of a task."""

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
        self._line({"kind": "end", "runs": len(self.results.runs)})

    def _line(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()


def read(path: Path) -> Results:
    """Read a result file; raises InputError, naming it, for one that is truncated, damaged, or none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read result file {path} ({error}): check the path") from error
    lines = text.splitlines()
    if not lines or FORMAT not in lines[0]:
        raise InputError(f"{path} is no result file: give one that `omnidraft bench compare --out` wrote")
    again = "run the comparison again"
    try:
        records = [json.loads(line) for line in lines]
        expected = records.pop()["runs"] if records[-1]["kind"] == "end" else None
        results = _results(records)
    except json.JSONDecodeError as error:
        raise InputError(f"result file {path} is truncated, it has a broken line: {again}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"result file {path} is damaged ({error!r}): {again}") from error
    if expected is None:
        raise InputError(f"result file {path} is truncated, it has no end line: {again}")
    if len(results.runs) != expected:
        raise InputError(f"result file {path} is truncated, it has {len(results.runs)} of {expected} runs: {again}")
    return results


def _results(records: Sequence[dict[str, Any]]) -> Results:
    setting = {name: value for name, value in records[0].items() if name not in ("kind", "format")}
    if not {"target", "tasks"} <= setting.keys():
        raise KeyError("target")
    results = Results(setting=setting)
    for record in records[1:]:
        kind = record.pop("kind")
        if kind == "run":
            counts = record.pop("counts")
            results.runs.append(Run(**record, counts=counts and Counts(**counts)))
        elif kind == "passes":
            results.passes.append(Passes(**record))
        elif kind == "unavailable":
            results.unavailable[record["method"]] = record["reason"]
        else:
            raise KeyError(kind)
    return results
