"""The drafter reads a context whose last word changes as texts go on, and draws from what it says at present."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from omnidraft.alignment.spelling_table import Probs
from omnidraft.config import Sampling
from omnidraft.counts.counts import Counts
from omnidraft.decoding import drafter as drafter_module
from omnidraft.decoding.drafter import Drafter
from omnidraft.decoding.passes import Passes, run
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.decoding.stream import decode
from omnidraft.distillation.online_adaptation import Adaptation
from omnidraft.draft_length.simple_policies import Fixed
from omnidraft.models.language_model import LanguageModel, Read
from omnidraft.models.native.model import NativeModel
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import Sampler, softmax
from support.enumeration import EXACT, distance, distribution_of, first_tokens, plain_distribution
from support.exact_models import native_step
from support.lanes import context_of, generate, lane, sampler, tokens, written
from support.lanes import family_language as small
from support.models import Knowing, Scripted, random_model
from support.rounds import begun
from support.table_models import PROMPT, Greedy, Shape, TableModel, make_world
from support.texts import TEXTS

# ---------------------------------------------------------------- the drafter that reads it


def first_q(drafter: Drafter, length: int = 3) -> torch.Tensor:
    _, vectors = run(drafter.draft(length, 1.0, sampler(), lambda _: True))
    return torch.from_numpy(vectors[0])


def test_after_a_change_the_drafter_reads_the_text_as_it_is_now() -> None:
    lm = random_model("llama", 64, seed=1)
    drafter, fresh = Drafter(lm), lm.new_sequence()
    drafter.start([1, 2, 3, 4, 5])
    for added, kept, text in (
        ([], 5, [1, 2, 3, 4, 5]),
        ([6, 7, 8, 9], 5, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ([10, 9], 7, [1, 2, 3, 4, 5, 6, 7, 10, 9]),  # in place of 8 and 9
        ([11], 9, [1, 2, 3, 4, 5, 6, 7, 10, 9, 11]),
        ([12], 6, [1, 2, 3, 4, 5, 6, 12]),
        ([13], None, [1, 2, 3, 4, 5, 6, 12, 13]),
    ):
        drafter.extend(added, kept)
        assert (drafter.text, drafter.begun) == (text, 5)
        fresh.crop(0)
        assert torch.allclose(first_q(drafter), torch.softmax(fresh.forward(text, 1)[-1], -1), atol=1e-5)
        assert drafter.read < 5 or added not in ([11], [13])  # and no more than it has to


def test_a_change_before_the_window_begins_it_anew() -> None:
    lm = random_model("llama", 64, seed=1)
    lm.context = 16
    drafter, fresh = Drafter(lm), lm.new_sequence()
    drafter.start(list(range(1, 15)))
    first_q(drafter, 4)  # slides the window
    for kept, added in ((3, [20, 21]), (4, [22]), (2, list(range(30, 50)))):
        drafter.extend(added, kept)
        found = first_q(drafter, 4)
        held = drafter.sequence.length - 3  # three of the four tokens drawn were read, too
        window = drafter.text[len(drafter.text) - held :]
        assert 0 < len(window) <= 13
        fresh.crop(0)
        assert torch.allclose(found, torch.softmax(fresh.forward(window, 1)[-1], -1), atol=1e-5)


@pytest.mark.medium
def test_a_text_that_goes_on_from_the_last_one_is_read_from_there() -> None:
    lm = random_model("llama", 64, seed=1)
    drafter, fresh = Drafter(lm), lm.new_sequence()
    drafter.start(range(1, 11))
    first_q(drafter)
    for text, keep, kept in (
        ([*range(1, 11), 20, 21], True, 10),
        ([*range(1, 7), 30, 31, 32], True, 6),
        ([*range(1, 7), 30, 31, 32, 5], False, 0),
        ([1, 2, 3], True, 3),
        ([9, 2, 3], True, 0),
    ):
        assert drafter.start(text, keep=keep) == kept
        assert (drafter.text, drafter.begun) == (text, len(text))
        found = first_q(drafter)
        assert drafter.read == len(text) - min(kept, len(text) - 1) + 2  # two of the three drawn were read
        fresh.crop(0)
        assert torch.allclose(found, torch.softmax(fresh.forward(text, 1)[-1], -1), atol=1e-5)


def test_a_window_is_kept_where_the_text_before_it_is_the_same() -> None:
    lm = random_model("llama", 64, seed=1)
    lm.context = 16
    drafter = Drafter(lm)
    text = list(range(1, 15))
    drafter.start(text)
    expected = first_q(drafter, 4)  # slides the window: its half is read
    assert drafter.start(text, keep=True) == len(text)
    assert torch.allclose(first_q(drafter, 4), expected, atol=1e-5)
    assert drafter.start([60, *text[1:]], keep=True) == 0, "the window is not that of this text"


def test_a_window_that_holds_little_of_the_next_text_is_not_kept() -> None:
    lm = random_model("llama", 64, seed=1)
    lm.context = 16
    drafter, fresh = Drafter(lm), Drafter(lm)
    text = list(range(1, 31))
    drafter.start(text)
    first_q(drafter, 4)  # the window begins at token 22
    assert drafter.start(text[:25], keep=True) == 18, "three tokens would be left: a new window begins at 18"
    fresh.start(text[:25])
    assert torch.allclose(first_q(drafter, 4), first_q(fresh, 4), atol=1e-5)


@pytest.mark.medium
def test_of_a_long_text_the_end_alone_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter_module, "WINDOW", 16)
    lm = random_model("llama", 64, seed=1)
    drafter, fresh = Drafter(lm), lm.new_sequence()
    text = [i % 60 for i in range(100)]
    assert [drafter.start(text[:length]) for length in (15, 16, 17)] == [0, 8, 10]
    assert drafter.start(text) == 92, "what the policy counts as unread is what will be read"
    found = first_q(drafter, 4)
    assert drafter.read == 8 + 3  # half a window, and three of the four drawn
    assert torch.allclose(found, torch.softmax(fresh.forward(text[92:], 1)[-1], -1), atol=1e-5)
    read = 0
    for token in range(40):
        drafter.extend([token])
        first_q(drafter, 4)
        read += drafter.read
        assert drafter.sequence.length <= 16
    assert read < 40 * (1 + 3) + 8 * 40 / 4, "each move of the window reads half of it"


class Told(Fixed):
    def open(self, prompt: Sequence[int], new_tokens: int, window: int = 0) -> None:
        self.told = len(prompt), new_tokens, window


def test_the_policy_is_told_what_is_unread_of_the_window() -> None:
    world = make_world("full", 7)
    world.drafter.context = 4
    lane_ = world.lane(draft_length=2)
    lane_.policy = policy = Told()
    begun(lane_, [PROMPT, 1, 2, 3, 0, 1, 2, 3], 9, Sampling(), sampler())
    assert policy.told == (2, 9, 4)


def test_a_pass_that_was_interrupted_is_not_gone_on_from() -> None:
    lm = random_model("llama", 64, seed=1)
    drafter, fresh = Drafter(lm), lm.new_sequence()
    drafter.start([1, 2, 3, 4])
    first_q(drafter)
    drafter.sequence.crop(0)  # as after NumericsError
    assert drafter.start([1, 2, 3, 4, 5], keep=True) == 0
    assert torch.allclose(first_q(drafter), torch.softmax(fresh.forward([1, 2, 3, 4, 5], 1)[-1], -1), atol=1e-5)


class Seldom(Fixed):
    """Wants a draft in every fifth round."""

    def __init__(self) -> None:
        super().__init__()
        self._rounds = 0

    def begin(self, walk: object, chance: float = 0.0) -> bool:  # noqa: ARG002
        self._rounds += 1
        return self._rounds % 5 == 0


@pytest.mark.parametrize("script", ["code", "Russian", "Hindi", "emoji"])
def test_the_drafter_reads_all_that_was_said_since_its_last_draft(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter knows the text, so drafts are accepted from one change of its text to the next."""
    own, other = small("llama2"), small("qwen2")
    ids = small("qwen2").read(TEXTS[script])[:70]
    drafter = Knowing(own.vocab, own.speller, TEXTS[script].encode(), wrong=7)
    lane_ = lane(Scripted(other.vocab.size, ids), other, drafter, own, draft_length=3)
    lane_.policy = Seldom()
    began = len(context_of(own, other).prompt(ids[:10]))
    heard: list[bytes] = []
    draft = Drafter.draft

    def noted(self: Drafter, *arguments: Any) -> Passes[tuple[list[int], list[Probs]]]:
        heard.append(written(own.vocab, self.text[began:]))
        return draft(self, *arguments)

    monkeypatch.setattr(Drafter, "draft", noted)
    said: list[bytes] = []
    records: list[Round] = []
    for record in decode(lane_, ids[:10], 50, Sampling(), sampler()):
        if record.draft:
            said.append(written(other.vocab, tokens(records)))
        records.append(record)
    assert tokens(records) == ids[10:60]
    assert heard == said
    assert len(heard) > 5
    assert sum(record.counts.draft_accepted for record in records) > 5, "as the drafter knows where it is"


