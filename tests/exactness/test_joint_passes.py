"""Several requests read in joint passes: the joint distribution of all that they emit, and bit for bit what each says.

The production code has faults planted in it, which both harnesses must reject.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch

from exactness.test_planted_faults import PLAIN, Rewrite
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding import passes
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.request import Request
from omnidraft.decoding.round import commit, verify
from omnidraft.decoding.schedule import step_together
from omnidraft.decoding.stream import Stream
from omnidraft.errors import InputError
from omnidraft.models.language_model import Read
from omnidraft.models.native.model import NativeModel, NativeSequence
from omnidraft.models.native.step import BLOCK
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import Sampler
from support.enumeration import (
    EXACT,
    SAMPLED,
    Distribution,
    clone,
    distance,
    distribution_of,
    first_tokens,
    plain_distribution,
)
from support.exact_models import native_step
from support.lanes import sampler
from support.models import IDS, InputFunction, random_model
from support.table_models import PROMPT, Ids, TableModel, World, make_world

ASKED = ([PROMPT], [PROMPT, 1])
COUNT = 2  # tokens of an answer
LENGTH = 6000  # of a long text


class JointTable:
    """A table model that reads any number of sequences in one pass."""

    name, precision, chunk, joint, rows_independent, token_bytes = "it", "float64", 2**30, True, True, 0.0
    hybrid, no_drafts, part = False, None, 2**30

    def __init__(self, table: TableModel) -> None:
        self.table, self.vocab_size, self.context = table, table.vocab_size, table.context
        self.rows: list[int] = []  # of each pass

    def new_sequence(self, *, hidden: bool = False) -> Any:  # noqa: ARG002
        return JointText(self)

    def read(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        self.rows.append(len(reads))
        return [InputFunction.forward(each.sequence, each.ids, each.keep) for each in reads]  # type: ignore[arg-type]


class JointText(InputFunction):
    def __init__(self, model: JointTable) -> None:
        super().__init__(model.vocab_size, model.context)
        self._model: Any = model

    @property
    def model(self) -> Any:
        return self._model

    def row(self, ids: Ids) -> torch.Tensor:
        row: torch.Tensor = self._model.table.row(ids)
        return row


def rounds(lanes: Sequence[Lane], requests: Sequence[Request]) -> list[list[Round]]:
    """All rounds of requests, in joint passes."""
    streams = [Stream(lane, request) for lane, request in zip(lanes, requests, strict=True)]
    going = True
    while going:
        steps = step_together(streams)
        for step in steps:
            if step.error is not None:
                raise step.error
        going = any(step.text is not None or step.waits for step in steps)
    return [stream.records for stream in streams]


def joint(world: World, k: int, seen: Callable[[list[int]], None] = lambda _: None) -> Distribution:
    """The distribution of two answers, drafted and verified together, which learn into one n-gram cache."""
    cache = NgramCache(world.table, seed="vocabulary")

    def run(draw: Sampler) -> Ids:
        models: list[Any] = [JointTable(copy.copy(each)) for each in (world.target, world.drafter)]
        shared = clone(cache)
        own: Any = replace(world, target=models[0], drafter=models[1])
        lanes = [own.lane(shared, draft_length=k) for _ in ASKED]
        requests = [one.request(prompt, COUNT, SAMPLED, draw) for one, prompt in zip(lanes, ASKED, strict=True)]
        rounds(lanes, requests)
        seen([max(model.rows) for model in models])
        return (*requests[0].ids[1:], *requests[1].ids[2:])

    return distribution_of(run)


def deviation(world: World, k: int, seen: Callable[[list[int]], None] = lambda _: None) -> float:
    next_token = plain_distribution(world)

    def said(before: Ids) -> Distribution:
        return first_tokens(lambda context: next_token((*before, *context)), COUNT, ())

    expected = {(*one, *other): p * q for one, p in said(()).items() for other, q in said((1,)).items()}
    found = joint(world, k, seen)
    assert abs(sum(found.values()) - 1) < EXACT
    return distance(found, expected)


@pytest.mark.medium
@pytest.mark.parametrize(("seed", "k"), [(1, 1), (2, 2)])
def test_requests_together_have_the_targets_joint_distribution(seed: int, k: int) -> None:
    sizes: list[list[int]] = []
    assert deviation(make_world("tiny", seed), k, sizes.append) < EXACT
    assert [2, 2] in sizes, "target and drafter have read both in one pass"


FAULTS = {
    "a row is given another's logits": Rewrite(passes._forward_batch, "rows[place]", "rows[place - 1]"),
    "a row follows one id less": Rewrite(
        verify,
        "request.ids[lane.target.length :] + fed, len(fed) + 1)",
        "request.ids[lane.target.length :] + fed, len(fed) + 1 + (len(fed) < lane.behind(request)))",
    ),
    "a row that was refused stays": Rewrite(
        commit,
        "lane.target.crop(len(request.ids) + min(outcome.accepted, len(verified.logits) - 1))",
        "pass",
    ),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", FAULTS)
def test_the_enumeration_rejects_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    FAULTS[name](monkeypatch, calls)
    with suppress(ValueError, IndexError):  # where no draw could be made of it
        assert deviation(make_world("tiny", 2), 2) > PLAIN
    assert calls


# ------------------------------------------------------------ the native pass, bit for bit


def script(turns: int = 6) -> list[list[tuple[list[int], int, int]]]:
    """What each of three texts is given in each turn: ids, how many have logits, and how many are dropped then."""
    found = []
    for turn_ in range(turns):
        long = [IDS[: 20 + turn_] if turn_ == at else [] for at in range(3)]
        ids = [
            one or [(7 * turn_ + 3 * at + i) % 96 for i in range(2 + (turn_ + at) % 4)] for at, one in enumerate(long)
        ]
        found.append([(one, min(len(one), 1 + (turn_ + at) % 3), (turn_ + at) % 2) for at, one in enumerate(ids)])
    return found


def grown() -> NativeModel:
    """One with room for a long text."""
    return native_step(random_model("llama", 96, seed=1, context=2 * LENGTH))


def ids(count: int) -> list[int]:
    """A text that says the same now and then, so that counts find something."""
    return [(7 * at * at + at // 40) % 96 if at % 40 < 25 else at % 40 for at in range(count)]


def native() -> NativeModel:
    return native_step(random_model("llama", 96, seed=1))


def read_alone(model: NativeModel) -> list[torch.Tensor]:
    """The logits of each turn and text, each time of a new sequence that reads the whole text."""
    found, texts = [], [list[int]() for _ in range(3)]
    for turn_ in script():
        for text, (ids, keep, dropped) in zip(texts, turn_, strict=True):
            text.extend(ids)
            found.append(model.new_sequence().forward(text, keep))
            del text[len(text) - dropped :]
    return found


def read_together(model: NativeModel) -> list[torch.Tensor]:
    found, texts = [], [model.new_sequence() for _ in range(3)]
    for turn_ in script():
        found += model.read([Read(text, ids, keep) for text, (ids, keep, _) in zip(texts, turn_, strict=True)])
        for text, (*_, dropped) in zip(texts, turn_, strict=True):
            text.crop(text.length - dropped)
    return found


def test_a_joint_pass_has_the_bits_of_each_text_alone() -> None:
    model = native()
    assert all(map(torch.equal, read_together(model), read_alone(model)))


NATIVE = {
    "a row reads another's cache": Rewrite(NativeModel._read_joint, "text.cache.at(", "texts[-1].cache.at("),
    "a position is off by one": Rewrite(NativeModel._read_joint, "text.length + at, ", "text.length + at + 1, "),
    "a cropped row is kept": Rewrite(
        NativeSequence.crop, "self.length = length", "self.length = min(self.length, length + (length > 0))"
    ),
    "a row is that before it": Rewrite(
        NativeModel._read_joint, "x[end - count : end]", "x[max(0, end - count - 1) : max(count, end - 1)]"
    ),
}


@pytest.mark.parametrize("name", NATIVE)
def test_the_bits_tell_of_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = native(), list[str]()
    expected = read_alone(model)
    NATIVE[name](monkeypatch, calls)
    assert not all(map(torch.equal, read_together(model), expected))
    assert calls


# ------------------------------------------------------------ answers, where caches grow

EDGES = sorted({edge + step for edge in range(BLOCK, LENGTH, BLOCK) for step in (-1, 0, 1)} | {LENGTH})
ANSWER = 8  # tokens, in the middle of which a cache is as long as an edge


def answers(model: NativeModel, edges: Sequence[int], count: int, **drafting: Any) -> list[list[tuple[int, float]]]:
    """Tokens and log-probabilities after prompts of about these lengths, so many at a time, from the longest on."""
    text = ids(LENGTH)
    lanes = [Lane(model, (), None, Drafting(**drafting), keeps=True) for _ in range(count)]
    found: dict[int, list[tuple[int, float]]] = {}
    for start in range(0, len(edges), count):
        group = list(reversed(edges))[start : start + count]
        requests = [
            lane.request(text[: edge - ANSWER // 2], ANSWER, Sampling(temperature=0), sampler(), logprobs=0)
            for lane, edge in zip(lanes, group, strict=False)
        ]
        records = rounds(lanes[: len(group)], requests)
        for edge, own in zip(group, records, strict=True):
            found[edge] = [
                (token, info.logprob)
                for record in own
                for token, info in zip(record.emitted, record.logprobs, strict=True)
            ]
    return [found[edge] for edge in edges]


@pytest.mark.slow
def test_answers_are_those_of_each_alone_wherever_a_cache_grows() -> None:
    """Of four at once, drafted from what followed before, at each step of their caches and at 6,000 tokens."""
    model = grown()
    assert answers(model, EDGES, 4, draft_length=3) == answers(model, EDGES, 1, draft_length=0)


def test_the_answers_tell_of_a_row_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls, edges = grown(), list[str](), EDGES[:8]
    expected = answers(model, edges, 1, draft_length=0)
    NATIVE["a cropped row is kept"](monkeypatch, calls)
    with suppress(InputError):  # where no ids are left for the logits that are asked for
        assert answers(model, edges, 4, draft_length=3) != expected
    assert calls
