"""GGUF files as models: the header, checked whole, and the weights as safetensors, dequantized once and kept."""

from omnidraft.models.gguf.config import is_gguf, load_config, model_tensors, read_keys
from omnidraft.models.gguf.conversion import clear, converted, kept
from omnidraft.models.gguf.keys import KeyReport
from omnidraft.models.gguf.tokenizer import load_tokenizer

__all__ = [
    "KeyReport",
    "clear",
    "converted",
    "is_gguf",
    "kept",
    "load_config",
    "load_tokenizer",
    "model_tensors",
    "read_keys",
]
