"""One copy of a drafter's weights for any number of targets, and the slot that their requests take turns in."""

from __future__ import annotations

import copy
import threading
from typing import Protocol

import torch

from omnidraft.errors import OmniDraftError
from omnidraft.models.forks import ForkLock
from omnidraft.models.language_model import LanguageModel
from omnidraft.models.native.model import native_of
from omnidraft.models.native.weights import RoundedWeights, Weights
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
    """One drafter for any number of targets, each of which may draft with learned weights of its own.

    The source it was made from stays as it is.  Raises ModelError for a hybrid.
    """

    def __init__(self, source: PretrainedModel, *, native_step: bool = True) -> None:
        check_drafter(source)
        self.source = source
        self.slot = Slot()
        self._native = native_of(source, drafts=True) if native_step else None

    @property
    def model(self) -> LanguageModel:
        """The model that drafts where nothing is learned."""
        return self._native or self.source

    @property
    def rounds(self) -> bool:
        """True if it drafts in 8 bits, and so takes rounded weights."""
        return self._native is not None

    def lend(self, weights: Weights | RoundedWeights | None, before: LanguageModel | None = None) -> LanguageModel:
        """A model with these weights over the source's: another object for others, by which caches are told apart.

        `before` is what was lent to the same borrower last, whose memory may be given the new weights.
        """
        if not weights:
            return self.model
        if self._native is not None:
            return self._native.with_weights(weights)
        if isinstance(weights, RoundedWeights):
            raise TypeError("weights that are rounded are for the native step")
        lent = copy.copy(before) if isinstance(before, LentWeights) else LentWeights(self.source)
        lent.load_weights(weights)
        return lent
