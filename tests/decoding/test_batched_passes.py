"""Drafts of several requests made in the same passes are those that each would get alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from omnidraft.counts.counts import Guess
from omnidraft.decoding.drafter import Drafter
from omnidraft.decoding.passes import Passes, run, run_batched
from omnidraft.draft_length.simple_policies import Fixed
from omnidraft.errors import PromptError
from omnidraft.models.language_model import LanguageModel, Read
from omnidraft.models.native.model import NativeModel
from omnidraft.models.transformers_model import TransformersModel
from omnidraft.verification.sampling import Sampler
from support.exact_models import native_step
from support.lanes import sampler
from support.models import random_model
from support.reads import passes_of

PROMPTS = ([3, 1, 4], [1, 5, 9, 2, 6], [5, 3], [8] * 13, [9, 7])
LENGTHS = (4, 1, 3, 4, 2)


def fast(seed: int) -> NativeModel:
    return native_step(random_model("llama", 64, seed))


def slow(seed: int) -> TransformersModel:
    return random_model("llama", 64, seed)


Make = Callable[[int], NativeModel | TransformersModel]
BOTH = pytest.mark.parametrize("make", [fast, slow])


def drafters(make: Make = fast) -> list[Drafter]:
    """Of two models, as a rule in 8 bits, and one of transformers, each with a cache of its own."""
    one, other = make(0), make(1)
    models: list[LanguageModel] = [one, one, other, one]
    return [*map(Drafter, models), Drafter(random_model("llama", 64, 2))]


def drafting(drafter: Drafter, place: int, draw: Sampler) -> Passes[tuple[list[int], list[object]]]:
    tokens, vectors = yield from drafter.draft(LENGTHS[place], 1.0, draw, lambda _: True)
    return tokens, [vector.tolist() for vector in vectors]


@pytest.mark.medium
@BOTH
def test_drafts_made_together_are_those_of_each_alone(make: Make) -> None:
    ours, theirs = drafters(make), drafters(make)
    for drafter, prompt in zip([*ours, *theirs], [*PROMPTS, *PROMPTS], strict=True):
        drafter.start(prompt)
    for seed in range(4):
        draws = [[sampler(10 * seed + place) for place in range(len(PROMPTS))] for _ in range(2)]
        found = run_batched([drafting(one, at, draws[0][at]) for at, one in enumerate(ours)])
        assert found == [run(drafting(one, at, draws[1][at])) for at, one in enumerate(theirs)]
        assert [len(tokens) for tokens, _ in found] == list(LENGTHS)
        for one, other, (tokens, _) in zip(ours, theirs, found, strict=True):
            assert (one.passes, one.read) == (other.passes, other.read)
            for each in (one, other):
                each.extend([*tokens[:1], 7])


def test_models_of_the_same_weights_read_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = passes_of(monkeypatch)
    ours = drafters()
    for drafter, prompt in zip(ours, PROMPTS, strict=True):
        drafter.start(prompt)
    run_batched([drafting(one, at, sampler()) for at, one in enumerate(ours)])
    # three prompts, beside one of the other weights; then rows end one by one
    assert [count for _, count in passes] == [3, 1, 2, 1, 2, 1, 2]


@BOTH
def test_each_row_reads_the_hidden_state_of_its_own_pass(make: Make) -> None:
    """Of several drafters on one model of transformers, too, whose output layer is heard by one hook."""

    class Listening(Fixed):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[torch.Tensor] = []

        @property
        def reads_hidden(self) -> bool:
            return True

        def should_draw(
            self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None, guess: Guess | None = None
        ) -> bool:
            assert hidden is not None
            self.seen.append(hidden.clone())
            return super().should_draw(logits, temperature, hidden, guess)

    source, other = random_model("llama", 64, 2), make(0)
    models: list[LanguageModel] = [source, source, other, other]
    found = []
    for way in (run_batched, lambda works: [run(work) for work in works]):
        policies, works = [Listening() for _ in models], []
        for model, prompt, policy in zip(models, PROMPTS, policies, strict=False):
            drafter = Drafter(model)
            drafter.start(prompt)
            works.append(drafter.draft(3, 0.0, sampler(), lambda _: True, None, policy))
        way(works)
        found.append([torch.stack(policy.seen) for policy in policies])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.allclose(found[0][0], found[0][1])


@BOTH
def test_work_that_asks_for_nothing_and_a_failure(make: Make) -> None:
    model = make(0)

    def nothing() -> Passes[int]:
        yield from ()
        return 1

    def failing() -> Passes[int]:
        yield Read(model.new_sequence(), [10**6], 1)
        raise AssertionError

    assert (run(nothing()), run_batched([nothing(), nothing()]), run_batched([])) == (1, [1, 1], [])
    with pytest.raises(PromptError):
        run_batched([nothing(), failing()])


def test_an_end_of_a_model_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def asking() -> Passes[int]:
        yield Read(slow(0).new_sequence(), [1], 1)
        return 1

    monkeypatch.setattr(TransformersModel, "read", lambda *_: next(iter(())))
    with pytest.raises(StopIteration):
        run(asking())


@pytest.mark.medium
def test_after_a_failed_pass_drafts_are_those_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = drafters(), drafters()
    for drafter, prompt in zip([*ours, *theirs], [*PROMPTS, *PROMPTS], strict=True):
        drafter.start(prompt)
    true, count = NativeModel.read, itertools.count()

    def failing(self: NativeModel, *arguments: Any) -> list[torch.Tensor]:
        if next(count) == 3:
            raise MemoryError
        return true(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(NativeModel, "read", failing)
        with pytest.raises(MemoryError):
            run_batched([drafting(one, at, sampler(at)) for at, one in enumerate(ours)])
    found = run_batched([drafting(one, at, sampler(at)) for at, one in enumerate(ours)])
    expected = [run(drafting(one, at, sampler(at))) for at, one in enumerate(theirs)]
    assert found[:4] == expected[:4]
    assert found[4][0] == expected[4][0]  # whose model of transformers rounds otherwise after what it has read by now
