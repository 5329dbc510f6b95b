"""The distribution of what `generate` of transformers samples with our decoding in it, by all choices of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LogitNormalization,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from omnidraft import hf
from omnidraft.config import Drafting, Sampling
from omnidraft.hf.text import settings
from omnidraft.verification.sampling import Sampler
from support.enumeration import Distribution, distance, distribution_of
from support.generating import OPTIONS, Ends, alone, helped, ids_of, load, recorded
from support.models import save_model
from support.small_tokenizers import SPECIAL

SAME = 1e-5  # total variation that float32 may make of equal distributions


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIDRAFT_HOME", str(tmp_path_factory.mktemp("home")))
        yield


def tiny(folder: Path, words: Sequence[str], seed: int) -> Path:
    """A model of a vocabulary so small that all its texts can be enumerated."""
    merges = [(word[:-1], word[-1]) for word in words if len(word) > 1]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL[1:]))
    return save_model(folder, tokenizer, seed)


@pytest.fixture(scope="module")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("tiny")
    return load(tiny(folder / "target", ["a", "b", "ab", "ba", "aba"], 1)), load(
        tiny(folder / "drafter", ["a", "b"], 2)
    )


def plain_distribution(run: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> Distribution:
    """The distribution of the texts of `generate` alone, by every choice that its draws can make."""

    def once(draw: Sampler) -> tuple[int, ...]:
        def multinomial(probs: torch.Tensor, num_samples: int) -> torch.Tensor:
            assert probs.shape[0] == num_samples == 1
            return torch.tensor([[draw(probs[0].numpy())]])

        with monkeypatch.context() as patch:
            patch.setattr(torch, "multinomial", multinomial)
            return tuple(run()[0].tolist())

    return summed(once)


def helped_distribution(run: Callable[[], torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> Distribution:
    """The same with our decoding; what is kept for the models stays as it is."""

    def once(draw: Sampler) -> tuple[int, ...]:
        with monkeypatch.context() as patch:
            patch.setattr(hf, "GeneratorSampler", lambda _: draw)
            return tuple(run()[0].tolist())

    return summed(once)


def summed(run: Callable[[Sampler], tuple[int, ...]]) -> Distribution:
    distribution = distribution_of(run)
    assert abs(sum(distribution.values()) - 1) < SAME
    return distribution


LAWS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.6, "top_k": 0},
    "top-k": {"temperature": 1.3, "top_k": 3},
    "top-p": {"top_k": 0, "top_p": 0.7},
    "all settings": {"temperature": 1.4, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.4},
    "processors": {"temperature": 0.8, "top_k": 4, "suppress_tokens": [3], "min_new_tokens": 2},
    "another order": {"temperature": 0.7, "top_k": 3, "renormalize_logits": True, "sequence_bias": [[[0], 1.0]]},
    "typical": {"typical_p": 0.6, "top_k": 0},
}


@pytest.mark.medium
@pytest.mark.parametrize("name", LAWS)
def test_the_distribution_is_that_of_generate_alone(
    tiny_pair: tuple[PreTrainedModel, PreTrainedModel],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    model, drafter = tiny_pair
    monkeypatch.setattr(
        "omnidraft.alignment.ngram_cache.NgramCache.observe", lambda *_: None
    )  # the same n-grams for every choice
    options = LAWS[name] | {"do_sample": True, "max_new_tokens": 2, "ids": ids_of(model, "ab")}
    again = {"omnidraft_options": OPTIONS | {"reuse_answers": "nothing"}}  # nor may one choice be counted for the next
    expected = plain_distribution(lambda: alone(model, **options), monkeypatch)
    assert len(expected) > 4
    found = helped_distribution(lambda: helped(model, drafter, **again, **options), monkeypatch)
    assert distance(found, expected) < SAME

    # the same comparison sees a setting that is left out, and another one
    for wrong in (Sampling(temperature=1.0), Sampling(temperature=1.0, top_k=2)):
        with monkeypatch.context() as patch:
            patch.setattr(hf, "sampling_for", lambda _, __, drafting, wrong=wrong, **___: (wrong, (), drafting))
            assert (
                distance(helped_distribution(lambda: helped(model, drafter, **again, **options), monkeypatch), expected)
                > 0.01
            )


@pytest.mark.slow
@pytest.mark.parametrize("processed", [False, True])
def test_the_distribution_of_longer_texts(
    tiny_pair: tuple[PreTrainedModel, PreTrainedModel], monkeypatch: pytest.MonkeyPatch, processed: bool
) -> None:
    """Three tokens, drafts of two: a criterion ends some texts in the middle of a round."""
    model, drafter = tiny_pair
    monkeypatch.setattr("omnidraft.alignment.ngram_cache.NgramCache.observe", lambda *_: None)
    options = {"do_sample": True, "top_k": 3, "max_new_tokens": 3, "ids": ids_of(model, "ab")}
    options |= {"suppress_tokens": [4]} if processed else {}

    def criteria() -> StoppingCriteriaList:
        return StoppingCriteriaList([Ends(3)])

    expected = plain_distribution(lambda: alone(model, stopping_criteria=criteria(), **options), monkeypatch)
    assert {len(text) for text in expected} == {length + ids_of(model, "ab").shape[1] for length in (1, 2, 3)}
    own = Drafting(draft_length=2, verification="token", reuse_answers="nothing")
    rounds = recorded(monkeypatch)
    found = helped_distribution(
        lambda: helped(model, drafter, stopping_criteria=criteria(), omnidraft_options=own, **options), monkeypatch
    )
    assert distance(found, expected) < SAME
    assert any(record.finish == "stop" and len(record.emitted) <= record.counts.accepted for record in rounds)


def test_settings_stand_for_nothing_but_their_own_processors() -> None:
    hot, k, p = TemperatureLogitsWarper(0.7), TopKLogitsWarper(20), TopPLogitsWarper(0.8)
    penalty, m = RepetitionPenaltyLogitsProcessor(1.1), MinPLogitsWarper(0.05)
    known = {
        (): Sampling(temperature=1.0),
        (hot,): Sampling(temperature=0.7),
        (k,): Sampling(temperature=1.0, top_k=20),
        (penalty, hot, k, p, m): Sampling(temperature=0.7, top_k=20, top_p=0.8, min_p=0.05, repetition_penalty=1.1),
    }
    for processors, expected in known.items():
        assert settings(LogitsProcessorList(processors), sampled=True) == expected
    other = type("Other", (TopKLogitsWarper,), {})(20)
    unknown = [
        (k, hot),  # the order counts
        (hot, penalty),
        (hot, hot),
        (other,),
        (TopKLogitsWarper(20, min_tokens_to_keep=2),),
        (TopKLogitsWarper(20, filter_value=-1.0),),
        (TopPLogitsWarper(0.8, min_tokens_to_keep=2),),
        (MinPLogitsWarper(0.1, min_tokens_to_keep=2),),
        (RepetitionPenaltyLogitsProcessor(1.1, prompt_ignore_length=3), hot),
        (RepetitionPenaltyLogitsProcessor(1.1, prompt_ignore_length=torch.tensor([3])), hot),
        (hot, LogitNormalization()),
        (TemperatureLogitsWarper(1e-9),),  # colder than settings can be
        (TopPLogitsWarper(1.0),),
        (lambda _, scores: scores,),
    ]
    for processors in unknown:
        assert settings(LogitsProcessorList(processors), sampled=True) is None, processors
    assert settings(LogitsProcessorList([penalty]), sampled=False) is None
    assert settings(LogitsProcessorList(), sampled=False) == Sampling()
