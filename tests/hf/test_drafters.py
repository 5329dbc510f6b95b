"""Drafters inside `generate` of transformers: of every kind, attached once, shared, let go of with the model."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel

import omnidraft
from omnidraft import ConfigError, OmniDraftError
from omnidraft.config import Drafting
from omnidraft.draft_length.goodput_policy import Goodput
from omnidraft.hf import kept_drafters
from omnidraft.hf.kept_drafters import ready_drafters
from omnidraft.verification.round import Round
from support.generating import COUNT, OPTIONS, PROMPT, alone, helped, ids_of, load, noisy

pytestmark = pytest.mark.medium

# ---------------------------------------------------------------- what is kept


def test_a_drafter_is_attached_once(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(target)
    assert torch.equal(helped(model, drafter, omnidraft_options={}), alone(model))
    (kept,) = ready_drafters(model).values()
    assert isinstance(kept.policy, Goodput)
    with monkeypatch.context() as patch:
        for name in ("attach", "load_drafter", "load_tokenizer", "SharedDrafter"):
            patch.setattr(kept_drafters, name, lambda *_, **__: pytest.fail("made again"))
        helped(model, drafter, omnidraft_options={})
        helped(model, drafter, omnidraft_options=None, do_sample=True)
    assert list(ready_drafters(model).values()) == [kept]

    with monkeypatch.context() as patch:  # other options: another pair of the same drafter
        patch.setattr(kept_drafters, "load_drafter", lambda *_, **__: pytest.fail("loaded again"))
        for count in range(2, 8):
            helped(model, drafter, omnidraft_options={"draft_length": count}, max_new_tokens=2)
    assert len(ready_drafters(model)) == kept_drafters.KEPT
    assert {id(each.adaptive.shared) for each in ready_drafters(model).values()} == {id(kept.adaptive.shared)}


@pytest.mark.slow
def test_what_is_kept_goes_with_the_model(target: Path, drafter: Path) -> None:
    model, twin = load(target), load(target)
    own = omnidraft.load(target, drafter, draft_length=4)
    same = own.target.lm.model
    helped(model, twin, max_new_tokens=4)
    helped(same, own, max_new_tokens=4)  # the drafter of an OmniDraft, for that one's own target
    models: list[Any] = [weakref.ref(each) for each in (model, twin, same)]
    pairs = [
        weakref.ref(each.adaptive.attached)
        for each in (*ready_drafters(model).values(), *ready_drafters(same).values())
    ]
    del model, twin, same, own
    gc.collect()
    assert [each() for each in (*models, *pairs)] == [None] * 5


def test_a_model_that_changes_is_seen_as_it_is(target: Path, twin: PreTrainedModel) -> None:
    model: Any = load(target)
    before = helped(model, twin)
    noisy(model, 0.05)
    expected = alone(model)
    assert not torch.equal(before, expected)
    assert torch.equal(helped(model, twin), expected)
    model.double()
    assert torch.equal(helped(model, twin), alone(model))


# ---------------------------------------------------------------- drafters of every kind


@pytest.mark.slow
def test_drafters_of_every_kind(model: PreTrainedModel, target: Path, drafter: Path, rounds: list[Round]) -> None:
    expected = alone(model)
    tokenizer = AutoTokenizer.from_pretrained(drafter)
    nameless = load(drafter)
    nameless.config.name_or_path = nameless.name_or_path = ""
    shared = omnidraft.load(target, drafter, **OPTIONS)
    for helper, options in (
        (drafter, {}),
        (str(drafter), {"omnidraft_options": Drafting(**OPTIONS, drafter_backend="transformers")}),
        ("zoo:drafter", {}),
        (load(drafter), {}),
        (nameless, {"omnidraft_drafter_tokenizer": tokenizer}),
        (shared, {}),
    ):
        rounds.clear()
        assert torch.equal(helped(model, helper, **options), expected)
        assert any(record.draft for record in rounds)
    with pytest.raises(ConfigError, match="give omnidraft_drafter_tokenizer"):
        helped(model, nameless)

    lost = load(target)
    lost.config.name_or_path = lost.name_or_path = "no/such model"
    with pytest.raises(ConfigError, match="'no/such model': give omnidraft_tokenizer"):
        helped(lost, drafter, ids=ids_of(model))
    own = AutoTokenizer.from_pretrained(target)
    assert torch.equal(helped(lost, drafter, ids=ids_of(model), omnidraft_tokenizer=own), expected)


@pytest.mark.slow
def test_a_drafter_that_learns_elsewhere_is_shared(
    model: PreTrainedModel, target: Path, drafter: Path, tmp_path: Path
) -> None:
    """What it learned for its own target stays that target's, and neither changes what the other says."""
    with omnidraft.load(
        target, drafter, **OPTIONS, adapt="inline", update_every=1, learning_rate=0.1, profile=tmp_path / "profile"
    ) as learner:
        expected = alone(model)
        assert torch.equal(helped(model, learner), expected)
        answers = [learner.generate(f"{PROMPT} {i}", max_new_tokens=COUNT) for i in range(12)]
        assert learner.learned["updates"] > 0
        adaptive = learner.adaptive
        assert adaptive is not None
        learned, base = adaptive.attached.drafter.model, adaptive.shared.model
        assert learned is not base
        assert torch.equal(helped(model, learner), expected)
        *_, ready = ready_drafters(model).values()
        assert ready.adaptive.attached.drafter.model is base
        again = learner.generate(f"{PROMPT} 0", max_new_tokens=COUNT)
        assert again.token_ids == answers[0].token_ids
        assert adaptive.attached.drafter.model is not base


def test_one_text_at_a_time(model: PreTrainedModel, target: Path, drafter: Path) -> None:
    shared = omnidraft.load(target, drafter, **OPTIONS)
    stream = shared.stream(PROMPT, max_new_tokens=COUNT)
    next(stream)
    helped(model, shared)
    with pytest.raises(OmniDraftError, match="another request was begun"):
        list(stream)

    class Inner:
        def put(self, value: torch.Tensor) -> None:
            if value.dim() == 1:
                helped(model, shared, max_new_tokens=3)

        def end(self) -> None:
            """Is not reached."""

    with pytest.raises(OmniDraftError, match="another request was begun"):
        helped(model, shared, omnidraft_streamer=Inner())
    assert torch.equal(helped(model, shared), alone(model)), "and the next text is as good as any"
