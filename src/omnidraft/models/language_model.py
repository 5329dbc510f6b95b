"""The interface of a language model: weights that any number of sequences share.

A sequence is one text in a KV cache of its own.  A read appends ids to it and asks for logits; reads of several
sequences go to the model together, in one pass where it can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeGuard, runtime_checkable

import torch

from omnidraft.errors import CONTEXT_LENGTH, InputError, NumericsError, PromptError

NO_LIMIT = 2**63 - 1  # context of a model without a maximum position
ROOM = 256  # tokens that a KV cache grows by, at least


class KVSequence(Protocol):
    """One text in a KV cache of its own."""

    @property
    def hidden(self) -> torch.Tensor | None:
        """(H,) input of the LM head at the last id read, where `new_sequence` was asked for it."""

    @property
    def model(self) -> LanguageModel:
        """The weights that read it."""

    @property
    def length(self) -> int:
        """Number of tokens in the cache."""

    @property
    def nbytes(self) -> int:
        """Memory of the cache, room to grow included."""

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Append `ids` and return the logits of the last `keep` of them, (keep, vocab_size) float32."""

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache, 0 <= length <= self.length; of a hybrid's at most."""


@runtime_checkable
class CopyingSequence(KVSequence, Protocol):
    """A sequence that can take over the cache of another one of its model."""

    def copy(self, other: KVSequence, length: int) -> None:
        """Hold the first `length` tokens of another sequence, and no others."""


def copies(sequence: KVSequence) -> TypeGuard[CopyingSequence]:
    """True if a sequence can take over the cache of another."""
    return isinstance(sequence, CopyingSequence)


@dataclass(frozen=True, slots=True)
class Read:
    """Ids to append to a sequence, of which the last `keep` are to have logits."""

    sequence: KVSequence
    ids: Sequence[int]
    keep: int

    def check(self) -> None:
        """Raise PromptError for ids outside the vocabulary or beyond the context, InputError for a wrong `keep`."""
        model, ids, length = self.sequence.model, self.ids, self.sequence.length
        if not 0 <= self.keep <= len(ids):
            raise InputError(f"cannot return logits of {self.keep} positions out of {len(ids)}: use 0..{len(ids)}")
        if length + len(ids) > model.context:
            raise PromptError(
                f"{length} + {len(ids)} tokens do not fit model {model.name!r}, which holds {model.context}: "
                "shorten the prompt or generate fewer tokens",
                code=CONTEXT_LENGTH,
            )
        check_ids(
            ids, model.vocab_size
        )  # on a GPU an id out of range is an error that only a new process recovers from

    def checked(self, logits: torch.Tensor) -> torch.Tensor:
        """The logits; raises NumericsError where they are NaN or +inf, or -inf throughout a row: the cache is empty."""
        # the largest entry of a row is NaN or infinite if any is NaN or +inf, or if all are -inf
        # (numpy finds it three times as fast as torch on a CPU)
        best = logits.numpy().max(-1) if logits.device.type == "cpu" else logits.amax(-1)
        if not all(map(math.isfinite, best.tolist())):
            self.sequence.crop(0)
            model = self.sequence.model
            raise NumericsError(
                f"model {model.name!r} returned NaN or infinite logits in {model.precision}, finite ones are needed: "
                "load it with dtype='float32', or check its weights"
            )
        return logits


class LanguageModel(Protocol):
    """Weights of a causal language model, without the state of any text."""

    name: str
    vocab_size: int  # rows of the logits, padded ids included
    context: int  # maximum number of tokens in a cache
    chunk: int  # ids of a long text that are read at a time: more take as long
    shared_chunk: int  # the same for a target while others wait, where logits depend on how a prompt is cut
    joint: bool  # reads of several sequences are one pass
    rows_independent: bool  # the logits of a row are the same bits whatever rows are read in its pass
    hybrid: bool  # it has states besides keys and values: a crop may leave fewer tokens, which are then read again
    no_drafts: str | None  # why it cannot verify drafts, a phrase
    identity: bytes  # of these weights among all others, in this process
    lasting: bool  # the identity is that of their content, by which other processes know them, too

    @property
    def precision(self) -> str:
        """Precision of the weights: float32, bfloat16, float16 or int8."""

    @property
    def token_bytes(self) -> float:
        """Memory of a token in a cache."""

    def new_sequence(self, *, hidden: bool = False) -> KVSequence:
        """Return an empty sequence; one with `hidden` keeps the input of the LM head."""

    def read(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        """Append the ids of each read, of different sequences, and return the logits of each, (keep, vocab_size).

        The reads are `check`ed before, and the logits after.  Where it raises, no sequence has read anything: each is
        as long as before, or empty.
        """


class CachedSequence:
    """Base of all sequences."""

    hidden: torch.Tensor | None = None
    length: int = 0
    nbytes: int

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Append `ids` to the cache and return the logits of the last `keep` of them.

        Returns (keep, vocab_size) float32 on the model's device, an inference tensor: clone it before autograd or
        in-place work.  Raises what `Read.check` and `Read.checked` raise.
        """
        read = Read(self, ids, keep)
        read.check()
        return read.checked(self.model.read([read])[0])

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache; raises InputError unless 0 <= length <= self.length."""
        raise NotImplementedError


class SingleSequence:
    """Base of a model with room for the state of one text: it is its own only sequence."""

    name = "it"
    vocab_size: int
    context: int
    precision = "float32"
    chunk = shared_chunk = NO_LIMIT
    joint = rows_independent = hybrid = False
    no_drafts: str | None = None
    token_bytes = 0.0
    identity, lasting = b"", False
    hidden: torch.Tensor | None = None
    nbytes = 0

    @property
    def model(self) -> Self:
        return self

    def new_sequence(self, *, hidden: bool = False) -> Self:  # noqa: ARG002
        return self

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Append `ids` and return the logits of the last `keep` of them."""
        raise NotImplementedError

    def read(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        return [self.forward(each.ids, each.keep) for each in reads]


def check_crop(length: int, held: int) -> None:
    """Raise InputError unless 0 <= length <= held."""
    if not 0 <= length <= held:
        raise InputError(f"cannot crop a cache of {held} tokens to {length}: use 0..{held}")


def check_ids(ids: Sequence[int], size: int) -> None:
    """Raise PromptError for an id that a model with `size` rows of logits does not have."""
    if ids and (min(ids) < 0 or max(ids) >= size):
        wrong = next(i for i in ids if not 0 <= i < size)
        fix = "use only tokens that it has rows of logits for"  # its own tokenizer may have more
        raise PromptError(f"token id {wrong} is not in 0..{size - 1}, the model's vocabulary: {fix}")
