"""Drafters in folders as `make-drafter` writes them, read without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from omnidraft.models.families import BY_LAYER, BY_TYPE
from omnidraft.models.fast_tokenizer import FastTokenizer, Name
from omnidraft.models.skeleton import Skeleton, skeleton_of

SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings", "rope_parameters", "tie_word_embeddings",
)  # fmt: skip
CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")  # that take a tokenizer.json as it is
NAMES: tuple[Name, ...] = ("bos_token", "eos_token", "unk_token", "pad_token")
# keys of tokenizer_config.json that change nothing
HARMLESS = {"backend", "tokenizer_class", "is_local", "local_files_only", "model_max_length", "padding_side"}
OTHERS = ("adapter_config.json", "chat_template.jinja", "chat_template.json", "added_tokens.json")


def read_skeleton(folder: Path) -> Skeleton | None:
    """The skeleton by config.json, None where that does not say all that the native step needs."""
    config = _object(folder / "config.json")
    family = BY_TYPE.get(str(config.get("model_type")))
    if family is None or any((folder / name).exists() for name in OTHERS):
        return None
    needed = {*SIZES, family.epsilon, family.activation} | ({"layer_types"} if family.window == BY_LAYER else set())
    if not needed <= config.keys() or "quantization_config" in config or "rope_scaling" in config:
        return None
    return skeleton_of({**config, "dtype": None}, _object(folder / "generation_config.json"))


def read_tokenizer(folder: Path) -> FastTokenizer | None:
    """The tokenizer by its two files, None where transformers would change something."""
    config, path = _object(folder / "tokenizer_config.json"), folder / "tokenizer.json"
    special: dict[Name, Any] = {name: config[name] for name in NAMES if config.get(name) is not None}
    if config.get("tokenizer_class") not in CLASSES or not config.keys() <= {*HARMLESS, *NAMES} or not path.is_file():
        return None
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception:  # noqa: BLE001  of no type of its own; whoever reads the folder in full says what is wrong
        return None
    backend.no_padding()
    backend.no_truncation()
    known = all(isinstance(each, str) and backend.token_to_id(each) is not None for each in special.values())
    return FastTokenizer(backend, special) if known else None


def _object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty where there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
