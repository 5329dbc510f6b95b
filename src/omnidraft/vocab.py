"""Tokenizers read as bytes: what every token id writes, and how given bytes are written in a tokenizer's own tokens."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from omnidraft.errors import ModelError

if TYPE_CHECKING:
    from tokenizers.decoders import Decoder
    from tokenizers.models import Model
    from tokenizers.pre_tokenizers import PreTokenizer
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Vocab:
    """One model's vocabulary, as bytes.

    `tokens` has one entry for each of the `size` rows of the model's logits; None stands for an id that writes nothing
    (special, unused or padded).  `eos` lists every id that ends a text, the tokenizer's own first.  `special` maps the
    ids of special added tokens to their content.  `fingerprint` (SHA-256, hex) covers everything that determines the
    bytes of a token, the merge rules, `size` and `eos`; normalizers are not part of it, because spelling ignores them.
    """

    tokens: tuple[bytes | None, ...]
    size: int
    bos: int | None
    eos: tuple[int, ...]
    special: dict[int, str]
    fingerprint: str


def read_vocab(tokenizer: PreTrainedTokenizerBase, size: int | None = None, eos: Sequence[int] = ()) -> Vocab:
    """Read the bytes of every token of `tokenizer`.

    `size` is the number of rows of the model's logits (default: just enough for the tokenizer); ids above the
    tokenizer's are padding, added tokens above `size` are dropped, because the model cannot emit them.  `eos` adds ids
    that end a text, as in a generation config.  Raises ModelError where the tokenizer has no fast backend, where its
    tokens do not concatenate to text, or where the model is too small for the tokenizer.
    """
    backend = _backend(tokenizer)
    decoder = _read_decoder(backend)
    words = backend.get_vocab(with_added_tokens=False)
    added = backend.get_added_tokens_decoder()
    rows = 1 + max([*words.values(), *added], default=-1)
    size = rows if size is None else size
    beyond = 1 + max(words.values(), default=-1)
    if beyond > size:
        raise ModelError(
            f"the tokenizer has {beyond} tokens, the model only {size} rows of logits: use the model's own tokenizer"
        )
    marked = set(tokenizer.all_special_ids)
    special = {i: a.content for i, a in sorted(added.items()) if a.special or i in marked}
    tokens: list[bytes | None] = [None] * max(size, rows)
    for i, token in added.items():
        tokens[i] = token.content.encode() or None
    for word, i in words.items():
        tokens[i] = decoder.read(word) or None
    for i in special:
        tokens[i] = None
    own = tokenizer.eos_token_id
    ends = tuple(dict.fromkeys([*([] if own is None else [own]), *eos]))
    if wrong := [i for i in ends if not 0 <= i < size]:
        raise ModelError(f"end-of-text id {wrong[0]} is not in 0..{size - 1}: use the model's own tokenizer")
    return Vocab(
        tokens=tuple(tokens[:size]),
        size=size,
        bos=tokenizer.bos_token_id,
        eos=ends,
        special=special,
        fingerprint=_fingerprint(backend, special, size, ends),
    )


class Speller:
    """Writes bytes in one tokenizer's tokens, by its own pre-tokenizer and merge rules.

    No normalizer, no dummy prefix space and no BOS token; special tokens are never parsed from the bytes, so "</s>" is
    literal text.  Maximal valid UTF-8 runs are merged as text, other bytes go through byte tokens; bytes that break off
    inside a character and are exactly one token's become that token.  Whatever is returned has been checked: the bytes
    of its tokens, concatenated, are the bytes given (design §3).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab: Vocab) -> None:
        """Prepare to spell in `tokenizer`'s tokens; `vocab` is what `read_vocab` returned for it."""
        backend = _backend(tokenizer)
        decoder = _read_decoder(backend)
        model = backend.model
        if getattr(model, "dropout", None):  # merges drawn at random; the tokenizer itself keeps them
            model = _assemble(model=_state(model) | {"dropout": None}).model
        self._tokens = vocab.tokens
        self._decoder = decoder
        self._text = Tokenizer(model)
        if backend.pre_tokenizer is not None:
            state = _without_prefix(_state(backend.pre_tokenizer))
            self._text.pre_tokenizer = _assemble(pre_tokenizer=state).pre_tokenizer
        self._added = self._add_literal_tokens(backend)
        self._aliases = Tokenizer(model)
        ids = [backend.token_to_id(f"<0x{byte:02X}>") if decoder.byte_tokens else None for byte in range(256)]
        self._byte_ids = {byte: i for byte, i in enumerate(ids) if i is not None}
        # Merges of text cannot reach a token that breaks off inside a character, as in half of a curly quote.
        fragments = enumerate(vocab.tokens)
        self._fragments = {data: i for i, data in fragments if data is not None and not _is_text(data)}
        # Bytes that are no UTF-8 decode to lone surrogates; a literal space marker would be read back as a space.
        self._not_text = re.compile(f"([\udc80-\udcff{re.escape(decoder.space)}]+)")

    def spell(self, data: bytes) -> tuple[int, ...] | None:
        """Return the tokens that write `data`, or None where no tokens can."""
        return self.spell_many([data])[0]

    def spell_many(self, texts: Sequence[bytes]) -> list[tuple[int, ...] | None]:
        """Return the tokens that write each text; None where no tokens can, () for no bytes."""
        if len(texts) > _BATCH:  # what lies between texts and spellings takes several times their memory
            starts = range(0, len(texts), _BATCH)
            return [ids for start in starts for ids in self.spell_many(texts[start : start + _BATCH])]
        parts = [self._split(data) for data in texts]
        runs = iter(self._spell_runs([run for split in parts for run in split[::2] if run]))
        spellings: list[tuple[int, ...] | None] = []
        for split in parts:
            pieces = [self._spell_bytes(part) if place % 2 else next(runs) for place, part in enumerate(split) if part]
            known = [piece for piece in pieces if piece is not None]
            spellings.append(tuple(itertools.chain.from_iterable(known)) if len(known) == len(pieces) else None)
        return spellings

    def _split(self, data: bytes) -> list[str]:
        """Split into text (even places) and other bytes (odd places), the latter as lone surrogates where not UTF-8."""
        text = data.decode("utf-8", "surrogateescape")
        return ["", text] if data in self._fragments else self._not_text.split(text)

    def _spell_runs(self, runs: list[str]) -> list[tuple[int, ...] | None]:
        space = self._decoder.space
        inputs = [run.replace(" ", space) for run in runs] if space else runs
        batch = self._text.encode_batch_fast(inputs, add_special_tokens=False)
        found = [tuple(encoding.ids) for encoding in batch]
        if self._added:
            found = [tuple([self._added.get(i, i) for i in ids]) for ids in found]
        pairs = zip(found, runs, strict=True)
        return [ids if self._write(ids) == run.encode() else self._halve(run) for ids, run in pairs]

    def _halve(self, run: str) -> tuple[int, ...] | None:
        """Narrow a run that its tokens do not write down to the characters at fault; those become byte tokens."""
        if len(run) == 1:
            return self._spell_bytes(run)
        middle = len(run) // 2
        left, right = self._spell_runs([run[:middle], run[middle:]])
        return None if left is None or right is None else left + right

    def _spell_bytes(self, part: str) -> tuple[int, ...] | None:
        data = part.encode("utf-8", "surrogateescape")
        if data in self._fragments:
            return (self._fragments[data],)
        if self._decoder.byte_level:
            aliases = "".join(_ALIASES[byte] for byte in data)
            ids = tuple(self._aliases.encode(aliases, add_special_tokens=False).ids)
        else:
            ids = tuple([self._byte_ids[byte] for byte in data if byte in self._byte_ids])
        return ids if self._write(ids) == data else None

    def _write(self, ids: Sequence[int]) -> bytes | None:
        pieces = [piece for i in ids if (piece := self._tokens[i]) is not None]
        return b"".join(pieces) if len(pieces) == len(ids) else None

    def _add_literal_tokens(self, backend: Tokenizer) -> dict[int, int]:
        """Give the copy the added tokens that are literal text; return its ids for them where they differ."""
        space = self._decoder.space
        ids: dict[str, int] = {}
        for i, token in sorted(backend.get_added_tokens_decoder().items()):
            if i < len(self._tokens) and self._tokens[i] == token.content.encode():
                content = token.content.replace(" ", space) if space else token.content
                self._text.add_tokens([AddedToken(content, single_word=token.single_word, normalized=False)])
                ids[content] = i
        pairs = ((self._text.token_to_id(content), i) for content, i in ids.items())
        return {mine: i for mine, i in pairs if mine is not None and mine != i}