@pytest.mark.medium
@pytest.mark.parametrize("k", [1, 4, 7])
def test_greedy_identity_where_the_text_is_broken_characters(k: int) -> None:
    """A random target says parts of characters; a random drafter reads what becomes of them."""
    own, other = small("llama2"), small("qwen2")
    target = random_model("qwen2", other.vocab.size, seed=5)
    prompt = small("qwen2").read(TEXTS["Hindi"])[:20]
    expected = generate(target, prompt, 60)
    assert len(set(expected)) > 20
    drafter = random_model("llama", own.vocab.size, seed=2, layers=1)
    rounds = decode(lane(target, other, drafter, own, draft_length=k), prompt, 60, Sampling(), sampler())
    assert tokens(list(rounds)) == expected


def test_training_examples_are_spelled_token_by_token_after_the_prompt_as_it_was_read() -> None:
    own, other = small("llama2"), small("qwen2")
    ids = small("qwen2").read(TEXTS["Hindi"])[:40]
    serving = SharedDrafter(random_model("llama", own.vocab.size, seed=2, layers=1))
    lane_ = lane(Scripted(other.vocab.size, ids), other, serving.model, own, draft_length=2)
    assert lane_.attached is not None
    lane_.teacher_temperature, lane_.keeps = 1.0, True
    adaptation = Adaptation(lane_.attached, serving, None)
    records = list(decode(lane_, ids[:10], 30, Sampling(), sampler()))
    answer, spelled = adaptation.answer(records), lane_.attached.context
    assert answer.prompt == tuple(spelled.prompt(ids[:10]))
    assert answer.tokens == tuple(ids[10:])
    assert [list(part) for part in answer.written] == [spelled.tokens([token]) for token in ids[10:]]
    assert len(answer.distributions) == 30
    text = lane_.attached.drafter.text
    assert text != [*answer.prompt, *itertools.chain.from_iterable(answer.written)]  # which is what it drafted from


