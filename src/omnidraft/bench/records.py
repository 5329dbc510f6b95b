"""The results of a comparison, and the JSON file that holds them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omnidraft import storage
from omnidraft.errors import InputError

RESULTS_FORMAT = "omnidraft compare 3"
BASELINE = "generate"
METHODS = (BASELINE, "plain", "uad", "lookup", "intersection", "paper", "exact", "goodput")  # in the order of tables


@dataclass(frozen=True, kw_only=True)
class Run:
    """One timed answer, with counts over its rounds; how its time was spent is known of our own loop only."""

    repeat: int
    task: str
    prompt: int  # index within the task
    method: str
    tokens: int
    seconds: float
    identical: bool | None  # to the tokens of the baseline; None: sampled
    rounds: int
    drafted: int
    rounds_without_draft: int
    symbols: int
    symbols_accepted: int
    # seconds of the rounds after the first, which reads the prompt
    draft_s: float | None = None
    verify_s: float | None = None
    overhead_s: float | None = None  # acceptance, commit and the draft-length policy


@dataclass(kw_only=True)
class Results:
    """Results of one comparison."""

    setting: dict[str, Any]
    runs: list[Run] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)  # method -> reason

    def save(self, path: Path) -> None:
        """Write the file; raises OSError."""
        storage.replace_file(path, json.dumps({"format": RESULTS_FORMAT, **asdict(self)}).encode())


def read(path: Path) -> Results:
    """Read a result file; raises InputError for one that is none, or damaged."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read result file {path} ({error}): check the path") from error
    try:
        record = json.loads(text)
        if record["format"] == RESULTS_FORMAT:
            runs = [Run(**run) for run in record["runs"]]
            return Results(setting=record["setting"], runs=runs, unavailable=record["unavailable"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is no result file, or damaged ({error!r}): run the comparison again") from error
    raise InputError(f"{path} is of format {record['format']!r}, not {RESULTS_FORMAT!r}: run the comparison again")