@dataclass(frozen=True)
class _Decoder:
    """How a backend's decoder turns a token into bytes: the kind of the tokenizer."""

    space: str = ""  # the character that stands for a space
    byte_tokens: bool = False  # <0xNN>
    byte_level: bool = False  # every byte has an alias character

    def read(self, word: str) -> bytes:
        if self.byte_level:
            try:
                return word.translate(_BYTES_OF_ALIASES).encode("latin-1")
            except UnicodeEncodeError:  # decoders take a word with any other character literally
                return word.encode()
        if self.byte_tokens and (match := _BYTE_TOKEN.fullmatch(word)):
            return bytes.fromhex(match[1])
        return (word.replace(self.space, " ") if self.space else word).encode()


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise ModelError(f"{type(tokenizer).__name__} has no fast backend: use a model with a tokenizer.json")
    return backend


def _read_decoder(backend: Tokenizer) -> _Decoder:
    """Read a tokenizer's kind off its decoder; raise ModelError where tokens do not simply concatenate to text."""
    prefix = getattr(backend.model, "continuing_subword_prefix", None)
    suffix = getattr(backend.model, "end_of_word_suffix", None)
    if prefix or suffix:
        raise ModelError(f"tokens marked with {prefix or suffix!r} do not concatenate to text: {_SUPPORTED}")
    found: dict[str, Any] = {}
    steps = _steps(_state(backend.decoder), "decoders") if backend.decoder is not None else [{"type": "none"}]
    for at, step in enumerate(steps):
        match step:
            case {"type": "ByteLevel"}:
                found["byte_level"] = True
            case {"type": "ByteFallback"}:
                found["byte_tokens"] = True
            case {"type": "Replace", "pattern": {"String": str(space)}, "content": " "} if len(space) == 1:
                found["space"] = space
            case {"type": "Metaspace", "replacement": str(space)}:
                found["space"] = space
            case {"type": "Fuse"}:
                pass
            case {"type": "Strip"} if {"type": "Fuse"} in steps[:at]:
                pass  # after Fuse it only touches the ends of a whole text
            case _:
                raise ModelError(f"decoder step {step['type']!r} of the tokenizer is not supported: {_SUPPORTED}")
    if found.keys() > {"byte_level"}:
        raise ModelError(f"the tokenizer's decoder mixes {', '.join(sorted(found))}, one is allowed: {_SUPPORTED}")
    return _Decoder(**found)