# ---------------------------------------------------------------- the distribution, while texts are written again

LETTERS = Shape((b"\xc3", b"\xa9", b"\xc3\xa9"), (b"\xc3", b"\xa9", b"\xa9\xc3", b"\xc3\xa9"), long={b"\xc3\xa9": (3,)})


class Late(Drafter):
    """Draws from its text, and records what it would have said before that was written again."""

    changes = 0

    def extend(self, tokens: Sequence[int], kept: int | None = None) -> None:
        before = list(self.text)
        super().extend(tokens, kept)
        self.was = before if self.text[: len(before)] != before else self.text
        self.changes += self.was is not self.text

    def draft(self, length: int, temperature: float, *rest: Any) -> Passes[tuple[list[int], list[Probs]]]:
        drafted, vectors = yield from super().draft(length, temperature, *rest)
        model = cast(TableModel, self.model)
        was = getattr(self, "was", self.text)
        late = [softmax(model.row((*was, *drafted[:i])), temperature) for i in range(len(drafted))]
        return drafted, [row.astype(vector.dtype) for row, vector in zip(late, vectors, strict=True)]


class Watched(Late):
    """Only counts."""

    def draft(self, length: int, temperature: float, *rest: Any) -> Passes[tuple[list[int], list[Probs]]]:
        return Drafter.draft(self, length, temperature, *rest)


