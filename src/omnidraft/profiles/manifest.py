"""What a profile says about itself: whom it belongs to, how it learned, and the checksums of its files."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from omnidraft.errors import ProfileError

FORMAT = 1  # raised whenever an older version could not read what is written
FILES = ("adapter.safetensors", "ngrams.safetensors")
LONGEST_NAME = 200
LARGEST = 2**63
Setting = str | int | float | None
_HASH = re.compile(r"[0-9a-f]{64}")
_FIELD = re.compile(r"[a-z][a-z0-9_]{0,39}")
_WORD = re.compile(r"[A-Za-z0-9+._-]{1,40}")  # the name of a choice; no sentence fits
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_TENSOR = re.compile(r"[A-Za-z0-9._-]{1,200}")


def digest(data: bytes) -> str:
    """The SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Key:
    """Whom a profile belongs to; hashes are SHA-256 in hexadecimal.  Raises ProfileError."""

    drafter: str  # the name of a model, such as JackFram/llama-68m, or of its folder
    target: str
    tokenizers: str  # hash of the pair of tokenizers
    weights: str  # hash of the drafter's weights before learning

    def __post_init__(self) -> None:
        for role in ("drafter", "target"):
            name = getattr(self, role)
            if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
                raise ProfileError(f"{role} is {name!r}; it must be a name of 1 to {LONGEST_NAME} printable characters")
        for field in ("tokenizers", "weights"):
            value = getattr(self, field)
            if not _matches(_HASH, value):
                raise ProfileError(f"{field} is {value!r}; it must be a SHA-256 of 64 hexadecimal digits")

    @property
    def place(self) -> tuple[str, str]:
        """The two folders of a profile in a store, `drafter` and `target-hash`.

        The hash tells apart what looks the same once it is safe for file systems, or differs in case alone.
        """
        identity = digest(json.dumps([self.drafter, self.target, self.tokenizers]).encode())
        return folder_name(self.drafter), f"{folder_name(self.target)}-{identity[:12]}"


def folder_name(name: str) -> str:
    """A model's name as file systems take it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "--", name)[:60].strip(".-") or "unnamed"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`.  Raises ProfileError for what may not be in it."""

    key: Key
    learning: Mapping[str, Setting]
    counters: Mapping[str, int | float]
    saved: str  # UTC, such as 2026-01-31T08:15:00Z
    files: Mapping[str, str]  # SHA-256 by name

    def __post_init__(self) -> None:
        check_fields(self.learning, self.counters)
        if not _matches(_TIME, self.saved):
            raise ProfileError(f"saved is {self.saved!r}; it must be a time such as 2026-01-31T08:15:00Z")
        files: object = self.files
        good = isinstance(files, Mapping) and sorted(files) == sorted(FILES)
        if not good or not all(_matches(_HASH, value) for value in self.files.values()):
            raise ProfileError(f"files are {self.files!r}; they must be the SHA-256 of {' and '.join(FILES)}")

    def encode(self) -> bytes:
        """The bytes of `manifest.json`."""
        return (json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n").encode()


class LaterFormatError(ProfileError):
    """A later version of OmniDraft wrote this."""


def parse(data: bytes) -> Manifest:
    """Read a manifest; raises LaterFormatError, and ValueError for what is none."""
    try:
        found: Any = json.loads(data)
        number = found["format"]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise ProfileError("manifest.json cannot be read") from None
    if type(number) is not int or number < 1:
        raise ProfileError(f"its format is {number!r}; it must be {FORMAT}")
    if number > FORMAT:
        raise LaterFormatError(f"its format is {number}, and this version reads {FORMAT}")
    del found["format"]
    try:
        return Manifest(**{**found, "key": Key(**found["key"])})
    except (TypeError, LookupError):
        raise ProfileError("manifest.json has other fields than it must have") from None


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


def check_tensor_name(name: object) -> None:
    """Raise ProfileError unless this names a tensor as modules do."""
    if not _matches(_TENSOR, name):
        raise ProfileError(f"a tensor is called {name!r}; use up to 200 letters, digits, dots, dashes and _")


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
