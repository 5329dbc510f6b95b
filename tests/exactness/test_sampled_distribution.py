"""The sampled distribution on real tokenizers and trained models: chi-squared tests on joint blocks of tokens.

By the package's own test, `omnidraft.bench.exactness`, which has to find planted faults here.
"""

from __future__ import annotations

import json

import pytest

from omnidraft.alignment.spelling_table import Probs
from omnidraft.bench.exactness import EXPECTED, joint_distribution, judged, sampled
from omnidraft.config import Sampling
from omnidraft.models.language_model import LanguageModel
from omnidraft.models.loading import load_model
from omnidraft.models.native_model import native_of
from omnidraft.verification import rejection_sampling as verify
from omnidraft.verification import residual
from omnidraft.verification.sampling import GeneratorSampler
from omnidraft.zoo import names as zoo_names
from omnidraft.zoo import path as zoo_path
from support.engines import Language, engine, language
from support.models import Bigram
from support.project_files import shared
from support.remembering import Remembering

TESTS = 16  # for the correction: no more χ² tests than this are made here
ALPHA = 1e-4 / TESTS


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
        prompt, eos = self.target_language.tokenizer(text)["input_ids"], self.target_language.vocab.eos
        distribution = joint_distribution(self.target, prompt, eos, sampling, EXPECTED / count)
        engine_ = engine(
            self.target, self.target_language, self.drafter, self.drafter_language, frozen=True, **drafting
        )
        found, did = sampled(engine_, prompt, count, sampling, seed, lambda: None)
        finding = judged(found, distribution, did, text, ALPHA)
        assert finding is not None
        assert finding.bins > 5, "too few to mean anything"
        return finding.p_value, finding.detectable


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
COUNT = 1_500  # as few as find a total variation of 0.12
MANY = 2_500  # for faults


@pytest.mark.slow
@pytest.mark.parametrize("verification", ["block", "token"])
def test_merging(merging: World, verification: str) -> None:
    p, detectable = merging.check(STORY, COUNT, SAMPLING, draft_length=4, verification=verification)
    assert detectable < 0.12
    assert p > ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("verification", ["block", "token"])
def test_splitting(splitting: World, verification: str) -> None:
    p, detectable = splitting.check(STORY, COUNT, SAMPLING, draft_length=3, verification=verification)
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

    monkeypatch.setattr("omnidraft.bench.interleaved.GeneratorSampler", Colder)


@pytest.mark.slow
@pytest.mark.usefixtures("_colder_record")
def test_a_colder_draw_than_recorded_is_found(merging: World) -> None:
    p, _ = merging.check(STORY, MANY, SAMPLING, draft_length=4)
    assert p < ALPHA


@pytest.mark.slow
def test_a_correction_from_the_whole_distribution_is_found(merging: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (verify, residual):
        monkeypatch.setattr(module, "draw_from", lambda _cache, _residual, p, draw: draw(p))
    p, _ = merging.check(STORY, 2 * MANY, SAMPLING, draft_length=4, verification="token")
    assert p < ALPHA
