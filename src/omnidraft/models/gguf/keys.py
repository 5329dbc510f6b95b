"""The keys of a file's architecture, each of which is asked for, known to be harmless, or refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omnidraft.errors import ModelError

SIZES, ATTENTION, ROTATION, SCALES = "sizes", "attention", "rotation", "scales"  # groups of keys
TOKENIZER, FILE = "tokenizer", "file"
FILE_KEYS = (
    "general.architecture",
    "general.type",
    "general.alignment",
    "split.no",
    "split.count",
    "split.tensors.count",
)
BY_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")  # which may be arrays
# keys that change nothing in what a model computes
HARMLESS = (
    "vocab_size",  # the embedding's rows are counted
    "tensor_data_layout",
    "pooling_type",
    "rope.scaling.finetuned",
    "attention.layer_norm_epsilon",  # of the kind of norm that the architecture does not have
    "attention.layer_norm_rms_epsilon",
    "use_parallel_residual",  # older converters wrote it for every model: the architecture says which it is
    "rope.scaling.yarn_attn_factor",  # what follows from the other keys is taken, as in llama.cpp
    # converters write these for all models of a family; without such layers there are no such tensors
    "ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.inner_size", "ssm.time_step_rank",
    "expert_shared_feed_forward_length",
)  # fmt: skip
# keys whose feature no supported architecture has, by the value that says that it is not used
UNUSED: Mapping[str, Any] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "attention.scale": 0,
    "attention.temperature_scale": 0,
    "attn_logit_softcapping": 0,
    "embedding_scale": 0,
    "expert_count": 0,
    "expert_group_count": 0,
    "expert_group_used_count": 0,
    "expert_shared_count": 0,
    "expert_used_count": 0,
    "final_logit_softcapping": 0,
    "logit_scale": 0,
    "nextn_predict_layers": 0,
    "residual_scale": 0,
    "rope.scaling.alpha": 0,
}


@dataclass(frozen=True)
class Dialect:
    """What a converter writes otherwise than that of llama.cpp; keys without the architecture's name."""

    names: Mapping[str, str] = field(default_factory=dict)  # further ones of keys
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of keys that it leaves out
    unread: tuple[str, ...] = ()  # beginnings of keys that are of no use to a model of text


@dataclass(frozen=True)
class KeyReport:
    """Names of the keys of a file, by use."""

    architecture: str
    honoured: Mapping[str, tuple[str, ...]]  # by group; those of the tokenizer are the tokenizer's
    harmless: tuple[str, ...]


class Keys:
    """The keys of the architecture; what is asked for is noted.  Raises ModelError for values out of range."""

    def __init__(
        self, file: str, metadata: Mapping[str, Any], architecture: str, dialect: Dialect | None = None
    ) -> None:
        self.file, self.architecture, self._dialect = file, architecture, dialect or Dialect()
        self._metadata = metadata
        self._asked: dict[str, str] = {}  # group by full name

    def full(self, key: str) -> str:
        """The name of a key in the file."""
        return f"{self.architecture}.{key}"

    def value(self, key: str, group: str) -> Any:
        """The value of a key, under whichever of its names; None where neither the file nor its dialect has one."""
        names = self._names(key)
        self._asked.update((name, group) for name in names if name not in self._asked)
        values = [self._metadata[name] for name in names if name in self._metadata]
        if any(value != values[0] for value in values):
            raise self.refused(key, f"{names[-1]} says otherwise")
        return values[0] if values else self._dialect.defaults.get(key)

    def _names(self, key: str) -> list[str]:
        """The names that a key may have in the file."""
        further = self._dialect.names.get(key)
        return [self.full(each) for each in (key, further) if each is not None]

    def whole(self, key: str, group: str, default: int | None = None) -> int:
        """A count, at least 1: one number, or, of some keys, an equal one for each layer."""
        value = self.value(key, group)
        if isinstance(value, list) and key in BY_LAYER:
            if len(value) != (layers := self.whole("block_count", SIZES)):
                raise self.refused(key, f"the model has {layers} layers")
            if any(each != value[0] for each in value):
                raise self.refused(key, "layers of different sizes are not supported")
            value = value[0]
        value = default if value is None else value
        if value is None:
            raise self.missing(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
            raise self.refused(key, "a count from 1 on is needed")
        return value

    def real(self, key: str, group: str, default: float | None = None) -> float:
        """A finite number that is not negative."""
        value = self.value(key, group)
        value = default if value is None else value
        if value is None:
            raise self.missing(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
            raise self.refused(key, "a finite number from 0 on is needed")
        return float(value)

    def report(self) -> KeyReport:
        """Return all keys by use; raises ModelError for one of the architecture that was not read."""
        honoured: dict[str, list[str]] = {}
        harmless = []
        for name, value in self._metadata.items():
            key = name.removeprefix(f"{self.architecture}.")
            if name in self._asked:
                honoured.setdefault(self._asked[name], []).append(name)
            elif name in FILE_KEYS:
                honoured.setdefault(FILE, []).append(name)
            elif name.startswith("tokenizer."):
                honoured.setdefault(TOKENIZER, []).append(name)
            elif key == name or self._is_harmless(key, value):
                harmless.append(name)
            else:
                raise self.refused(key, f"it is not supported for models of architecture {self.architecture}")
        groups = {group: tuple(sorted(names)) for group, names in honoured.items()}
        return KeyReport(self.architecture, groups, tuple(sorted(harmless)))

    def _is_harmless(self, key: str, value: Any) -> bool:
        return key in HARMLESS or key.startswith(self._dialect.unread) or (key in UNUSED and value == UNUSED[key])

    def missing(self, key: str) -> ModelError:
        return ModelError(f"{self.file} lacks the key {self.full(key)}: get the complete file of a text model")

    def refused(self, key: str, reason: str) -> ModelError:
        name = next((each for each in self._names(key) if each in self._metadata), self.full(key))
        value = self._metadata.get(name)
        shown = f"an array of {len(value)}" if isinstance(value, list) else repr(value)
        return ModelError(f"{self.file} has {name} = {shown} ({reason}): use another model")
