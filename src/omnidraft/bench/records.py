"""Result files: JSON lines with the setting of a run, the timed answers, and an end that holds their number."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

from omnidraft.config import LARGEST
from omnidraft.errors import InputError

FORMAT = "omnidraft compare 1"
AGAIN = "run the comparison again"
BASELINE = "generate"
METHODS = (BASELINE, "plain", "uad", "lookup", "intersection", "paper", "exact", "goodput")
OF_LLAMA = (LLAMA, LLAMA_LOOKUP) = ("llama.cpp", "llama.cpp lookup")  # of a GGUF file
ORDER = (*METHODS, *OF_LLAMA)  # of every table


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Counts over the rounds of an answer; times, in seconds, are known only of our own loop."""

    rounds: int
    drafted: int
    proposed: int
    accepted: int
    symbols: int
    symbols_accepted: int
    retrieved: int = 0  # in older files: tokens copied from earlier text, beside the drafter's
    draft_s: float | None = None
    verify_s: float | None = None
    overhead_s: float | None = None  # acceptance, commit and the draft-length policy


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
    counts: Counts | None  # None: in older files, where `transformers` decoded


@dataclass(kw_only=True)
class Results:
    """Results of one run of the comparison; where a `file` is given, each record is written at once."""

    setting: dict[str, Any]
    runs: list[Run] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)  # method -> reason
    file: TextIO | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._write("setting", {"format": FORMAT, **self.setting})

    def add(self, run: Run) -> None:
        """Keep a timed answer."""
        self.runs.append(run)
        self._write("run", asdict(run))

    def drop(self, method: str, reason: str) -> None:
        """Leave a method out from now on."""
        self.unavailable[method] = reason
        self._write("unavailable", {"method": method, "reason": reason})

    def end(self) -> None:
        """Mark the file as whole."""
        self._write("end", {"runs": len(self.runs)})

    def _write(self, kind: str, record: dict[str, Any]) -> None:
        if self.file is not None:
            self.file.write(json.dumps({"kind": kind, **record}) + "\n")
            self.file.flush()


def read(path: Path) -> Results:
    """Read a result file; raises InputError, naming it, for one that is truncated, damaged, or none."""
    first, *records = lines_of(path, FORMAT)
    results = Results(setting={name: value for name, value in first.items() if name not in ("kind", "format")})
    expected = None
    try:
        sizes = _sizes(first)
        for record in records:
            kind = record.pop("kind")
            if kind == "run":
                results.runs.append(_run(record))
            elif kind == "unavailable":
                results.unavailable[record["method"]] = record["reason"]
            elif kind == "end":
                expected = record["runs"]
            elif kind != "passes":  # as older files have them
                raise KeyError(kind)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"result file {path} is damaged ({error!r}): {AGAIN}") from error
    if expected is None:
        raise InputError(f"result file {path} is truncated, it has no end line: {AGAIN}")
    if expected != (found := len(results.runs)):
        raise InputError(f"result file {path} is truncated, it has {found} of {expected} runs: {AGAIN}")
    if not _is_whole(results, sizes):
        raise InputError(f"result file {path} is damaged, not every method has every prompt once a repeat: {AGAIN}")
    return results


def _sizes(setting: dict[str, Any]) -> dict[str, int]:
    """The number of prompts of each task."""
    kinds = [type(its[name]) for its in setting["tasks"].values() for name in ("prompts", "left_out", "hash")]
    if [type(setting["target"]), *kinds] != [str, *(int, int, str) * len(setting["tasks"])]:
        raise TypeError("target or tasks")
    return {task: its["prompts"] for task, its in setting["tasks"].items()}


def _run(record: dict[str, Any]) -> Run:
    counts = record.pop("counts")
    if counts and "translate_s" in counts:  # as older files call it
        counts["overhead_s"] = counts.pop("translate_s")
    run = Run(**record, counts=counts and Counts(**counts))
    for part in (run, run.counts) if run.counts else (run,):
        _check_types(part)
    if not (run.tokens and run.seconds):
        raise ValueError("an answer of no tokens, or in no time")
    return run


def _check_types(record: Run | Counts) -> None:
    """Raise TypeError for a value that is not of its field's type, ValueError for a number out of range."""
    for f in fields(record):
        value, kinds = getattr(record, f.name), str(f.type).split(" | ")
        kind = "None" if value is None else type(value).__name__
        if kind not in kinds and not (kind == "int" and "float" in kinds):
            raise TypeError(f.name)
        if kind in ("int", "float") and not 0 <= value <= LARGEST:
            raise ValueError(f.name)


def _is_whole(results: Results, sizes: dict[str, int]) -> bool:
    """Whether every method has every prompt once a repeat: else speedups would be over different prompts."""
    cells = [(run.method, run.task, run.repeat, run.prompt) for run in results.runs]
    methods = {BASELINE, *(run.method for run in results.runs)} - results.unavailable.keys()
    size = len(methods) * len({run.repeat for run in results.runs}) * sum(sizes.values())
    known = all(prompt < sizes.get(task, 0) for _, task, _, prompt in cells)
    return known and len(set(cells)) == len(cells) and 0 < size == sum(cell[0] in methods for cell in cells)


def lines_of(path: Path, kind: str, *, torn: bool = False) -> list[dict[str, Any]]:
    """The records of a file of JSON lines, the first of which names the format `kind`.

    With `torn`, a broken last line is passed over.  Raises InputError, naming the file, for any other.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read result file {path} ({error}): check the path") from error
    if not lines or kind not in lines[0]:
        raise InputError(f"{path} is no result file of format {kind!r}: give one that is")
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            if not (torn and 1 < number == len(lines)):
                raise InputError(f"result file {path} is truncated, it has a broken line: {AGAIN}") from error
    if not all(isinstance(record, dict) for record in records):
        raise InputError(f"result file {path} is damaged, a line holds no record: {AGAIN}")
    if (found := records[0].get("format")) != kind:
        raise InputError(f"{path} is of format {found!r}, not {kind!r}: {AGAIN}")
    return records
