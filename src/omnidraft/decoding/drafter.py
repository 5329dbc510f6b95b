"""The drafter at work: keeps its cache in step with the committed text and draws draft tokens."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.alignment.trie import Probs
from omnidraft.draft_length.acceptance_head import tap
from omnidraft.models.cpu_llama import lean
from omnidraft.models.language_model import LanguageModel, TransformersModel
from omnidraft.verification.sampling import Sampler, tempered

if TYPE_CHECKING:
    from omnidraft.draft_length.policy import DraftLengthPolicy


class Pausable(Protocol):
    """What stands still while a reply is made."""

    def pause(self) -> None:
        """A reply is being made."""

    def resume(self) -> None:
        """It is made."""


class LentWeights(TransformersModel):
    """A copy of a model that can be given other weights, and its own again."""

    def __init__(self, source: TransformersModel) -> None:
        super().__init__(copy.deepcopy(source.model))
        self._source = source

    @torch.no_grad()
    def take(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Have these weights, by the names of `named_parameters`, and else the source's; the cache stays as it is."""
        own = dict(self.model.named_parameters())
        for name, weight in self._source.model.named_parameters():
            own[name].copy_(weights.get(name, weight))


class SharedDrafter:
    """The one copy of a drafter's weights that drafts, for any number of targets, one text at a time.

    The source it was made from stays as it is.
    """

    def __init__(self, source: TransformersModel, *, lean_step: bool = True) -> None:
        self.source = source
        self.texts = 0  # begun with it, for any target
        self.turn = threading.RLock()  # whoever drafts has it, from round to round
        self.replies = 0
        self.learners: list[Pausable] = []  # of all its targets
        self._lean = lean(source) if lean_step else None
        self._own: LentWeights | None = None
        self._holder: object = None  # whose learned weights it has; None: the source's own

    @property
    def model(self) -> LanguageModel:
        return self._lean or self._own or self.source

    def take(self, holder: object, weights: Mapping[str, torch.Tensor]) -> LanguageModel:
        """Draft with the source's weights, but for these, which are `holder`'s; the model to draft with from now on."""
        if self._lean is not None:
            self._lean.load_weights(weights)
        elif self._own is not None or weights:
            self._own = self._own or LentWeights(self.source)
            self._own.take(weights)
        self._holder = holder
        return self.model

    @property
    def pristine(self) -> bool:
        """Whether nobody brought weights yet."""
        return self._holder is None

    def held_by(self, holder: object) -> bool:
        """Whether the weights are those that `holder` brought last."""
        return self._holder is holder


class Drafter:
    """A language model that proposes continuations of a text written in its own tokens."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self._tap = tap(model.model) if isinstance(model, TransformersModel) else None
        self._text: list[int] = []  # the committed text
        self.begun = 0  # how many of its tokens are the prompt
        self._base = 0  # where the model's window begins in it
        self._cached: list[int] = []  # the tokens in the model's cache, from `_base` on
        self._agreed = 0  # how many of them are known to be committed text
        self._hidden: torch.Tensor | None = None  # (H,) what the last logits were made of, of a model that tells
        self.passes = self.read = 0  # of the model for the last draft, and the tokens they read

    def start(self, tokens: Sequence[int]) -> None:
        """Begin a new text with an empty cache, whatever became of the last one."""
        self._text, self._cached = list(tokens), []
        self.begun = len(tokens)
        self._base = self._agreed = 0
        self.model.crop(0)

    @property
    def text(self) -> list[int]:
        """The committed text; not to be changed."""
        return self._text

    def swap(self, model: LanguageModel) -> None:
        """Draft with another model, or with the same one after a change of its weights: the text is read again."""
        self.model = model
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
    ) -> tuple[list[int], list[Probs]]:
        """Draw up to `length` tokens: the tokens, and for each the (V_q,) vector it was drawn from.

        Each token is handed to `read`, which says whether another one could be used; `policy` says before each
        whether it is to be drawn.  With `allowed` (V_q,) the rest is masked out before drawing.
        """
        tokens: list[int] = []
        vectors: list[Probs] = []
        self.passes = self.read = 0
        if length == 0 or not self._text:
            return tokens, vectors
        logits = self._catch_up(room=length)
        while True:
            seen = logits if allowed is None else _only(logits, allowed)
            if policy is not None and not policy.draws(seen, temperature, self._hidden):
                return tokens, vectors
            q = tempered(seen, temperature)
            token = int(q.argmax()) if temperature == 0 else draw(q)
            tokens.append(token)
            vectors.append(q)
            if not read(token) or len(tokens) == length or (policy is not None and not policy.steps(token)):
                return tokens, vectors
            logits = self._forward([token])
            self._cached.append(token)

    def _catch_up(self, room: int) -> torch.Tensor:
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
        logits = self._forward(text[self._base + agreed :])
        del self._cached[agreed:]
        self._cached += text[self._base + agreed :]
        self._agreed = len(self._cached)
        return logits

    def _forward(self, tokens: list[int]) -> torch.Tensor:
        self.passes += 1
        self.read += len(tokens)
        logits = self.model.forward(tokens, 1)[-1]
        if self._tap is None:
            self._hidden = getattr(self.model, "hidden", None)
        else:
            self._hidden = None if self._tap.last is None else self._tap.last[0, -1]
        return logits


def _only(logits: torch.Tensor, allowed: npt.NDArray[np.bool_]) -> torch.Tensor:
    """Logits (V_q,) without the tokens that are not allowed: what is drawn from them is what is recorded."""
    # a bound that any temperature leaves finite, for a drafter that gives no probability to any of them
    return logits.clamp(min=-1e30).masked_fill(~torch.from_numpy(allowed).to(logits.device), -torch.inf)
