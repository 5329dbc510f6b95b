"""A profile in memory, and as the bytes of one safetensors file, whose header holds the manifest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from omnidraft import systems
from omnidraft.errors import ProfileError

if TYPE_CHECKING:
    import torch

PROFILE_FORMAT = 4  # raised whenever an older version could not read what is written
ANSWER_TOKENS = "answer_tokens"  # the counter of tokens kept of earlier answers
MANIFEST = "omnidraft_profile"  # its name in the header
METADATA = "__metadata__"  # where a safetensors header holds what is no tensor
SIZE = 8  # bytes at the beginning of a safetensors file that give the length of its header
GROUPS = ("weights", "ngrams", "measurements", "answers")  # fields of a profile, and prefixes of its tensors' names
MAX_NUMBER = 2**63
MAX_NAME = 200  # characters of a model's name
Array = NDArray[Any]
Setting = str | int | float | None
_MODEL = re.compile(rf".{{1,{MAX_NAME}}}")
_HASH = re.compile(r"[0-9a-f]{64}")
_FIELD = re.compile(r"[a-z][a-z0-9_]{0,39}")
_WORD = re.compile(r"[A-Za-z0-9+._-]{1,40}")  # the name of a choice; no sentence fits
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_TENSOR = re.compile(r"[A-Za-z0-9._-]{1,200}")


class LaterFormatError(ProfileError):
    """A later version of OmniDraft wrote this profile."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """The pair of models that a profile belongs to; hashes are SHA-256 in hexadecimal.  Raises ProfileError."""

    drafter: str  # hub id, such as JackFram/llama-68m, or name of the model's folder
    target: str
    tokenizers: str  # hash of the pair of tokenizers
    drafter_weights: str  # hash of the weights before learning; the same in every load dtype
    target_weights: str

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name not in ("drafter", "target"):
                _check(name, value, _HASH, "a SHA-256 of 64 hexadecimal digits")
            elif not (_matches(_MODEL, value) and value.isprintable()):
                raise ProfileError(f"{name} is {value!r}; it must be a name of 1 to {MAX_NAME} printable characters")

    @property
    def place(self) -> tuple[str, str]:
        """Folder and file name (without suffix) of the profile in a store, `drafter` and `target-hash`.

        The hash covers all fields, so that names which look alike once they are safe for file systems do not collide.
        """
        identity = hashlib.sha256(json.dumps(list(asdict(self).values())).encode()).hexdigest()
        return _file_name(self.drafter), f"{_file_name(self.target)}-{identity[:12]}"


def model_name(name: str) -> str:
    """A model's name as a key holds it: one that is too long, or not printable, ends with a hash of the whole."""
    if name.isprintable() and 0 < len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    printable = "".join(letter if letter.isprintable() else "?" for letter in name)
    return f"{printable[: MAX_NAME - 1 - len(digest)]}-{digest}"


