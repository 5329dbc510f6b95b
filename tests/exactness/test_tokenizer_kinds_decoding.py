"""Decoding with every family of tokenizers: the distribution of what is said, and where a text ends."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from functools import cache

import pytest
import torch

from omnidraft.api import OmniDraft
from omnidraft.config import Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stream import decode
from omnidraft.models.loading import LoadedModel
from omnidraft.models.transformers_model import TransformersModel
from omnidraft.verification.rejection import residual
from omnidraft.verification.rejection import symbols as verify
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import softmax
from support.enumeration import EXACT, Distribution, distance, first_tokens, round_distribution
from support.lanes import Language, context_of, generate, lane, sampler, tokens
from support.lanes import family_language as spoken
from support.models import Scripted, random_model
from support.table_models import Ids
from support.texts import TEXTS
from support.tokenizer_families import OWN, PARTIAL, WHOLE

pytestmark = pytest.mark.medium

KINDS = [*WHOLE, *PARTIAL, *OWN]
APART = 4  # so far from a target's kind is its drafter's: each is both
PROMPTS = {"English": "The river had", "Chinese": "河水"}
GREEDY = Sampling()
COUNT = 2  # tokens whose joint distribution is looked at
NEW = 36  # tokens of a greedy text, of a script
VARIED = 24  # and of a random model


def drafter_of(name: str) -> str:
    return KINDS[(KINDS.index(name) + APART) % len(KINDS)]


def rounds(lane_: Lane, prompt: list[int], count: int) -> list[Round]:
    return list(decode(lane_, prompt, count, GREEDY, sampler()))


# ---------------------------------------------------------------- the distribution


@cache
def successors(name: str) -> dict[int, Counter[int]]:
    """How often each token comes after another in our texts."""
    after: dict[int, Counter[int]] = defaultdict(Counter)
    for text in TEXTS.values():
        for before, token in itertools.pairwise(spoken(name).read(text)):
            after[before][token] += 1
    return after


@cache
def row_after(name: str, last: int) -> torch.Tensor:
    """The likeliest successor in our texts, an end of text, and a stranger."""
    vocab = spoken(name).vocab
    logits = torch.full((vocab.size,), -torch.inf, dtype=torch.float64)
    logits[vocab.eos[0]] = -1.0
    logits[(7 * last + 300) % vocab.size] = -0.5
    for after, count in successors(name)[last].most_common(1):
        logits[after] = torch.tensor(count / 2).log1p()
    return logits


class Few(Scripted):
    """The next token given the last."""

    def __init__(self, name: str) -> None:
        super().__init__(spoken(name).vocab.size, ())
        self._name = name

    def row(self, ids: tuple[int, ...]) -> torch.Tensor:
        return row_after(self._name, ids[-1])


def distributions(name: str, script: str, **drafting: object) -> tuple[float, int]:
    """Largest difference between the distributions of the lane and the target; most tokens accepted in a round."""
    target, drafter = Few(name), Few(drafter_of(name))
    lane_ = lane(
        target,
        spoken(name),
        drafter,
        spoken(drafter_of(name)),
        frozen=True,
        draft_length=2,  # more is for small models: here each kind of tokenizer is to meet a rejection
        **drafting,
    )
    prompt, most = spoken(name).read(PROMPTS[script]), 0
    if lane_.counts is not None:  # no path of the enumeration is to tell of another
        vars(lane_.counts._own_rates).update(learn=lambda *_, **__: None)

    def seen(_: float, record: Round) -> None:
        nonlocal most
        most = max(most, record.counts.accepted)

    def next_token(text: Ids) -> Distribution:
        probs = softmax(target.row((*prompt, *text)))
        return {(int(token),): float(probs[token]) for token in probs.nonzero()[0]}

    eos = spoken(name).vocab.eos[:1]
    found = first_tokens(lambda text: round_distribution(lane_, text, seen=seen, prompt=prompt), COUNT, eos)
    return distance(found, first_tokens(next_token, COUNT, eos)), most


@pytest.mark.parametrize("script", PROMPTS)
@pytest.mark.parametrize("name", KINDS)
def test_the_distribution_is_the_target_s(name: str, script: str) -> None:
    assert distributions(name, script)[0] < EXACT
    off, accepted = distributions(name, script, verification="block")
    assert off < EXACT
    assert accepted > 0


def test_a_correction_from_the_whole_distribution_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (verify, residual):
        monkeypatch.setattr(module, "draw_from", lambda _cache, _residual, p, draw: draw(p))
    assert distributions("llama3", "English", verification="token")[0] > 1e-3


# ---------------------------------------------------------------- greedy texts


@cache
def said(name: str) -> tuple[Scripted, list[int], list[int]]:
    """A target that goes on with our texts, one after the other; a prompt, and what it says."""
    ids = [token for text in TEXTS.values() for token in spoken(name).read(text[:24])]
    assert len(ids) > NEW + 4
    return Scripted(spoken(name).vocab.size, ids), ids[:4], ids[4 : 4 + NEW]


def knowing(name: str, text: list[int], wrong: int = 0) -> Scripted:
    """A drafter that knows what the target will say, but for every `wrong`-th token."""
    other = drafter_of(name)
    context = context_of(spoken(other), spoken(name))
    script = context.prompt(said(name)[1]) + context.tokens(text)
    return Scripted(spoken(other).vocab.size, script, wrong)


def varied(language_: Language, prompt: list[int]) -> tuple[TransformersModel, list[int]]:
    """A random target and its greedy text, such as does not go round in circles or end."""
    for seed in range(40):
        target = random_model("llama", language_.vocab.size, seed)
        text = generate(target, prompt, VARIED)
        if len(set(text)) > VARIED / 2 and not set(text) & set(language_.vocab.eos):
            return target, text
    raise AssertionError("random models had no text worth comparing")


@pytest.mark.parametrize("name", KINDS)
def test_greedy_texts_are_those_of_transformers(name: str) -> None:
    language_, (_, prompt, _) = spoken(name), said(name)
    target, expected = varied(language_, prompt)
    accepted = 0
    for wrong, length in itertools.product((0, 3), (1, 4)):
        drafter = knowing(name, expected, wrong)
        found = rounds(lane(target, language_, drafter, spoken(drafter_of(name)), draft_length=length), prompt, VARIED)
        assert tokens(found) == expected
        accepted += sum(record.counts.accepted for record in found)
    # How much of a random text a drafter can write depends on its bytes; texts that are all written are below.
    assert accepted > VARIED / 4


@pytest.mark.parametrize("name", KINDS)
def test_an_end_of_text_at_every_place_of_a_round(name: str) -> None:
    language_, (_, prompt, text) = spoken(name), said(name)
    places = set()
    for length in range(9):
        whole = [*text[:length], language_.vocab.eos[0]]
        target = Scripted(language_.vocab.size, [*prompt, *whole])
        drafter = knowing(name, whole)
        found = rounds(lane(target, language_, drafter, spoken(drafter_of(name)), draft_length=5), prompt, NEW)
        assert tokens(found) == whole
        assert found[-1].finish == "eos"
        places.add((len(found[-1].emitted), found[-1].counts.accepted == len(found[-1].emitted)))
    assert len(places) > 3


@pytest.mark.parametrize("name", KINDS)
def test_a_stop_string_at_every_place_of_a_text(name: str) -> None:
    language_, (target, prompt, text) = spoken(name), said(name)
    own = lane(target, language_, knowing(name, text), spoken(drafter_of(name)), draft_length=5)
    loaded = LoadedModel(target, language_.tokenizer, name, "asked for")  # type: ignore[arg-type]
    model = OmniDraft(loaded, language_.vocab, own)
    whole = model.generate(prompt, max_new_tokens=NEW)
    assert list(whole.token_ids) == text
    inside = 0
    for begin in range(0, len(whole.text) - 3, 2):
        stop = whole.text[begin : begin + 3]
        stream = model.stream(prompt, max_new_tokens=NEW, stop=stop)
        pieces = list(stream)
        assert "".join(pieces) == stream.result.text == whole.text[: whole.text.find(stop)]
        assert stream.result.finish_reason == "stop"
        assert list(stream.result.token_ids) == text[: len(stream.result.token_ids)]
        inside += stream.rounds[-1].counts.accepted == len(stream.rounds[-1].emitted)
    assert inside > 3
