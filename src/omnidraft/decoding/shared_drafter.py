"""One copy of a drafter's weights for any number of targets, whose requests take turns."""

from __future__ import annotations

import copy
import secrets

import torch

from omnidraft.decoding.lane import Turns
from omnidraft.models.language_model import LanguageModel
from omnidraft.models.native.model import NativeModel, native_of
from omnidraft.models.native.weights import PackedWeights, Weights
from omnidraft.models.transformers_model import PretrainedModel, TransformersModel, check_drafter


class LentWeights(TransformersModel):
    """A copy of a model that can be given other weights, and its own again."""

    @torch.inference_mode(mode=False)  # weights made inside it could not be changed outside
    def __init__(self, source: PretrainedModel) -> None:
        super().__init__(copy.deepcopy(source.model))
        self._source = source

    @torch.no_grad()
    def load_weights(self, weights: Weights) -> None:
        """Copy these weights in, by the names of `named_parameters`, and the source's for the rest; keep the cache."""
        parameters = dict(self.model.named_parameters())
        for name, weight in self._source.model.named_parameters():
            parameters[name].copy_(weights.get(name, weight))


class SharedDrafter:
    """One drafter for any number of targets, each of which may draft with learned weights of its own.

    The source it was made from stays as it is.  Raises ModelError for a hybrid.
    """

    def __init__(self, source: PretrainedModel, *, native_step: bool = True) -> None:
        check_drafter(source)
        self.source = source
        self.turns = Turns()
        self._native = _drafting(source) if native_step else None

    @property
    def model(self) -> LanguageModel:
        """The model that drafts where nothing is learned."""
        return self._native or self.source

    @property
    def rounds(self) -> bool:
        """True if it drafts in 8 bits, and so takes rounded weights."""
        return self._native is not None

    def lend(self, weights: Weights | PackedWeights | None, before: LanguageModel | None = None) -> LanguageModel:
        """A model with these weights over the source's: another object for others, by which caches are told apart.

        `before` is what was lent to the same borrower last, whose memory may be given the new weights.
        """
        if not weights:
            return self.model
        if self._native is not None:
            return self._native.with_weights(weights)
        if isinstance(weights, PackedWeights):
            raise TypeError("weights that are rounded are for the native step")
        lent = copy.copy(before) if isinstance(before, LentWeights) else LentWeights(self.source)
        lent.identity = secrets.token_bytes(16)  # no cache of the weights before is one of these
        lent.load_weights(weights)
        return lent


def _drafting(source: PretrainedModel) -> NativeModel | None:
    """The native model that drafts, None where there is none."""
    return source if isinstance(source, NativeModel) and source.drafts else native_of(source, drafts=True)
