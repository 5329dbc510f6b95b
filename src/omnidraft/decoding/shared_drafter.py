"""One copy of a drafter's weights for any number of targets, and the slot that their requests take turns in."""

from __future__ import annotations

import copy
import threading
from typing import Protocol

import torch

from omnidraft.errors import OmniDraftError
from omnidraft.models.forks import ForkLock
from omnidraft.models.language_model import LanguageModel
from omnidraft.models.native_model import native_of
from omnidraft.models.native_weights import RoundedWeights, Weights
from omnidraft.models.transformers_model import PretrainedModel, TransformersModel, check_drafter

LOOK_S = 0.02  # seconds between looks at whether a waiting request still has the slot


class Pausable(Protocol):
    """Background work, which pauses while a request is decoded."""

    def pause(self) -> None:
        """A request is being decoded."""

    def resume(self) -> None:
        """It is done."""


class Slot:
    """The place of one request at a time on models that hold the state of one; a later request takes it over."""

    def __init__(self) -> None:
        self.lock = ForkLock()  # held by whoever uses the models, for a turn
        self.background: list[Pausable] = []  # trainers of the drafter, for all its targets
        self._still = threading.Event()  # set while background work stands still
        self._request: object = None

    def beside(self) -> Slot:
        """The place of another request on the same weights, with caches of its own."""
        other = Slot()
        other.lock, other.background, other._still = self.lock, self.background, self._still
        return other

    def take(self, request: object) -> None:
        """Give the slot to a request; the one before ends."""
        with self.lock:
            self._request = request
            self.resume()

    def pause(self) -> None:
        """Pause background work; `hold` does so in each turn."""
        self._still.set()
        for each in self.background:
            each.pause()

    def resume(self) -> None:
        """Resume background work until the next round of any request."""
        self._still.clear()
        for each in self.background:
            each.resume()

    def hold(self, request: object) -> None:
        """Take the lock for a turn of a request, in which background work stands still.

        Raises OmniDraftError where a later request has the slot, at once: that may hold the lock for long.
        """
        while not self.lock.acquire(timeout=LOOK_S):
            self.check(request)
        try:
            if self._request is not request:
                self.check(request)
            if not self._still.is_set():
                self.pause()
        except BaseException:
            self.lock.release()
            raise

    def check(self, request: object) -> None:
        """Raise OmniDraftError where a later request has the slot."""
        if self._request is not request:
            # the models now hold the later request: going on would continue that one
            raise OmniDraftError("another request was begun on the same models: read a stream to its end first")


class LentWeights(TransformersModel):
    """A copy of a model that can be given other weights, and its own again."""

    @torch.inference_mode(mode=False)  # weights made inside it could not be changed outside
    def __init__(self, source: PretrainedModel) -> None:
        super().__init__(copy.deepcopy(source.model))
        self._source = source

    @torch.no_grad()
    def load_weights(self, weights: Weights) -> None:
        """Copy these weights in, by the names of `named_parameters`, and the source's for the rest; keep the cache."""
        own = dict(self.model.named_parameters())
        for name, weight in self._source.model.named_parameters():
            own[name].copy_(weights.get(name, weight))


class SharedDrafter:
    """The one copy of a drafter's weights that drafts, for any number of targets, one request at a time.

    The source it was made from stays as it is.  Raises ModelError for a hybrid.
    """

    def __init__(self, source: PretrainedModel, *, native_step: bool = True) -> None:
        check_drafter(source)
        self.source = source
        self.slot = Slot()
        self._native = native_of(source, drafts=True) if native_step else None
        self._own: LentWeights | None = None
        self.loaded: Weights | RoundedWeights | None = None  # the weights that draft; None: the source's own

    @property
    def model(self) -> LanguageModel:
        return self._native or self._own or self.source

    @property
    def rounds(self) -> bool:
        """True if it drafts in 8 bits, and so takes rounded weights."""
        return self._native is not None

    def load_weights(self, weights: Weights | RoundedWeights | None) -> LanguageModel:
        """Load these weights over the source's, None: none; returns the model to draft with from now on."""
        if self._native is not None:
            self._native = self._native.with_weights(weights or {})
        elif self._own is not None or weights:
            self._own = self._copied(weights or {}, self._own)
        self.loaded = weights
        return self.model

    def lend(self, weights: Weights | RoundedWeights | None, before: LanguageModel | None) -> LanguageModel:
        """Another model with these weights, whatever is loaded into `model` later.

        It shares the weights that are in memory where these are the source's, or loaded.  `before` is what was lent to
        the same borrower last, whose memory may be given the new weights.
        """
        if self._native is not None:
            return self._native if self.loaded is weights else self._native.with_weights(weights or {})
        return self._copied(weights, before) if weights else self.source

    def _copied(self, weights: Weights | RoundedWeights, before: LanguageModel | None) -> LentWeights:
        """A model with these weights over the source's, in the memory of `before` where that is a copy."""
        if isinstance(weights, RoundedWeights):
            raise TypeError("weights that are rounded are for the native step")
        # another object, by which borrowers tell that their caches are of other weights
        copied = copy.copy(before) if isinstance(before, LentWeights) else LentWeights(self.source)
        copied.load_weights(weights)
        return copied
