"""Tokenizers as bytes: the bytes of every token id, and the spelling of given bytes in a tokenizer's own tokens."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer

from omnidraft.alignment.token_bytes import ALIASES, assemble, backend_of, is_text, reader_of, state_of, steps_of
from omnidraft.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Vocab:
    """One model's vocabulary, as bytes.

    `tokens` has one entry for each of the `size` rows of the model's logits; None stands for an id without bytes
    (special, unused or padded).  `eos` lists the end-of-sequence ids, the tokenizer's own first where it is one.
    `special` maps the ids of special added tokens to their content.  `first` holds the ids that the tokenizer puts in
    front of its input; some have a `bos` and do not use it.  `fingerprint` (SHA-256, hex) covers everything that
    determines the bytes of a token, the merge rules, `size` and `eos`; not normalizers, because spelling ignores them.
    """

    tokens: tuple[bytes | None, ...]
    size: int
    bos: int | None
    eos: tuple[int, ...]
    special: dict[int, str]
    fingerprint: str
    first: tuple[int, ...] = ()


def read_vocab(
    tokenizer: PreTrainedTokenizerBase, size: int | None = None, eos: Sequence[int] = (), *, drafts: bool = False
) -> Vocab:
    """Read the bytes of every token of `tokenizer`.

    `size` is the number of rows of the model's logits (default: just enough for the tokenizer); ids above the
    tokenizer's are padding, added tokens above `size` are dropped, because the model cannot emit them.  `eos` are the
    end-of-sequence ids, as in a generation config, in place of the tokenizer's own; a model that `drafts` keeps its own
    first, because it was trained with it.  Raises ModelError where the tokenizer has no fast backend, where its
    tokens do not concatenate to text, or where the model is too small for the tokenizer.
    """
    backend = backend_of(tokenizer)
    reader = reader_of(backend)
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
        tokens[i] = reader.read_added(token.content) or None
    for word, i in words.items():
        tokens[i] = reader.read(word) or None
    for i in special:
        tokens[i] = None
    end = tokenizer.eos_token_id
    first = [end] if end is not None and (drafts or not eos or end in eos) else []
    ends = (*first, *eos)
    wrong = [i for i in ends if isinstance(i, bool) or not isinstance(i, Integral) or not 0 <= int(i) < size]
    if wrong:
        fix = "use the model's own tokenizer, or mend its generation config"
        raise ModelError(f"end-of-text id {wrong[0]!r} is not in 0..{size - 1}: {fix}")
    ends = tuple(dict.fromkeys(ends))
    return Vocab(
        tokens=tuple(tokens[:size]),
        size=size,
        bos=tokenizer.bos_token_id,
        eos=ends,
        special=special,
        fingerprint=_fingerprint(backend, special, size, ends),
        first=_first(backend),
    )


class Speller:
    """Writes bytes in one tokenizer's tokens, by its own pre-tokenizer and merge rules.

    No normalizer, no dummy prefix space and no BOS token; special tokens are never parsed from the bytes, so "</s>" is
    literal text.  Maximal valid UTF-8 runs are merged as text, other bytes become byte tokens; bytes that break off
    inside a character and equal one token's become that token.  Every result has been checked: the bytes of its tokens,
    concatenated, are the bytes given.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab: Vocab) -> None:
        """Prepare to spell in `tokenizer`'s tokens; `vocab` is what `read_vocab` returned for it."""
        backend = backend_of(tokenizer)
        reader = reader_of(backend)
        model = backend.model
        if getattr(model, "dropout", None):  # merges dropped at random; only this copy goes without
            model = assemble(model=state_of(model) | {"dropout": None}).model
        self._tokens = vocab.tokens
        self._reader = reader
        self._text = Tokenizer(model)
        if backend.pre_tokenizer is not None:
            state = _without_prefix(state_of(backend.pre_tokenizer))
            self._text.pre_tokenizer = assemble(pre_tokenizer=state).pre_tokenizer
        self._added = self._add_literal_tokens(backend)
        self._aliases = Tokenizer(model)
        ids = [backend.token_to_id(f"<0x{byte:02X}>") if reader.byte_tokens else None for byte in range(256)]
        self._byte_ids = {byte: i for byte, i in enumerate(ids) if i is not None}
        # merges of text cannot reach a token that breaks off inside a character, as in half of a curly quote
        fragments = enumerate(vocab.tokens)
        self._fragments = {data: i for i, data in fragments if data is not None and not is_text(data)}
        # bytes that are not UTF-8 decode to lone surrogates; a literal space marker would be read back as a space
        self._not_text = re.compile(f"([\udc80-\udcff{re.escape(reader.space)}]+)")

    def spell(self, data: bytes) -> tuple[int, ...] | None:
        """Return the tokens that spell `data`, or None where no tokens can."""
        return self.spell_many([data])[0]

    def spell_most(self, data: bytes) -> tuple[int, ...]:
        """Return the tokens that spell `data`, without the characters that no tokens can spell."""
        segments = self._split(data)
        runs = iter(self._spell_runs([run for run in segments[::2] if run], whole=False))
        pieces = [self._spell_bytes(text) if at % 2 else next(runs) for at, text in enumerate(segments) if text]
        return tuple(itertools.chain.from_iterable(piece or () for piece in pieces))

    def spell_many(self, texts: Sequence[bytes]) -> list[tuple[int, ...] | None]:
        """Return the tokens that spell each byte string; None where no tokens can, () for no bytes."""
        if len(texts) > _BATCH:  # the encodings in between take several times the memory of the spellings
            starts = range(0, len(texts), _BATCH)
            return [ids for start in starts for ids in self.spell_many(texts[start : start + _BATCH])]
        splits = [self._split(data) for data in texts]
        runs = iter(self._spell_runs([run for segments in splits for run in segments[::2] if run]))
        spellings: list[tuple[int, ...] | None] = []
        for segments in splits:
            pieces = [self._spell_bytes(text) if at % 2 else next(runs) for at, text in enumerate(segments) if text]
            known = [piece for piece in pieces if piece is not None]
            spellings.append(tuple(itertools.chain.from_iterable(known)) if len(known) == len(pieces) else None)
        return spellings

    def _split(self, data: bytes) -> list[str]:
        """Split into text (even places) and other bytes (odd places), the latter as lone surrogates where not UTF-8."""
        text = data.decode("utf-8", "surrogateescape")
        return ["", text] if data in self._fragments else self._not_text.split(text)

    def _spell_runs(self, runs: list[str], *, whole: bool = True) -> list[tuple[int, ...] | None]:
        space = self._reader.space
        inputs = [run.replace(" ", space) for run in runs] if space else runs
        batch = self._text.encode_batch_fast(inputs, add_special_tokens=False)
        spellings = [tuple(encoding.ids) for encoding in batch]
        if self._added:
            spellings = [tuple([self._added.get(i, i) for i in ids]) for ids in spellings]
        pairs = zip(spellings, runs, strict=True)
        return [ids if self._write(ids) == run.encode() else self._halve(run, whole=whole) for ids, run in pairs]

    def _halve(self, run: str, *, whole: bool) -> tuple[int, ...] | None:
        """Bisect a run that its tokens do not spell down to the characters at fault; those become byte tokens."""
        if len(run) == 1:
            return self._spell_bytes(run)
        middle = len(run) // 2
        left, right = self._spell_runs([run[:middle], run[middle:]], whole=whole)
        if whole and (left is None or right is None):
            return None
        return (left or ()) + (right or ())

    def _spell_bytes(self, text: str) -> tuple[int, ...] | None:
        data = text.encode("utf-8", "surrogateescape")
        if data in self._fragments:
            return (self._fragments[data],)
        # a pre-tokenizer that splits at white space may drop a character that the vocabulary has
        token = self._text.token_to_id(text) if is_text(data) else None
        if token is not None and self._tokens[token] == data:
            return (token,)
        if self._reader.byte_level:
            aliases = "".join(ALIASES[byte] for byte in data)
            ids = tuple(self._aliases.encode(aliases, add_special_tokens=False).ids)
        else:
            ids = tuple([self._byte_ids[byte] for byte in data if byte in self._byte_ids])
        return ids if self._write(ids) == data else None

    def _write(self, ids: Sequence[int]) -> bytes | None:
        pieces = [piece for i in ids if (piece := self._tokens[i]) is not None]
        return b"".join(pieces) if len(pieces) == len(ids) else None

    def _add_literal_tokens(self, backend: Tokenizer) -> dict[int, int]:
        """Add the literal added tokens to the copy of the backend; return the ids where the copy's differ."""
        space = self._reader.space
        ids: dict[str, int] = {}
        for i, token in sorted(backend.get_added_tokens_decoder().items()):
            if i < len(self._tokens) and self._tokens[i] == token.content.encode():
                content = token.content.replace(" ", space) if space else token.content
                self._text.add_tokens([AddedToken(content, single_word=token.single_word, normalized=False)])
                ids[content] = i
        pairs = ((self._text.token_to_id(content), i) for content, i in ids.items())
        return {mine: i for mine, i in pairs if mine is not None and mine != i}


def _first(backend: Tokenizer) -> tuple[int, ...]:
    """The ids that a backend's post-processor puts in front of its input."""
    plain = backend.encode("a", add_special_tokens=False).ids
    ids = backend.encode("a").ids
    return tuple(ids[: next((n for n in range(len(ids)) if ids[n : n + len(plain)] == plain), 0)])


def _without_prefix(state: dict[str, Any]) -> dict[str, Any]:
    """Remove the space that some pre-tokenizers put in front of their input."""
    for step in steps_of(state, "pretokenizers"):
        if "prepend_scheme" in step:
            step["prepend_scheme"] = "never"
        if "add_prefix_space" in step:
            step["add_prefix_space"] = False
    return state


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


_BATCH = 1024  # encodings alive at once: Python's garbage collector walks all of them repeatedly
