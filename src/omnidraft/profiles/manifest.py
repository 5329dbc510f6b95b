"""The manifest of a profile: format version, models, learning settings, counters; and what may stand in it."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from omnidraft.errors import ProfileError

FORMAT = 2  # raised whenever an older version could not read what is written; 1 was a folder
LONGEST_NAME = 200
LARGEST = 2**63
Setting = str | int | float | None
_HASH = re.compile(r"[0-9a-f]{64}")
_FIELD = re.compile(r"[a-z][a-z0-9_]{0,39}")
_WORD = re.compile(r"[A-Za-z0-9+._-]{1,40}")  # the name of a choice; no sentence fits
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True, kw_only=True)
class Key:
    """The pair of models that a profile belongs to; hashes are SHA-256 in hexadecimal.  Raises ProfileError."""

    drafter: str  # hub id, such as JackFram/llama-68m, or name of the model's folder
    target: str
    tokenizers: str  # hash of the pair of tokenizers
    drafter_weights: str  # hash of the weights before learning; the same in every load dtype
    target_weights: str

    def __post_init__(self) -> None:
        for role in ("drafter", "target"):
            name = getattr(self, role)
            if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
                raise ProfileError(f"{role} is {name!r}; it must be a name of 1 to {LONGEST_NAME} printable characters")
        for field in ("tokenizers", "drafter_weights", "target_weights"):
            value = getattr(self, field)
            if not _matches(_HASH, value):
                raise ProfileError(f"{field} is {value!r}; it must be a SHA-256 of 64 hexadecimal digits")

    @property
    def place(self) -> tuple[str, str]:
        """Folder and file name (without suffix) of the profile in a store, `drafter` and `target-hash`.

        The hash covers all fields, so that names which look alike once they are safe for file systems do not collide.
        """
        identity = hashlib.sha256(json.dumps(list(asdict(self).values())).encode()).hexdigest()
        return _file_name(self.drafter), f"{_file_name(self.target)}-{identity[:12]}"


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "--", name)[:60].strip(".-") or "unnamed"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of a profile in its file's header.  Raises ProfileError for a value that may not be in it."""

    key: Key
    learning: Mapping[str, Setting]
    counters: Mapping[str, int | float]
    saved: str  # UTC, such as 2026-01-31T08:15:00Z

    def __post_init__(self) -> None:
        check_fields(self.learning, self.counters)
        if not _matches(_TIME, self.saved):
            raise ProfileError(f"saved is {self.saved!r}; it must be a time such as 2026-01-31T08:15:00Z")

    def encode(self) -> str:
        """Serialize to JSON."""
        return json.dumps({"format": FORMAT, **asdict(self)})


class LaterFormatError(ProfileError):
    """A later version of OmniDraft wrote this profile."""


def parse(text: object) -> Manifest:
    """Read a manifest; raises LaterFormatError, and ProfileError for anything that is not a manifest."""
    try:
        found: Any = json.loads(text)  # type: ignore[arg-type]
        number = found["format"]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise ProfileError("its manifest cannot be read") from None
    if type(number) is not int or number < 1:
        raise ProfileError(f"its format is {number!r}; it must be {FORMAT}")
    if number > FORMAT:
        raise LaterFormatError(f"its format is {number}, and this version reads {FORMAT}")
    del found["format"]
    try:
        return Manifest(**{**found, "key": Key(**found["key"])})
    except (TypeError, LookupError):
        raise ProfileError("its manifest has other fields than it must have") from None


def check_fields(learning: object, counters: object) -> None:
    """Raise ProfileError unless these are settings and numbers: no text that somebody typed fits in either."""
    for kind, fields in (("learning", learning), ("counters", counters)):
        if not isinstance(fields, Mapping):
            raise ProfileError(f"{kind} is {fields!r}; it must be a mapping")
        for name, value in fields.items():
            if not _matches(_FIELD, name):
                raise ProfileError(f"{kind} has the field {name!r}; use up to 40 of a-z, 0-9 and _")
            if kind == "learning" and (value is None or _matches(_WORD, value)):
                continue
            if type(value) not in (int, float) or not abs(value) < LARGEST or not math.isfinite(value):
                allowed = "a number, a word of 40 characters or None" if kind == "learning" else "a finite number"
                raise ProfileError(f"{kind} has {name} = {value!r}; it must be {allowed}")


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