def _file_name(name: str) -> str:
    return systems.file_name(re.sub(r"[^A-Za-z0-9._-]+", "--", name)[:60].strip(".-") or "unnamed")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of a profile in its file's header.

    It holds settings and numbers only: text that somebody typed fits nowhere, and raises ProfileError.
    """

    key: Key
    learning: Mapping[str, Setting]
    counters: Mapping[str, int | float]
    saved: str  # UTC, such as 2026-01-31T08:15:00Z

    def __post_init__(self) -> None:
        _check("saved", self.saved, _TIME, "a time such as 2026-01-31T08:15:00Z")
        for kind, fields in (("learning", self.learning), ("counters", self.counters)):
            if not isinstance(fields, Mapping):
                raise ProfileError(f"{kind} is {fields!r}; it must be a mapping")
            for name, value in fields.items():
                _check(f"a name in {kind}", name, _FIELD, "up to 40 of a-z, 0-9 and _")
                if kind == "learning" and (value is None or _matches(_WORD, value)):
                    continue
                if type(value) is bool or not isinstance(value, int | float) or not abs(value) < MAX_NUMBER:
                    allowed = "a number, a word of 40 characters or None" if kind == "learning" else "a finite number"
                    raise ProfileError(f"{kind} has {name} = {value!r}; it must be {allowed}")

    def encode(self) -> str:
        """Serialize to JSON."""
        return json.dumps({"format": PROFILE_FORMAT, **asdict(self)})

    @classmethod
    def decode(cls, data: bytes, size: int) -> Manifest:
        """Read the manifest in the header that `data` begins with, of a file of `size` bytes.

        Raises LaterFormatError, and ProfileError for anything that is not a manifest.
        """
        try:
            length = int.from_bytes(data[:SIZE], "little")
            header = json.loads(data[SIZE : SIZE + length])
            manifest: Any = json.loads(header[METADATA][MANIFEST])
            number = manifest.pop("format")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
            raise ProfileError("it has no manifest") from None
        if type(number) is int and number > PROFILE_FORMAT:
            raise LaterFormatError(f"its format is {number}, and this version reads {PROFILE_FORMAT}")
        if type(number) is not int or number != PROFILE_FORMAT:
            raise ProfileError(f"its format is {number!r}; it must be {PROFILE_FORMAT}")
        tensors = {name: each for name, each in header.items() if name != METADATA}
        if strange := [name for name in tensors if name.partition(".")[0] not in GROUPS]:
            raise ProfileError(f"its tensor {strange[0]!r} is no part of a profile")
        try:
            whole = SIZE + length + max((each["data_offsets"][1] for each in tensors.values()), default=0)
            if size != whole:
                raise ProfileError(f"it has {size} bytes; by its header it must have {whole}")
            return cls(**{**manifest, "key": Key(**manifest["key"])})
        except (TypeError, LookupError):
            raise ProfileError("its manifest has other fields than it must have") from None


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """Learned state of a pair: weights, n-gram records, measurements, and earlier answers where these are kept.

    An empty profile is that of a pair that has learned nothing yet.
    """

    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)  # the adapter and the acceptance head
    ngrams: Mapping[str, Array] = field(default_factory=dict)  # the n-gram cache; numbers or booleans
    measurements: Mapping[str, Array] = field(default_factory=dict)  # of the draft-length policy, by its name
    answers: Mapping[str, Array] = field(default_factory=dict)  # "drafter_tokens" of earlier answers, the oldest first
    learning: Mapping[str, Setting] = field(default_factory=dict)
    counters: Mapping[str, int | float] = field(default_factory=dict)

    def encode(self, key: Key) -> bytes:
        """Serialize to the bytes of a profile file, saved now.

        Raises ProfileError for anything but names, single words and numbers.
        """
        import torch
        from safetensors import torch as torch_format

        saved = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        manifest = Manifest(key=key, learning=dict(self.learning), counters=dict(self.counters), saved=saved)
        # safetensors refuses shared memory, and what is not contiguous
        tensors = {
            f"weights.{name}": weight.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, weight in self.weights.items()
        }
        for group in GROUPS[1:]:
            for name, array in getattr(self, group).items():
                if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
                    raise ProfileError(f"array {name} is no array of numbers or booleans: leave out what is text")
                tensors[f"{group}.{name}"] = torch.from_numpy(array.copy(order="C"))
        for name in tensors:
            _check("the name of a tensor", name, _TENSOR, "up to 200 letters, digits, dots, dashes and _")
        return torch_format.save(tensors, {MANIFEST: manifest.encode()})

    @classmethod
    def decode(cls, data: bytes) -> tuple[Key, Profile]:
        """Read the bytes of a profile file; raises ProfileError for anything that is not a whole one."""
        import torch
        from safetensors import torch as torch_format

        manifest = Manifest.decode(data, len(data))
        groups: dict[str, dict[str, torch.Tensor]] = {group: {} for group in GROUPS}
        try:
            for name, tensor in torch_format.load(data).items():
                group, _, key = name.partition(".")
                groups[group][key] = tensor
        except (SafetensorError, ValueError, LookupError, TypeError) as error:
            raise ProfileError(f"its tensors cannot be read ({error})") from error
        if any(tensor.dim() != 1 or tensor.dtype != torch.int32 for tensor in groups["answers"].values()):
            raise ProfileError("its earlier answers are no list of token ids")
        weights = groups.pop("weights")
        arrays = {
            group: {name: tensor.numpy() for name, tensor in tensors.items()} for group, tensors in groups.items()
        }
        return manifest.key, cls(weights=weights, learning=manifest.learning, counters=manifest.counters, **arrays)


def _check(what: str, value: object, pattern: re.Pattern[str], allowed: str) -> None:
    if not _matches(pattern, value):
        raise ProfileError(f"{what} is {value!r}; it must be {allowed}")


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
