"""GGUF files as models: the header, checked whole, and the weights, as they lie or as safetensors that are kept."""

from omnidraft.models.gguf.blocks import held_bytes, weights_of
from omnidraft.models.gguf.config import is_gguf, load_config, model_tensors, read_keys
from omnidraft.models.gguf.conversion import clear, converted, kept, remove_old
from omnidraft.models.gguf.keys import KeyReport
from omnidraft.models.gguf.tokenizer import load_tokenizer

__all__ = [
    "KeyReport",
    "clear",
    "converted",
    "held_bytes",
    "is_gguf",
    "kept",
    "load_config",
    "load_tokenizer",
    "model_tensors",
    "read_keys",
    "remove_old",
    "weights_of",
]