def joint_distribution(drafter: type[Late], count: int, **drafting: Any) -> tuple[float, int]:
    """How far the first tokens are from the target's distribution, and how often the context was rewritten."""
    world = make_world("letters", 3, shape=LETTERS)
    world.speller = cast(Any, Greedy(world.drafter_vocab))  # é as one token
    changes = 0

    def run(draw: Sampler) -> tuple[int, ...]:
        nonlocal changes
        own = world.lane(**drafting)
        assert own.attached is not None
        watched = drafter(world.drafter)
        own.attached = replace(own.attached, drafter=watched)
        rounds = decode(own, [PROMPT], count, Sampling(temperature=1.0), draw)
        said = tuple(token for record in rounds for token in record.emitted)
        changes += watched.changes
        return said

    return distance(distribution_of(run), first_tokens(plain_distribution(world), count, world.vocab.eos)), changes


@pytest.mark.slow
@pytest.mark.parametrize(
    "drafting", [{"verification": "block"}, {"verification": "token"}, {"mode": "intersection"}], ids=str
)
def test_the_joint_distribution_holds_while_texts_are_written_again(drafting: dict[str, str]) -> None:
    deviation, changes = joint_distribution(Watched, 4, draft_length=1, **drafting)
    assert deviation < EXACT
    assert changes > 10


@pytest.mark.slow
def test_the_q_of_a_text_as_it_was_breaks_the_distribution() -> None:
    deviation, changes = joint_distribution(Late, 4, draft_length=1)
    assert changes > 10
    assert deviation > 0.001


# ---------------------------------------------------------------- what the network missed


class Counted(Fixed):
    """Trusts the counts or not, in turns: + or -."""

    def __init__(self, places: str) -> None:
        super().__init__()
        self._places = itertools.cycle(places)

    def should_use_counts(self, chance: float) -> bool:  # noqa: ARG002
        return next(self._places) == "+"


class StepByStep(Drafter):
    """Reads each token with a pass of its own."""

    def _next_logits(self, drafted: list[int], room: int) -> Passes[torch.Tensor]:
        if not self._aligned:
            self._align(drafted, room)
        position = self._base + len(self._cached)
        unread = self._text[position:] + drafted[max(0, position - len(self._text)) :]
        *others, last = unread
        for token in others:
            yield Read(self.sequence, [token], 1)
        row = yield Read(self.sequence, [last], 1)
        self._cached += unread
        return row[-1]


PERIOD = [3, 1, 4, 1, 5, 9]


def counting(kind: type[Drafter] = Drafter, model: LanguageModel | None = None) -> Drafter:
    drafter = kind(model or random_model("llama", 64, seed=1))
    drafter.counts = Counts()
    return drafter


def exact(context: int | None) -> NativeModel:
    """A model that says the same, bit by bit, however tokens are parted into passes."""
    model = native_step(random_model("llama", 64, seed=1))
    model.context = context or model.context
    return model


def steps(context: int | None, places: str, rounds: int = 8) -> tuple[list[list[float]], int, int]:
    """Drafts of both over rounds that keep some of a draft and spell the text anew; passes made and tokens counted."""
    drafters, found = [counting(kind, exact(context)) for kind in (Drafter, StepByStep)], list[list[float]]()
    passes = counted = 0
    for drafter in drafters:
        drafter.start(PERIOD * 2, new_tokens=64)
    policies = [Counted(places) for _ in drafters]
    for number in range(rounds):
        (tokens, vectors), (same, others) = (
            run(drafter.draft(4, 1.0, sampler(number), lambda _: True, None, policy))
            for drafter, policy in zip(drafters, policies, strict=True)
        )
        assert tokens == same
        assert [one.tolist() for one in vectors] == [other.tolist() for other in others]
        found += [one.tolist() for one in vectors]
        passes, counted = passes + drafters[0].passes, counted + drafters[0].counted
        kept = len(drafters[0].text) - (number % 3 == 2)
        for drafter in drafters:
            drafter.extend([*tokens[: number % 5], *PERIOD[number % 2 :]], kept)
    return found, passes, counted


