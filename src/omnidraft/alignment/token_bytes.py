"""Tokenizer backends taken apart, and the bytes that their decoders make of tokens."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer
from tokenizers.models import BPE

from omnidraft.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import decoders
    from tokenizers.models import Model
    from tokenizers.pre_tokenizers import PreTokenizer
    from transformers import PreTrainedTokenizerBase

SUPPORTED = "use a model with a byte-level or SentencePiece tokenizer"


@dataclass(frozen=True)
class TokenReader:
    """Rules by which a backend's decoder turns a token into bytes."""

    space: str = ""  # the character that stands for a space
    byte_tokens: bool = False  # <0xNN>
    byte_level: bool = False  # every byte has an alias character

    def read(self, word: str) -> bytes:
        """The bytes of a token of the model."""
        if self.byte_level:
            try:
                return word.translate(_BYTES_OF_ALIASES).encode("latin-1")
            except UnicodeEncodeError:  # decoders take a word with any other character literally
                return word.encode()
        if self.byte_tokens and (match := _BYTE_TOKEN.fullmatch(word)):
            return bytes.fromhex(match[1])
        return (word.replace(self.space, " ") if self.space else word).encode()

    def read_added(self, content: str) -> bytes:
        """The bytes of an added token that is text: as decoded, or its content where decoding breaks a character.

        Byte-level decoders take "é" for the alias of a byte, which is half a character.
        """
        data = self.read(content)
        return data if is_text(data) else content.encode()


def is_text(data: bytes) -> bool:
    """True if `data` is valid UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Return the backend of a fast tokenizer; raises ModelError for any other."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ModelError(f"{type(tokenizer).__name__} has no fast backend: use a model with a tokenizer.json")
    return backend


def reader_of(backend: Tokenizer) -> TokenReader:
    """Read the rules off a tokenizer's decoder; raises ModelError where tokens do not simply concatenate to text."""
    prefix = getattr(backend.model, "continuing_subword_prefix", None)
    suffix = getattr(backend.model, "end_of_word_suffix", None)
    if prefix or suffix:
        raise ModelError(f"tokens marked with {prefix or suffix!r} do not concatenate to text: {SUPPORTED}")
    features: dict[str, Any] = {}
    steps = steps_of(state_of(backend.decoder), "decoders") if backend.decoder is not None else [{"type": "none"}]
    for at, step in enumerate(steps):
        match step:
            case {"type": "ByteLevel"}:
                features["byte_level"] = True
            case {"type": "ByteFallback"}:
                features["byte_tokens"] = True
            case {"type": "Replace", "pattern": {"String": str(space)}, "content": " "} if len(space) == 1:
                features["space"] = space
            case {"type": "Metaspace", "replacement": str(space)}:
                features["space"] = space
            case {"type": "Fuse"}:
                pass
            case {"type": "Strip"} if {"type": "Fuse"} in steps[:at]:
                pass  # after Fuse it only affects the ends of the whole output
            case _:
                raise ModelError(f"decoder step {step['type']!r} of the tokenizer is not supported: {SUPPORTED}")
    if features.keys() > {"byte_level"}:
        raise ModelError(f"the tokenizer's decoder mixes {', '.join(sorted(features))}, one is allowed: {SUPPORTED}")
    return TokenReader(**features)


def assemble(**components: dict[str, Any]) -> Tokenizer:
    """Build a backend from the states of its components."""
    return Tokenizer.from_str(json.dumps(json.loads(Tokenizer(BPE()).to_str()) | components))


def state_of(component: decoders.Decoder | Model | PreTokenizer) -> dict[str, Any]:
    """Return the JSON state of a component of a backend."""
    state: dict[str, Any] = json.loads(component.__getstate__())
    return state


def steps_of(state: dict[str, Any], inner: str) -> list[dict[str, Any]]:
    """Flatten a component and the sequences in it; the steps are the dicts of `state` themselves."""
    if state["type"] != "Sequence":
        return [state]
    return [step for nested in state[inner] for step in steps_of(nested, inner)]


def _byte_aliases() -> tuple[str, ...]:
    """The printable characters that stand for the 256 bytes in byte-level tokenizers."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = itertools.count(0x100)
    return tuple(chr(byte if byte in plain else next(moved)) for byte in range(256))


_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
ALIASES = _byte_aliases()
# characters below 256 that are no alias must not pass for Latin-1
_BYTES_OF_ALIASES = dict.fromkeys(range(256), "\ufffd") | {ord(alias): chr(byte) for byte, alias in enumerate(ALIASES)}