def _without_prefix(state: dict[str, Any]) -> dict[str, Any]:
    """Take from a pre-tokenizer the space that some put before a text."""
    for step in _steps(state, "pretokenizers"):
        if "prepend_scheme" in step:
            step["prepend_scheme"] = "never"
        if "add_prefix_space" in step:
            step["add_prefix_space"] = False
    return state


def _assemble(**parts: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(json.loads(Tokenizer(BPE()).to_str()) | parts))


def _state(component: Decoder | Model | PreTokenizer) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(component.__getstate__())
    return state


def _steps(state: dict[str, Any], inner: str) -> list[dict[str, Any]]:
    """Flatten a component and the sequences in it; the steps are the dicts of `state` themselves."""
    if state["type"] != "Sequence":
        return [state]
    return [step for part in state[inner] for step in _steps(part, inner)]


def _fingerprint(backend: Tokenizer, special: dict[int, str], size: int, eos: tuple[int, ...]) -> str:
    added = [
        (i, token.content, token.single_word, i in special)
        for i, token in sorted(backend.get_added_tokens_decoder().items())
    ]
    digest = hashlib.sha256(json.dumps([added, size, eos]).encode())
    for component in (backend.model, backend.pre_tokenizer, backend.decoder):
        state = b"" if component is None else component.__getstate__()
        digest.update(len(state).to_bytes(8))
        digest.update(state)
    return digest.hexdigest()


def _byte_aliases() -> tuple[str, ...]:
    """The printable characters by which byte-level tokenizers write the 256 bytes, space and controls included."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = itertools.count(0x100)
    return tuple(chr(byte if byte in plain else next(moved)) for byte in range(256))


_SUPPORTED = "use a model with a byte-level or SentencePiece tokenizer"
_BATCH = 1024  # encodings alive at once: Python's garbage collector walks them all, again and again
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_ALIASES = _byte_aliases()
# Characters below 256 that are no alias must not pass for Latin-1.
_BYTES_OF_ALIASES = dict.fromkeys(range(256), "\ufffd") | {ord(alias): chr(byte) for byte, alias in enumerate(_ALIASES)}
