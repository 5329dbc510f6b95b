"""Files of Gemma 3 by Ollama's own converter: other names of keys, keys left out, and the part that reads pictures.

Ollama has no name for the converter in a file, so it is known by what it writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from omnidraft.models.gguf.header import EMBEDDING, Header
from omnidraft.models.gguf.keys import Dialect
from omnidraft.models.gguf.token_kinds import NORMAL, PREFIX

GEMMA3 = "gemma3"
NAMES = {"rope.freq_base": "rope.global.freq_base", "rope.freq_base_swa": "rope.local.freq_base"}
EPSILON = "attention.layer_norm_rms_epsilon"
FLAGS = ("add_padding_token", "add_unknown_token")  # of the tokenizer
KEYS_OF_PICTURES, TENSORS_OF_PICTURES = ("mm.", "vision."), ("mm.", "v.")
BY_TOKEN = ("tokens", "scores", "token_type")  # arrays of the tokenizer
LONG = 131072  # positions: models of so many have a rotation that is scaled
SCALE = 8.0


def dialect_of(header: Header) -> Dialect:
    """The names and values by which keys of Gemma 3 are read."""
    defaults: dict[str, Any] = {EPSILON: 1e-6, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4}
    context = header.metadata.get(f"{GEMMA3}.context_length")
    scaled = any(key.startswith(f"{GEMMA3}.rope.scal") for key in header.metadata)
    if isinstance(context, int) and context >= LONG and not scaled and _is_of_ollama(header):
        defaults |= {"rope.scaling.type": "linear", "rope.scaling.factor": SCALE}
    return Dialect(NAMES, defaults, KEYS_OF_PICTURES)


def of_pictures(header: Header) -> frozenset[str]:
    """Names of the tensors that read pictures."""
    return frozenset(name for name in header.tensors if name.startswith(TENSORS_OF_PICTURES))


def without_rowless(header: Header) -> Header:
    """The header without the special tokens at its end for which a model of Gemma 3 has no row."""
    info, metadata = header.tensors.get(EMBEDDING), header.metadata
    tokens, kinds = (metadata.get(PREFIX + key) for key in ("tokens", "token_type"))
    if metadata.get("general.architecture") != GEMMA3 or info is None or not isinstance(tokens, list):
        return header
    rows = info.shape[0]
    if len(tokens) <= rows or not isinstance(kinds, list) or NORMAL in kinds[rows:]:
        return header
    arrays = {key: metadata.get(PREFIX + key) for key in BY_TOKEN}
    kept = {PREFIX + key: value[:rows] for key, value in arrays.items() if isinstance(value, list)}
    return replace(header, metadata={**metadata, **kept})


def _is_of_ollama(header: Header) -> bool:
    """True for a file that has something which llama.cpp's converter never writes, or lacks what it always does."""
    keys: Mapping[str, Any] = header.metadata
    written = (*(f"{GEMMA3}.{name}" for name in NAMES.values()), *(PREFIX + flag for flag in FLAGS))
    of_pictures_too = any(key.startswith(tuple(f"{GEMMA3}.{each}" for each in KEYS_OF_PICTURES)) for key in keys)
    return any(key in keys for key in written) or of_pictures_too or f"{GEMMA3}.{EPSILON}" not in keys
