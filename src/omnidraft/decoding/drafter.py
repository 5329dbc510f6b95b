"""The drafter: keeps its KV cache in step with the committed text and draws draft tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import Probs
from omnidraft.decoding.passes import Pass, Passes
from omnidraft.draft_length.acceptance_head import Head, tap
from omnidraft.errors import NumericsError
from omnidraft.models.language_model import LanguageModel, TransformersModel
from omnidraft.verification.sampling import Sampler, tempered

if TYPE_CHECKING:
    from omnidraft.draft_length.policy import DraftLengthPolicy


class Drafter:
    """A language model that drafts continuations of a text in its own tokens."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.version: object = None  # of its weights, as `load_model` was told
        self._tap = tap(model.model) if isinstance(model, TransformersModel) else None
        self._text: list[int] = []  # the committed text
        self.begun = 0  # how many of its tokens are the prompt
        self._base = 0  # where the model's window begins in it
        self._cached: list[int] = []  # the tokens in the model's cache, from `_base` on
        self._agreed = 0  # how many of them are known to be committed text
        self._hidden: torch.Tensor | None = None  # (H,) what the last logits were made of, of a model that tells
        self.passes = self.read = 0  # of the model for the last draft, and the tokens they read

    def start(self, tokens: Sequence[int], *, keep: bool = False) -> int:
        """Begin a new text with an empty cache, whatever became of the last one; how many tokens need not be read.

        With `keep`, the cache keeps what the two texts have in common.
        """
        base, text = self._base, list(tokens)
        held = self._cached[: self.model.length]  # an interrupted pass may have emptied it
        kept = common(held, text[base:]) if keep and self._text[:base] == text[:base] else 0
        self._text, self.begun, self._agreed = text, len(text), kept
        if not kept:
            self._base, self._cached = 0, []
            self.model.crop(0)
        return base + kept if kept else 0

    @property
    def text(self) -> list[int]:
        """The committed text; not to be changed."""
        return self._text

    def load_model(self, model: LanguageModel, version: object = None) -> None:
        """Draft with this model, or with the same one after a change of its weights; the text is prefilled again."""
        self.model, self.version = model, version
        self._tap = tap(model.model) if isinstance(model, TransformersModel) else None
        self._cached, self._agreed = [], 0

    def extend(self, tokens: Sequence[int], kept: int | None = None) -> None:
        """Add committed tokens; with `kept`, in place of all that follows so many tokens of the text."""
        if kept is not None and kept < len(self._text):
            del self._text[kept:]
            if kept < self._base:
                self._base, self._cached = 0, []
            self._agreed = min(self._agreed, max(0, kept - self._base))
        self._text += tokens

    def draft(
        self,
        length: int,
        temperature: float,
        draw: Sampler,
        read: Callable[[int], bool],
        allowed: npt.NDArray[np.bool_] | None = None,
        policy: DraftLengthPolicy | None = None,
    ) -> Passes[tuple[list[int], list[Probs]]]:
        """Draw up to `length` tokens: the tokens, and for each the (V_q,) vector it was drawn from.

        Each token is handed to `read`, which says whether another one could be used; `policy` says before each
        whether it is to be drawn.  With `allowed` (V_q,) the rest is masked out before drawing.
        """
        tokens: list[int] = []
        vectors: list[Probs] = []
        self.passes = self.read = 0
        if length == 0 or not self._text:
            return tokens, vectors
        logits = yield from self._catch_up(room=length)
        while True:
            seen = logits if allowed is None else _only(logits, allowed)
            if policy is not None and not policy.draws(seen, temperature, self._hidden):
                return tokens, vectors
            q = _distribution(seen, temperature)
            token = int(q.argmax()) if temperature == 0 else draw(q)
            tokens.append(token)
            vectors.append(q)
            if not read(token) or len(tokens) == length or (policy is not None and not policy.steps(token)):
                return tokens, vectors
            logits = yield from self._forward([token])
            self._cached.append(token)

    def _catch_up(self, room: int) -> Passes[torch.Tensor]:
        """Bring the cache up to the committed text; logits (V_q,) of what follows it."""
        if len(self._text) - self._base + room > self.model.context:
            # keys cannot be dropped from the front (their positions would no longer be true): the last half
            # of the window is read again
            self._base = max(0, len(self._text) - self.model.context // 2)
            self._cached, self._agreed = [], 0
        text = self._text
        agreed, end = self._agreed, min(len(self._cached), len(text) - self._base - 1)
        while agreed < end and self._cached[agreed] == text[self._base + agreed]:
            agreed += 1
        agreed = min(agreed, end)  # at least one token is read, for its logits
        if agreed < self.model.length:
            self.model.crop(agreed)
        del self._cached[agreed:]
        logits = yield from self._forward(text[self._base + agreed :])
        self._cached += text[self._base + agreed :]
        self._agreed = len(self._cached)
        return logits

    def _forward(self, tokens: list[int]) -> Passes[torch.Tensor]:
        self.passes += 1
        self.read += len(tokens)
        logits = yield Pass(self.model, tokens)
        if self._tap is None:
            self._hidden = getattr(self.model, "hidden", None)
        else:
            self._hidden = None if self._tap.last is None else self._tap.last[0, -1]
        return logits


@dataclass(frozen=True, kw_only=True)
class AttachedDrafter:
    """A drafter bound to one target: translation of its tokens, active n-grams, acceptance head."""

    drafter: Drafter
    context: DrafterContext
    cache: NgramCache
    head: Head = field(default_factory=Head)
    untranslated: list[int] = field(default_factory=list, init=False)  # committed tokens the drafter has not been given

    def start(self, prompt: Sequence[int], *, keep: bool = False) -> Sequence[int]:
        """Begin a request with these target tokens; the drafter tokens of the prompt that are to be read.

        With `keep`, the drafter's cache keeps what the last text has in common with the prompt.
        """
        text = self.context.prompt(prompt)
        kept = self.drafter.start(text, keep=keep)
        self.untranslated.clear()
        return text[kept:]

    def draft(
        self,
        length: int,
        temperature: float,
        draw: Sampler,
        read: Callable[[int], bool],
        allowed: npt.NDArray[np.bool_] | None,
        policy: DraftLengthPolicy,
    ) -> Passes[tuple[list[int], list[Probs]]]:
        """`Drafter.draft` after what was committed since the last draft."""
        if self.untranslated:
            self.drafter.extend(*self.context.after(self.drafter.text, self.drafter.begun, self.untranslated))
            self.untranslated.clear()
        return (yield from self.drafter.draft(length, temperature, draw, read, allowed, policy))

    def commit(self, emitted: Sequence[int], false_merge: int | None) -> None:
        """Take in the target tokens of a round; they are translated with the next draft, if there is one."""
        self.untranslated.extend(emitted)
        self.cache.observe(emitted, false_merge)

    def release(self) -> None:
        """Drop the request's text and KV cache."""
        self.drafter.start(())
        self.untranslated.clear()

    def ngrams(self, tokens: Sequence[int]) -> int:
        """Target tokens among these that are spelled by several drafter tokens."""
        return sum(len(self.cache.table.spelling(token)) > 1 for token in tokens)

    @property
    def longest(self) -> int:
        """Most target tokens that one draft token may stand for."""
        offsets = self.cache.table.long_offsets
        return int((offsets[1:] - offsets[:-1]).max(initial=1))


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of leading tokens that two texts have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _distribution(logits: torch.Tensor, temperature: float) -> Probs:
    try:
        return tempered(logits, temperature)
    except NumericsError as error:
        raise NumericsError(
            "the drafter's logits are NaN or infinite: check its weights, or use another drafter"
        ) from error


def _only(logits: torch.Tensor, allowed: npt.NDArray[np.bool_]) -> torch.Tensor:
    """Logits (V_q,) without the tokens that are not allowed: what is drawn from them is what is recorded."""
    # a bound that any temperature leaves finite, for a drafter that gives no probability to any of them
    return logits.clamp(min=-1e30).masked_fill(~torch.from_numpy(allowed).to(logits.device), -torch.inf)
