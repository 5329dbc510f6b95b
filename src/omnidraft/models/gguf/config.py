"""The config of a GGUF file's model, and the check of its tensors, by the header alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnidraft.models.gguf.architectures import describe
from omnidraft.models.gguf.file_errors import reading
from omnidraft.models.gguf.keys import KeyReport
from omnidraft.models.gguf.split_files import read_header
from omnidraft.models.gguf.tensors import Source, sources
from omnidraft.models.gguf.tokenizer import end_tokens

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

SUFFIX = ".gguf"


def is_gguf(name: str | Path) -> bool:
    """True for the name of an existing file with the suffix of GGUF files."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111  that of Path raises where there is no such user
    return path.suffix.lower() == SUFFIX and path.is_file()


def load_config(path: Path) -> tuple[PreTrainedConfig, GenerationConfig]:
    """The config of a file's model and its end tokens, by the header alone; raises ModelError."""
    from transformers import AutoConfig, GenerationConfig

    with reading(path):
        header = read_header(path)
        values = dict(describe(header).config)
        values["bos_token_id"] = header.metadata.get("tokenizer.ggml.bos_token_id")
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        config.eos_token_id = end_tokens(header.metadata)
        return config, GenerationConfig(eos_token_id=config.eos_token_id, bos_token_id=config.bos_token_id)


def read_keys(path: Path) -> KeyReport:
    """Return the keys of a file by use; raises ModelError for one that is not supported."""
    with reading(path):
        return describe(read_header(path)).keys


def model_tensors(path: Path, skeleton: PreTrainedModel) -> list[Source]:
    """Return the source of each tensor of the model; raises ModelError unless the file has exactly those."""
    with reading(path):
        header = read_header(path)
        shapes = {name: tuple(tensor.shape) for name, tensor in skeleton.state_dict().items()}
        return sources(header, describe(header), shapes)


def make_skeleton(path: Path) -> PreTrainedModel:
    """The file's model on the meta device, without its weights."""
    import torch
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    with reading(path), torch.device("meta"):
        skeleton: PreTrainedModel = auto.from_config(load_config(path)[0])
        return skeleton