@pytest.mark.medium
@pytest.mark.parametrize("context", [None, 24])
@pytest.mark.parametrize("places", ["+-", "++-", "-++++", "+++++++++-"])
def test_what_the_network_missed_is_read_in_one_pass_bit_for_bit(context: int | None, places: str) -> None:
    """In drafts, over rounds, where the text is spelled anew, and where the context is full."""
    found, passes, counted = steps(context, places)
    assert counted > 5
    assert passes < len(found) - counted / 2
    network = [row for row in found if min(row) > 0]  # the counts alone leave most tokens out
    assert len(network) >= 2


def test_a_draft_of_the_counts_alone_makes_no_pass() -> None:
    drafter = counting()
    drafter.start(PERIOD * 2)
    tokens, vectors = run(drafter.draft(4, 1.0, sampler(), lambda _: True, None, Counted("+")))
    assert (tokens, drafter.passes, drafter.read, drafter.counted) == (PERIOD[:4], 0, 0, 4)
    assert all(vector[token] == vector.sum() == 1 for token, vector in zip(tokens, vectors, strict=True))
    drafter.extend(tokens)
    run(drafter.draft(1, 1.0, sampler(), lambda _: True, None, Counted("-")))
    assert (drafter.passes, drafter.read, drafter.counted) == (1, 16, 0)
    run(drafter.draft(2, 1.0, sampler(), lambda _: True, None, Counted("+-")))
    assert (drafter.passes, drafter.read, drafter.counted) == (1, 1, 1), "of a text that was read, the draft alone"


def test_an_interrupted_pass_after_tokens_of_the_counts_is_made_again() -> None:
    drafter, fresh = counting(), counting()
    for each in (drafter, fresh):
        each.start(PERIOD * 2)
    for _ in range(2):
        work = drafter.draft(4, 1.0, sampler(), lambda _: True, None, Counted("++-"))
        asked = next(work)
        assert list(asked.ids) == [*PERIOD * 2, *PERIOD[:2]]
        work.close()  # as where the answer is to stop
    found, expected = (
        run(each.draft(4, 1.0, sampler(), lambda _: True, None, Counted("++-"))) for each in (drafter, fresh)
    )
    assert found[0] == expected[0]
    assert [one.tolist() for one in found[1]] == [other.tolist() for other in expected[1]]


def test_without_counts_nothing_is_guessed() -> None:
    drafter = Drafter(random_model("llama", 64, seed=1))
    assert drafter.counts is None
    drafter.start(PERIOD * 2)
    assert drafter.guess() is None
    run(drafter.draft(3, 1.0, sampler(), lambda _: True, None, Counted("+")))
    assert (drafter.passes, drafter.counted) == (3, 0)
    drafter.keep()


def test_a_masked_draft_leaves_the_counts_out() -> None:
    drafter = counting()
    drafter.start(PERIOD * 2)
    allowed = np.ones(64, bool)
    run(drafter.draft(3, 1.0, sampler(), lambda _: True, allowed, Counted("+")))
    assert (drafter.passes, drafter.counted) == (3, 0)


@pytest.mark.parametrize("trusted", [True, False])
def test_a_greedy_draft_is_of_the_best_token_and_one_hot(*, trusted: bool) -> None:
    drafter = counting()
    drafter.start([*PERIOD, 7, *PERIOD[:2], *PERIOD[:2]])  # 3 1 is followed by 4, and by 3
    tokens, vectors = run(drafter.draft(2, 0.0, sampler(), lambda _: True, None, Counted("+" if trusted else "-")))
    guess = drafter.guess()
    assert guess is not None
    assert [vector[token] for token, vector in zip(tokens, vectors, strict=True)] == [1, 1]
    assert (tokens[0] == guess.best) or not trusted
    assert drafter.passes == (0 if trusted else 2)
