"""The sampled distribution on real tokenizers and trained models: chi-squared tests on joint blocks of tokens.

With N samples in bins of expected probability π, the statistic's noncentrality under a distribution at total variation
δ is at least N·(2δ)², so that each test states the distance it would find with probability 0.95.
"""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from omnidraft.alignment.spelling_table import Probs
from omnidraft.config import Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stream import decode
from omnidraft.models.language_model import LanguageModel
from omnidraft.models.loading import load_model
from omnidraft.models.native.model import native_of
from omnidraft.verification.rejection import residual
from omnidraft.verification.rejection import symbols as verify
from omnidraft.verification.sampling import GeneratorSampler, processed, softmax, target_processors
from omnidraft.zoo import names as zoo_names
from omnidraft.zoo import path as zoo_path
from support.lanes import Language, lane, language
from support.models import Bigram
from support.project_files import shared
from support.remembering import Remembering

TESTS = 16  # for the correction: no more χ² tests than this are made here
ALPHA = 1e-4 / TESTS
EXPECTED = 8.0  # smallest expected count of a bin of its own
Distribution = dict[tuple[int, ...], float]


def joint_distribution(
    model: LanguageModel, prompt: list[int], eos: tuple[int, ...], sampling: Sampling, floor: float
) -> Distribution:
    """Probabilities of the first two tokens, those of at least `floor`."""
    processors, text = target_processors(sampling), model.new_sequence()

    def next_distribution(ids: list[int]) -> Probs:
        text.crop(0)
        scores = processed(processors, torch.tensor([ids]), text.forward(ids, 1).float())
        return softmax(scores[0])

    distribution: Distribution = {}
    first = next_distribution(prompt)
    for a in np.flatnonzero(first >= floor).tolist():
        if a in eos:
            distribution[a,] = float(first[a])
            continue
        second = next_distribution([*prompt, a])
        for b in np.flatnonzero(first[a] * second >= floor).tolist():
            distribution[a, b] = float(first[a] * second[b])
    return distribution


def sample(lane_: Lane, prompt: list[int], count: int, sampling: Sampling, seed: int) -> Counter[tuple[int, ...]]:
    """First two tokens of `count` texts, each over as many rounds as that takes."""
    draw = GeneratorSampler(torch.Generator().manual_seed(seed))
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(count):
        tokens: list[int] = []
        for record in decode(lane_, prompt, 40, sampling, draw):
            tokens += record.emitted
            if len(tokens) >= 2:
                break
        found[tuple(tokens[:2])] += 1
    return found


def p_value(found: Counter[tuple[int, ...]], distribution: Distribution, count: int) -> tuple[float, float]:
    """The χ² p-value, and the total variation that would have been found with probability 0.95."""
    bins = [key for key, p in distribution.items() if p * count >= EXPECTED]
    expected = np.array([distribution[key] * count for key in bins])
    expected = np.append(expected, count - expected.sum())
    observed = np.array([found[key] for key in bins], float)
    observed = np.append(observed, count - observed.sum())
    if expected[-1] < EXPECTED:  # too small a rest to be a bin: it goes to the largest
        rest, expected, observed_rest, observed = expected[-1], expected[:-1], observed[-1], observed[:-1]
        expected[expected.argmax()] += rest
        observed[expected.argmax()] += observed_rest
    degrees = len(expected) - 1
    assert degrees >= 5, "too few bins to mean anything"
    limit = stats.chi2.isf(ALPHA, degrees)
    needed = next(x for x in np.arange(1, 4000) if stats.ncx2.sf(limit, degrees, x) > 0.95)
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return float(stats.chi2.sf(statistic, degrees)), float(np.sqrt(needed / count) / 2)


# ---------------------------------------------------------------- the two worlds


class World:
    def __init__(
        self, target: LanguageModel, target_language: Language, drafter: LanguageModel, drafter_language: Language
    ) -> None:
        self.target, self.target_language = Remembering(target), target_language
        self.drafter, self.drafter_language = Remembering(drafter), drafter_language

    def check(
        self, text: str, count: int, sampling: Sampling, seed: int = 0, **drafting: object
    ) -> tuple[float, float]:
        prompt = self.target_language.tokenizer(text)["input_ids"]
        distribution = joint_distribution(
            self.target, prompt, self.target_language.vocab.eos, sampling, EXPECTED / count
        )
        lane_ = lane(self.target, self.target_language, self.drafter, self.drafter_language, frozen=True, **drafting)
        return p_value(sample(lane_, prompt, count, sampling, seed), distribution, count)


