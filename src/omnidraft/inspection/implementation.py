"""The implementation that computes a model: the native step, `transformers`, or none; and GGUF headers.

PyTorch is not imported.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

from omnidraft.errors import ModelError
from omnidraft.models.families import BY_TYPE, Family, UnsupportedReason, unknown_family
from omnidraft.models.gguf.architectures import Described, describe
from omnidraft.models.gguf.header import QUANTIZATIONS, Header, read_part
from omnidraft.models.gguf.keys import KeyReport

NATIVE, TRANSFORMERS, REFUSED = "native", "transformers", "not yet"


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The implementation of a model's forward pass on a CPU, and the reason if it is not the native one."""

    how: str
    family: str | None = None  # the native step's name for the architecture
    code: str | None = None  # of the reason
    field: str | None = None  # of the config
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class HeaderFigures:
    """Contents of a GGUF header; figures are None if the file is refused."""

    name: str
    architecture: str
    step: StepReport
    layers: int | None
    hidden: int | None
    heads: int | None
    key_heads: int | None
    vocabulary: int | None
    context: int | None
    weights: dict[str, int]  # bytes by quantization
    keys: KeyReport | None


def step_of(family: Family | None, unsupported: UnsupportedReason | None) -> StepReport:
    """The step of a model that `transformers` supports; native where nothing in it is unsupported."""
    name = None if family is None else family.name
    if unsupported is None:
        return StepReport(how=NATIVE, family=name)
    return StepReport(how=TRANSFORMERS, family=name, **asdict(unsupported))


def inspect_header(path: Path) -> HeaderFigures:
    """Read the header of a GGUF file, which may be truncated after it; raises ModelError for a damaged one."""
    try:
        header = read_part(path, cut=True)
    except OSError as error:
        raise ModelError(f"cannot read {path} ({error}): give a GGUF file") from error
    try:
        described = describe(header)
    except ModelError as error:
        return _figures(header, StepReport(how=REFUSED, code="refused", reason=str(error)), None)
    family = BY_TYPE.get(described.config["model_type"])
    return _figures(header, step_of(family, _unsupported_reason(family, described)), described)


def _unsupported_reason(family: Family | None, described: Described) -> UnsupportedReason | None:
    if family is None:
        return unknown_family(described.keys.architecture, described.config["model_type"])
    return family.unsupported_reason(SimpleNamespace(**described.config))


def _figures(header: Header, step: StepReport, described: Described | None) -> HeaderFigures:
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
