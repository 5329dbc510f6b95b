"""The implementation that computes a model: the native step, `transformers`, or none; and GGUF headers.

PyTorch is not imported.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

from omnidraft.errors import ModelError
from omnidraft.models.families import BY_TYPE, Family, UnsupportedReason, unknown_family
from omnidraft.models.gguf.architectures import describe
from omnidraft.models.gguf.header import QUANTIZATIONS
from omnidraft.models.gguf.keys import KeyReport
from omnidraft.models.gguf.split_files import read_what_is_there
from omnidraft.models.readable import check_readable

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
    """Contents of a GGUF header, or those of all shards; figures are None if the file is refused."""

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
    first_of: int | None  # shards, of which the others are missing
    keys: KeyReport | None


def step_of(family: Family | None, unsupported: UnsupportedReason | None) -> StepReport:
    """The step of a model that `transformers` supports; native where nothing in it is unsupported."""
    name = None if family is None else family.name
    if unsupported is None:
        return StepReport(how=NATIVE, family=name)
    return StepReport(how=TRANSFORMERS, family=name, **asdict(unsupported))


def inspect_header(path: Path) -> HeaderFigures:
    """Read the header of a GGUF file, which may be truncated after it.

    All shards are read where they are there, else the first alone.  Raises ModelError for another, and a damaged file.
    """
    check_readable(path)
    try:
        header = read_what_is_there(path)
    except OSError as error:
        raise ModelError(f"cannot read {path} ({error}): give a GGUF file") from error
    described = None
    try:
        described = describe(header)
        config = described.config
        family = BY_TYPE.get(config["model_type"])
        if family is None:
            unsupported: UnsupportedReason | None = unknown_family(described.keys.architecture, config["model_type"])
        else:
            unsupported = family.unsupported_reason(SimpleNamespace(**config))
        step = step_of(family, unsupported)
    except ModelError as error:
        config, step = {}, StepReport(how=REFUSED, code="refused", reason=str(error))
    weights: Counter[str] = Counter()
    for name, info in header.tensors.items():
        if described is None or name not in described.consumed:
            weights[QUANTIZATIONS[info.quantization][0]] += info.nbytes
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
        weights=dict(weights.most_common()),
        first_of=None if header.whole else header.metadata["split.count"],
        keys=None if described is None else described.keys,
    )
