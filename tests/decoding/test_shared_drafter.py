"""One drafter for several holders of learned weights, and one request at a time on it."""

from __future__ import annotations

import threading

import pytest
import torch

from omnidraft.decoding.lane import Turns
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.errors import OmniDraftError
from omnidraft.models.language_model import LanguageModel
from support.models import random_model

IDS = [1, 5, 9, 40, 41]


@pytest.mark.parametrize("native_step", [True, False])
def test_weights_are_lent_and_given_back(native_step: bool) -> None:
    source = random_model("llama", 60, seed=1)
    shared = SharedDrafter(source, native_step=native_step)
    learned = {name: torch.full_like(weight, 0.5) for name, weight in source.model.named_parameters() if "norm" in name}
    plain, own = (model.new_sequence().forward(IDS, 5) for model in (source, shared.model))
    assert float((own - plain).norm() / plain.norm()) < 0.3, "near it in 5 bits"
    lent = [shared.model]

    def logits(weights: dict[str, torch.Tensor] | None) -> torch.Tensor:
        lent.append(shared.lend(weights, lent[-1]))
        assert (lent[-1] is shared.model) == (not weights)
        return lent[-1].new_sequence().forward(IDS, 5)

    assert torch.equal(logits({}), own)
    changed = logits(learned)
    assert not torch.allclose(changed, plain, atol=0.5)
    assert torch.equal(logits(None), own)
    assert torch.equal(logits(learned), changed)
    assert torch.equal(source.new_sequence().forward(IDS, 5), plain)
    logits({name: weight + 1 for name, weight in learned.items()})
    identities = {model.identity for model in lent}
    assert len(identities) == 4, "no cache of the weights before is one of these"


def test_a_request_goes_on_until_a_later_one_takes_the_lane() -> None:
    turns = Turns()
    turns.take("first")
    turns.begin("first")
    turns.check("first")
    turns.take("second")  # as a logits processor may
    with pytest.raises(OmniDraftError, match="read a stream to its end"):
        turns.check("first")
    turns.end()
    with pytest.raises(OmniDraftError):
        turns.begin("first")
    turns.check("second")


def test_a_request_that_lost_the_lane_does_not_wait_for_the_lock() -> None:
    turns, begun, over = Turns(), threading.Event(), threading.Event()

    def later() -> None:
        with turns.lock:
            turns.take("later")
            begun.set()
            over.wait(30)

    turns.take("earlier")
    thread = threading.Thread(target=later)
    thread.start()
    begun.wait(30)
    with pytest.raises(OmniDraftError):
        turns.begin("earlier")
    assert thread.is_alive()
    over.set()
    thread.join()


@pytest.mark.parametrize("native_step", [True, False])
def test_what_is_lent_stays_as_it_is(native_step: bool) -> None:
    source = random_model("llama", 60, seed=1)
    shared = SharedDrafter(source, native_step=native_step)
    named = dict(source.model.named_parameters())
    one, other = ({name: torch.full_like(w, by) for name, w in named.items() if "norm" in name} for by in (0.5, 0.2))

    def logits(lent: LanguageModel) -> torch.Tensor:
        return lent.new_sequence().forward(IDS, 5)

    base, first, second = (shared.lend(weights, None) for weights in (None, one, other))
    before = [logits(lent) for lent in (base, first, second)]
    assert all(torch.equal(logits(lent), row) for lent, row in zip((base, first, second), before, strict=True))
    assert torch.equal(before[0], SharedDrafter(source, native_step=native_step).model.new_sequence().forward(IDS, 5))
    assert not torch.allclose(before[1], before[2], atol=1e-2)
    again = (shared.lend(other, first), shared.lend(None, first))
    assert first not in again, "by which a borrower tells that its cache is of other weights"
    for lent, row in zip(again, before[::-2], strict=True):
        assert torch.equal(logits(lent), row), "nor does it matter what is loaded or was lent before"


def test_requests_beside_one_another_take_nothing_away() -> None:
    turns = Turns()
    beside = turns.beside()
    turns.take("first")
    beside.take("second")
    turns.begin("first")
    beside.begin("second")
    turns.check("first")
    with pytest.raises(OmniDraftError):
        turns.check("second")
