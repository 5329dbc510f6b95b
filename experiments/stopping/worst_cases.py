"""Where drafts cannot pay: what it costs to find that out, and to keep looking, beside the target alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from experiments.compared import compared
from omnidraft.api import OmniDraft
from omnidraft.attach import attach_drafter
from omnidraft.bench.interleaved import PLAIN, EngineWay, drafter_of, engine_for, own_cache
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.drafter import AttachedDrafter
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.models.language_model import LanguageModel, TransformersModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Target = Callable[[], LanguageModel]  # a new one, with a KV cache of its own

NEW_TOKENS = 48
SHORT = 8  # tokens of an answer to a long prompt
LONG = 600  # tokens of such a prompt
SLOW_LAYERS = 24
ONE_BY_ONE = 64  # tokens from which on a pass is a prompt, which is read as ever


class OneByOne:
    """A model for which several tokens take as long as one after the other."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.vocab_size, self.context = model.vocab_size, model.context

    @property
    def length(self) -> int:
        """Tokens now in the cache."""
        return self._model.length

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Append `ids` and return the logits of the last `keep` of them."""
        if len(ids) >= ONE_BY_ONE:
            return self._model.forward(ids, keep)
        return torch.cat([self._model.forward([token], 1) for token in ids])[len(ids) - keep :]

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache."""
        self._model.crop(length)


def cases(model: OmniDraft, ids: Sequence[list[int]], count: int) -> Iterator[dict[str, Any]]:
    """A row for each case: seconds of the target alone over those with `goodput`, on so many prompts, side by side."""
    pair = drafter_of(model)
    if model.drafter is None:
        raise ValueError("there is no drafter that could be hopeless")
    own = model.drafter.lm.model

    def target() -> LanguageModel:
        return own_cache(model.target.lm)

    yield _row("a drafter of random weights", model, target, _with(model, scrambled(own)), ids, count, NEW_TOKENS)
    slow = scrambled(own, layers=SLOW_LAYERS)
    yield _row("a drafter slower than the target", model, target, _with(model, slow), ids, count, NEW_TOKENS)
    yield _row("several tokens verified one by one", model, lambda: OneByOne(target()), pair, ids, count, NEW_TOKENS)
    whole = [token for prompt in ids for token in prompt]
    long = [(whole[i * 97 % len(whole) :] + whole * (LONG // len(whole) + 1))[:LONG] for i in range(len(ids))]
    yield _row("long prompts, short answers", model, target, pair, long, count, SHORT)


def scrambled(model: PreTrainedModel, layers: int | None = None) -> PreTrainedModel:
    """A model of the same kind with random weights, and as many layers as are asked for."""
    config = copy.deepcopy(model.config)
    if layers is not None:
        config.num_hidden_layers = layers
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made: Any = type(model)(config)
    other: PreTrainedModel = made.to(model.device, model.dtype).eval()
    return other


def _with(model: OmniDraft, drafter: PreTrainedModel) -> AttachedDrafter:
    if model.drafter is None:
        raise ValueError("there is no drafter to replace")
    loaded = replace(model.drafter, lm=TransformersModel(drafter))
    drafting = Drafting(draft_length="goodput")
    return attach_drafter(model.target, model.vocab, loaded, drafting, lambda _: None, SharedDrafter(loaded.lm))


def _row(
    case: str,
    model: OmniDraft,
    target: Target,
    attached: AttachedDrafter,
    ids: Sequence[list[int]],
    count: int,
    new_tokens: int,
) -> dict[str, Any]:
    def way(name: str, drafting: Drafting) -> EngineWay:
        return EngineWay(name, engine_for(model, drafting, target=target(), attached=attached), Sampling())

    ways = [way("plain", PLAIN), way("goodput", Drafting(draft_length="goodput"))]
    list(compared([ways[0], way("warms up", Drafting(draft_length=2))], ids[:1], new_tokens))
    prompts = [ids[number % len(ids)] for number in range(count)]
    _, row = compared(ways, prompts, new_tokens)
    return {"case": case, **row}
