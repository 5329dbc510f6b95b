"""The config of a GGUF file's model, and the check of its tensors, by the header alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnidraft.models.gguf.architectures import describe
from omnidraft.models.gguf.keys import KeyReport
from omnidraft.models.gguf.not_gguf import begins_as_gguf
from omnidraft.models.gguf.split_files import read_header, reading
from omnidraft.models.gguf.tensors import Source, sources
from omnidraft.models.gguf.tokenizer import end_tokens
from omnidraft.models.skeleton import Skeleton, skeleton_of

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

SUFFIX = ".gguf"
# converters copy these from a model's generation config; by their names there
SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
    "mirostat": "mirostat",
    "xtc_probability": "xtc_probability",
}


def is_gguf(name: str | Path) -> bool:
    """True for the name of an existing file that has the suffix of GGUF files, or begins as they do.

    Stores that name files by their hash, as those of Ollama and of the hub, leave out the suffix.
    """
    path = Path(os.path.expanduser(name))  # noqa: PTH111  that of Path raises where there is no such user
    # is_file of Path raises where it may not be looked at
    return os.path.isfile(path) and (  # noqa: PTH113
        path.suffix.lower() == SUFFIX or begins_as_gguf(path)
    )


def load_config(path: Path) -> tuple[PreTrainedConfig, GenerationConfig]:
    """The config of a file's model, and its end tokens and sampling, by the header alone; raises ModelError."""
    from transformers import AutoConfig, GenerationConfig

    with reading(path):
        values, generation = _values(path)
        ends = values.pop("eos_token_id")
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        config.eos_token_id = ends
        return config, GenerationConfig(**generation)


def load_light_skeleton(path: Path) -> Skeleton | None:
    """The skeleton of a file's model without its class of transformers, by the header alone; raises ModelError.

    None for a model that is of no family of the native step.
    """
    with reading(path):
        return skeleton_of(*_values(path))


def _values(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of the config and of the generation config."""
    header = read_header(path)
    values = dict(describe(header).config)
    ends = {
        "eos_token_id": end_tokens(header.metadata),
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
    }
    return values | ends, _sampling(header.metadata) | ends


def _sampling(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a generation config by the keys `general.sampling.*`; they are for sampling unless temp is 0."""
    asked: dict[str, Any] = {}
    for key, option in SAMPLING.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, int | float):
            asked[option] = value if isinstance(value, int) else float(f"{value:.6g}")  # 0.9 of float32 is meant as 0.9
    sampled = asked.get("temperature", 1) > 0 and not asked.keys().isdisjoint(
        ("temperature", "top_k", "top_p", "min_p")
    )
    return {**asked, "do_sample": sampled} if asked else {}


def read_keys(path: Path) -> KeyReport:
    """Return the keys of a file by use; raises ModelError for one that is not supported."""
    with reading(path):
        return describe(read_header(path)).keys


def model_tensors(path: Path, skeleton: PreTrainedModel | Skeleton) -> list[Source]:
    """Return the source of each tensor of the model; raises ModelError unless the file has exactly those."""
    with reading(path):
        header = read_header(path)
        return sources(header, describe(header), Skeleton.of(skeleton).shapes)
