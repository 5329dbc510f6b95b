"""How a model is computed: by the native step, by `transformers`, or not yet; of a GGUF file by its header alone.

Nothing of this takes PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from omnidraft.errors import ModelError
from omnidraft.models.families import BY_TYPE, Family, Obstacle, unknown_family
from omnidraft.models.gguf.architectures import Described, describe
from omnidraft.models.gguf.header import QUANTIZATIONS, Header, read_part
from omnidraft.models.gguf.keys import KeyReport

NATIVE, TRANSFORMERS, REFUSED = "native", "transformers", "not yet"


@dataclass(frozen=True, kw_only=True)
class Step:
    """What makes a forward pass of a model on a CPU, in 8 bits at most where it is native, and why nothing faster."""

    how: str
    family: str | None  # of those that the native step computes
    code: str | None  # of the reason
    field: str | None  # of the config
    reason: str | None  # a phrase


@dataclass(frozen=True, kw_only=True)
class HeaderFigures:
    """What a header says; figures are None where it is refused."""

    name: str
    architecture: str
    step: Step
    layers: int | None
    hidden: int | None
    heads: int | None
    key_heads: int | None
    vocabulary: int | None
    context: int | None
    weights: dict[str, int]  # bytes by kind
    keys: KeyReport | None


def step_of(family: Family | None, obstacle: Obstacle | None) -> Step:
    """The step of a model that `transformers` takes, too."""
    name = None if family is None else family.name
    if obstacle is None:
        return Step(how=NATIVE, family=name, code=None, field=None, reason=None)
    return Step(how=TRANSFORMERS, family=name, code=obstacle.code, field=obstacle.field, reason=obstacle.reason)


def refused(reason: str) -> Step:
    """The step of a model that is not taken."""
    return Step(how=REFUSED, family=None, code="refused", field=None, reason=reason)


def inspect_header(path: Path) -> HeaderFigures:
    """Read the header of a GGUF file, which may be cut behind it; raises ModelError for one that is damaged."""
    try:
        header = read_part(path, cut=True)
    except OSError as error:
        raise ModelError(f"cannot read {path} ({error}): give a GGUF file") from error
    try:
        described = describe(header)
    except ModelError as error:
        return _figures(header, refused(str(error)), None)
    family = BY_TYPE.get(described.config["model_type"])
    return _figures(header, step_of(family, _obstacle(family, described)), described)


def _obstacle(family: Family | None, described: Described) -> Obstacle | None:
    if family is None:
        return unknown_family(described.keys.architecture, described.config["model_type"])
    return family.obstacle(SimpleNamespace(**described.config))


def _figures(header: Header, step: Step, described: Described | None) -> HeaderFigures:
    config = {} if described is None else described.config
    weights: dict[str, int] = {}
    for info in header.tensors.values():
        kind = QUANTIZATIONS[info.quantization][0]
        weights[kind] = weights.get(kind, 0) + info.nbytes
    return HeaderFigures(
        name=header.name,
        architecture=str(header.metadata.get("general.architecture", "")),
        step=step,
        layers=config.get("num_hidden_layers"),
        hidden=config.get("hidden_size"),
        heads=config.get("num_attention_heads"),
        key_heads=config.get("num_key_value_heads"),
        vocabulary=config.get("vocab_size"),
        context=config.get("max_position_embeddings"),
        weights=dict(sorted(weights.items(), key=lambda item: -item[1])),
        keys=None if described is None else described.keys,
    )
