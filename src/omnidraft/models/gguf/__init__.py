"""GGUF files as models: the header, checked whole, and the weights, as they lie or as safetensors that are kept.

What needs PyTorch is imported when it is first used: a header is read without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnidraft.models.gguf.config import is_gguf, load_config, model_tensors, read_keys
    from omnidraft.models.gguf.conversion import clear, converted, kept, remove_old
    from omnidraft.models.gguf.keys import KeyReport
    from omnidraft.models.gguf.native_weights import held_bytes, weights_of
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
_PLACES = {
    "native_weights": ("held_bytes", "weights_of"),
    "config": ("is_gguf", "load_config", "model_tensors", "read_keys"),
    "conversion": ("clear", "converted", "kept", "remove_old"),
    "keys": ("KeyReport",),
    "tokenizer": ("load_tokenizer",),
}


def __getattr__(name: str) -> Any:
    for place, names in _PLACES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{place}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