def small_pair(target_name: str, drafter_name: str) -> World:
    """Both take the native step, where no row depends on the others, unless this machine has no C compiler."""
    folders = {"stories": shared("models") / "stories260K", "python": zoo_path(zoo_names("drafter")[0])}
    models = {name: load_model(folders[name], dtype="float32").lm for name in (target_name, drafter_name)}
    languages = {name: language(folders[name], lm.vocab_size) for name, lm in models.items()}
    target, drafter = (
        native_of(models[name], drafts=name == drafter_name) or models[name] for name in (target_name, drafter_name)
    )
    return World(target, languages[target_name], drafter, languages[drafter_name])


@pytest.fixture(scope="module")
def merging() -> World:
    """Trained models: the target's vocabulary is eight times the drafter's, so that most of its tokens are n-grams."""
    return small_pair("python", "stories")


@pytest.fixture(scope="module")
def splitting() -> World:
    """The same the other way round: most drafter tokens stand for several target tokens."""
    return small_pair("stories", "python")


@pytest.fixture(scope="module", params=["llama3", "qwen2"])
def counted(request: pytest.FixtureRequest) -> World:
    """Bigram models of GSM8K answers over real tokenizers: a Llama-2 drafter for a Llama-3 or Qwen2 target."""
    lines = (shared("data") / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()[:3000]
    texts = [json.loads(line)["answer"] for line in lines]
    languages = [language(shared("tokenizers") / name) for name in (request.param, "llama2")]
    models = [
        Bigram(each.vocab.size, each.tokenizer(texts, add_special_tokens=False)["input_ids"], blur=0.1)
        for each in languages
    ]
    return World(models[0], languages[0], models[1], languages[1])


STORY = "Once upon a time there was a"
SAMPLING = Sampling(temperature=1.0)
COUNT = 2_500


@pytest.mark.slow
def test_merging(merging: World) -> None:
    p, detectable = merging.check(STORY, COUNT, SAMPLING, draft_length=4, verification="block")
    assert detectable < 0.12
    assert p > ALPHA


@pytest.mark.slow
def test_splitting(splitting: World) -> None:
    p, detectable = splitting.check(STORY, COUNT, SAMPLING, draft_length=3, verification="token")
    assert detectable < 0.12
    assert p > ALPHA


@pytest.mark.slow
def test_processors_of_the_target(merging: World) -> None:
    sampling = Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.01, repetition_penalty=1.1)
    p, detectable = merging.check(STORY, COUNT, sampling, draft_length=4)
    assert detectable < 0.12
    assert p > ALPHA


@pytest.mark.slow
def test_intersection_mode(splitting: World) -> None:
    p, _ = splitting.check(STORY, COUNT, SAMPLING, draft_length=3, mode="intersection")
    assert p > ALPHA


@pytest.mark.slow
def test_real_tokenizers(counted: World) -> None:
    p, detectable = counted.check("She sold 48/", 1_000, SAMPLING, draft_length=3)
    assert detectable < 0.2
    assert p > ALPHA


# ---------------------------------------------------------------- planted faults, which must be found


@pytest.fixture
def _colder_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts from one temperature, records another: q is not what the token was drawn from."""

    class Colder(GeneratorSampler):
        def __call__(self, weights: Probs) -> int:
            return super().__call__(weights**1.5 if len(weights) == 512 else weights)

    monkeypatch.setitem(globals(), "GeneratorSampler", Colder)


@pytest.mark.slow
@pytest.mark.usefixtures("_colder_record")
def test_a_colder_draw_than_recorded_is_found(merging: World) -> None:
    p, _ = merging.check(STORY, COUNT, SAMPLING, draft_length=4, verification="block")
    assert p < ALPHA


@pytest.mark.slow
def test_a_correction_from_the_whole_distribution_is_found(merging: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (verify, residual):
        monkeypatch.setattr(module, "draw_from", lambda _cache, _residual, p, draw: draw(p))
    p, _ = merging.check(STORY, 2 * COUNT, SAMPLING, draft_length=4, verification="token")
    assert p < ALPHA
