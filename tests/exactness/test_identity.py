"""Greedy decoding in fp32 is token-identical to `transformers` alone, whatever the drafter proposes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnidraft.alignment.vocab import Vocab
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stream import decode
from omnidraft.models.language_model import LanguageModel
from omnidraft.models.loading import load_model
from omnidraft.models.native.model import NativeModel
from omnidraft.models.transformers_model import PretrainedModel, TransformersModel
from omnidraft.verification.round import Round
from omnidraft.zoo import path as zoo_path
from support.compilers import needs_the_8_bit_step
from support.exact_models import native_step
from support.lanes import Language, context_of, generate, lane, language, real_language, sampler, tokens
from support.models import Constant, Scripted, random_model
from support.project_files import shared
from support.remembering import Remembering

pytestmark = pytest.mark.medium

TEXT = "Question: A baker has 3 trays with 12 rolls each and sells 20 of them. How many rolls are left?\nAnswer:"
NAMES = ("llama2", "llama3", "qwen2")
WAYS = (("exact", 1), ("exact", 4), ("exact", 8), ("intersection", 4), ("paper", 4))  # modes and lengths of drafts


def run(lane_: Lane, prompt: list[int], count: int, seed: int = 0, **sampling: float) -> list[Round]:
    draw = sampler(seed)
    return list(decode(lane_, prompt, count, Sampling(**sampling), draw))  # type: ignore[arg-type]


def scripted(target: Language, drafter: Language, prompt: list[int], text: list[int], wrong: int) -> Scripted:
    """A drafter that knows what the target will say, but for every `wrong`-th token."""
    context = context_of(drafter, target)
    return Scripted(drafter.vocab.size, context.prompt(prompt) + context.tokens(text), wrong)


@cache
def varied(kind: str, size: int, prompt: tuple[int, ...]) -> tuple[TransformersModel, list[int]]:
    """A random target and its greedy text, one that does not go round in circles: that would be easy to repeat."""
    for seed in range(10):
        target = random_model(kind, size, seed)
        text = generate(target, list(prompt), 48)
        if len(set(text)) > 24:
            return target, text
    raise AssertionError("no random model had a text worth comparing")


@pytest.mark.slow
@pytest.mark.parametrize("drafter_name", NAMES)
@pytest.mark.parametrize("target_name", NAMES)
def test_real_tokenizers(target_name: str, drafter_name: str) -> None:
    target_language, drafter_language = real_language(target_name), real_language(drafter_name)
    prompt = target_language.tokenizer(TEXT)["input_ids"]
    target, expected = varied("qwen2" if target_name == "qwen2" else "llama", target_language.vocab.size, tuple(prompt))
    size = drafter_language.vocab.size
    drafters: dict[str, LanguageModel] = {
        "knowing": scripted(target_language, drafter_language, prompt, expected, wrong=0),
        "half knowing": scripted(target_language, drafter_language, prompt, expected, wrong=5),
        "constant": Constant(size, 300),
        "end of text": Constant(size, drafter_language.vocab.eos[0]),
        "random": random_model("llama", size, seed=2, layers=1),
    }
    # what it drafts is the same, and dear to compute, in every run
    remembered = Remembering(random_model("llama", size, seed=2, layers=1))
    accepted, turn = 0, 3 * NAMES.index(target_name) + NAMES.index(drafter_name)
    for row, (name, drafter) in enumerate(drafters.items()):
        for column, (mode, k) in enumerate(WAYS):
            if name != "knowing" and (turn + row + column) % 5:
                continue  # over all tokenizers, each of the others drafts in every way
            drafts = remembered if name == "random" and (mode, k) != ("exact", 4) else drafter
            rounds = run(lane(target, target_language, drafts, drafter_language, draft_length=k, mode=mode), prompt, 48)
            assert tokens(rounds) == expected, (name, mode, k)
            assert rounds[-1].finish == "length"
            accepted += sum(r.counts.accepted for r in rounds) * (name == "knowing" and mode == "exact")
            if name == "constant":
                assert sum(r.counts.accepted for r in rounds) <= 2
    # the identity must have been seen on accepted tokens (a random target's tokens merge by chance where they meet, so
    # not every right draft is read as it was meant)
    assert accepted >= 20


@pytest.mark.slow
def test_sampled_drafter_under_a_greedy_target() -> None:
    target_language, drafter_language = real_language("llama3"), real_language("llama2")
    target = random_model("llama", real_language("llama3").vocab.size, seed=3)
    prompt = target_language.tokenizer(TEXT)["input_ids"]
    expected = generate(target, prompt, 40)
    drafter = scripted(target_language, drafter_language, prompt, expected, wrong=4)
    for seed in range(3):
        for temperature in (0.5, 4.0):
            how: dict[str, Any] = {"verification": "block", "draft_length": 5, "drafter_temperature": temperature}
            lane_ = lane(target, target_language, drafter, drafter_language, **how)
            assert tokens(run(lane_, prompt, 40, seed)) == expected


@pytest.fixture(scope="module")
def zoo() -> dict[str, tuple[PretrainedModel, Language]]:
    """The embedded models, and the stories model where it is at hand, in fp32."""
    folders: dict[str, Path] = {name: zoo_path(name) for name in ("drafter", "target-a")}
    folders["stories"] = shared("models") / "stories260K"
    models = {name: load_model(folder, dtype="float32").lm for name, folder in folders.items()}
    return {name: (lm, language(folders[name], lm.vocab_size)) for name, lm in models.items()}


@pytest.fixture(scope="module")
def greedy(zoo: dict[str, tuple[PretrainedModel, Language]]) -> Callable[[str, int], list[int]]:
    """What `transformers` alone says first to a model's prompt: each text is generated once."""

    @cache
    def whole(name: str) -> list[int]:
        target, target_language = zoo[name]
        prompt = target_language.tokenizer(PROMPTS[name])["input_ids"]
        return generate(target, prompt, 120, target_language.vocab.eos)

    return lambda name, count: whole(name)[:count]


FAST = (("target-a", "drafter"), ("stories", "stories"))
PROMPTS = {
    "drafter": "def mean(values):\n",
    "target-a": TEXT,
    "stories": "Once upon a time",
}


TRAINED = ("target-a", "stories", "drafter")
PAIRS = [
    pytest.param(target, drafter, marks=() if (target, drafter) in FAST else pytest.mark.slow)
    for target in TRAINED
    for drafter in TRAINED
]


@pytest.mark.parametrize(("target_name", "drafter_name"), PAIRS)
def test_trained_models(
    zoo: dict[str, tuple[PretrainedModel, Language]],
    greedy: Callable[[str, int], list[int]],
    target_name: str,
    drafter_name: str,
) -> None:
    target, target_language = zoo[target_name]
    drafter, drafter_language = zoo[drafter_name]
    if drafter_name == target_name:  # two caches, so two models
        drafter = TransformersModel(target.model)
    prompt = target_language.tokenizer(PROMPTS[target_name])["input_ids"]
    expected = greedy(target_name, 40)
    remembered = Remembering(TransformersModel(drafter.model))  # what it drafts is the same in every run
    accepted, turn = 0, TRAINED.index(target_name) + 2 * TRAINED.index(drafter_name)
    for row, (mode, k) in enumerate(WAYS):
        if (mode, k) != ("exact", 4) and (turn + row) % 3:
            continue  # over all targets, each model drafts in every way
        drafts = drafter if (mode, k) == ("exact", 4) else remembered
        rounds = run(lane(target, target_language, drafts, drafter_language, draft_length=k, mode=mode), prompt, 40)
        assert tokens(rounds) == expected, (mode, k)
        accepted += sum(r.counts.accepted for r in rounds)
    # children's stories and sums have hardly a token in common; elsewhere a comparison must have met accepted ones
    assert accepted > 0 or "stories" in (target_name, drafter_name)
    if drafter_name == target_name:
        same = lane(target, target_language, drafter, drafter_language, draft_length=4, reuse_answers="nothing")
        rounds = run(same, prompt, 40)
        # the same model proposes what it would say; only partial tokens at a draft's end may be refused
        assert sum(r.counts.accepted for r in rounds) / sum(len(r.proposals) for r in rounds) > 0.95


def test_fast_drafter_steps(
    zoo: dict[str, tuple[PretrainedModel, Language]], greedy: Callable[[str, int], list[int]]
) -> None:
    """A greedy target is not touched by how its drafter computes."""
    (target, target_language), (source, drafter_language) = zoo["target-a"], zoo["drafter"]
    drafter = native_step(source, drafts=True)
    prompt = target_language.tokenizer(TEXT)["input_ids"]
    expected = greedy("target-a", 64)
    accepted = 0
    for k, temperature in ((1, 0.0), (4, 0.0), (8, 1.0)):
        lane_ = lane(
            target, target_language, drafter, drafter_language, draft_length=k, drafter_temperature=temperature
        )
        rounds = run(lane_, prompt, 64)
        assert tokens(rounds) == expected
        accepted += sum(r.counts.accepted for r in rounds)
    assert accepted > 0


def test_8_bit_targets_say_what_they_say_undrafted(zoo: dict[str, tuple[PretrainedModel, Language]]) -> None:
    """On 80 prompts, with a drafter and with counts alone: the bits of a row are the same in every pass."""
    needs_the_8_bit_step()
    (source, target_language), (drafter, drafter_language) = zoo["target-a"], zoo["drafter"]
    target = NativeModel(source.model, source.model.state_dict())
    lines = (shared("data") / "gsm8k" / "test.jsonl").read_text(encoding="utf-8").splitlines()[:80]
    plain, accepted = Lane(target, target_language.vocab.eos), 0
    drafted = [
        lane(target, target_language, native_step(drafter, drafts=True), drafter_language, draft_length=k)
        for k in (1, 3, 8)
    ]
    drafted.append(Lane(target, target_language.vocab.eos, None, Drafting()))
    for i, line in enumerate(lines):
        prompt = target_language.tokenizer(json.loads(line)["question"][-160:])["input_ids"]
        expected = tokens(run(plain, prompt, 24))
        rounds = run(drafted[i % 4], prompt, 24)
        assert tokens(rounds) == expected, i
        accepted += sum(r.counts.accepted for r in rounds)
    assert accepted > 200


def test_repetition_penalty(
    zoo: dict[str, tuple[PretrainedModel, Language]], greedy: Callable[[str, int], list[int]]
) -> None:
    (target, target_language), (drafter, drafter_language) = zoo["target-a"], zoo["drafter"]
    prompt = target_language.tokenizer(TEXT)["input_ids"]
    expected = generate(target, prompt, 64, target_language.vocab.eos, repetition_penalty=1.3)
    assert expected != greedy("target-a", 64)
    lane_ = lane(target, target_language, drafter, drafter_language, draft_length=4)
    assert tokens(run(lane_, prompt, 64, repetition_penalty=1.3)) == expected


def test_plain_decoding_through_the_same_loop(
    zoo: dict[str, tuple[PretrainedModel, Language]], greedy: Callable[[str, int], list[int]]
) -> None:
    target, target_language = zoo["target-a"]
    prompt = target_language.tokenizer(TEXT)["input_ids"]
    rounds = run(Lane(target, target_language.vocab.eos), prompt, 50)
    assert tokens(rounds) == greedy("target-a", 50)
    assert all(len(record.emitted) == 1 for record in rounds)


def test_the_drafter_slides_its_window(
    zoo: dict[str, tuple[PretrainedModel, Language]], greedy: Callable[[str, int], list[int]]
) -> None:
    (target, target_language), (drafter, drafter_language) = zoo["target-a"], zoo["drafter"]
    prompt = target_language.tokenizer(TEXT)["input_ids"]
    expected = greedy("target-a", 120)
    narrow = TransformersModel(drafter.model)
    narrow.context = 24
    rounds = run(lane(target, target_language, narrow, drafter_language, draft_length=4), prompt, 120)
    assert tokens(rounds) == expected
    late = rounds[len(rounds) // 2 :]
    assert sum(r.counts.accepted for r in late) > 0, "the drafter must still be of use after its window moved"


def test_the_target_s_context_ends_the_text(
    zoo: dict[str, tuple[PretrainedModel, Language]], greedy: Callable[[str, int], list[int]]
) -> None:
    (target, target_language), (drafter, drafter_language) = zoo["target-a"], zoo["drafter"]
    prompt = target_language.tokenizer(TEXT)["input_ids"]
    short = TransformersModel(target.model)
    short.context = len(prompt) + 20
    rounds = run(lane(short, target_language, drafter, drafter_language, draft_length=4), prompt, 200)
    assert rounds[-1].finish == "context"
    assert len(tokens(rounds)) == 21  # the last one needs no place in the cache
    assert tokens(rounds) == greedy("target-a", 21)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_an_end_of_text_anywhere_in_a_round(
    zoo: dict[str, tuple[PretrainedModel, Language]], greedy: Callable[[str, int], list[int]], k: int
) -> None:
    (target, target_language), (_, drafter_language) = zoo["target-a"], zoo["drafter"]
    prompt = target_language.tokenizer(TEXT)["input_ids"]
    text = greedy("target-a", 24)
    for length in range(1, 14):  # the target is made to stop at every position
        eos = text[length]
        if eos in text[:length]:
            continue
        stops = Language(target_language.tokenizer, _with_eos(target_language, eos), target_language.speller)
        drafter = scripted(stops, drafter_language, prompt, text, wrong=0)
        rounds = run(lane(target, stops, drafter, drafter_language, draft_length=k), prompt, 24)
        assert tokens(rounds) == text[: length + 1]
        assert rounds[-1].finish == "eos"


def _with_eos(language_: Language, eos: int) -> Vocab:
    return replace(language_.vocab, eos=(eos,), fingerprint=f"{language_.vocab.fingerprint} {eos}")


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_never_more_tokens_than_asked_for(
    zoo: dict[str, tuple[PretrainedModel, Language]], greedy: Callable[[str, int], list[int]], count: int
) -> None:
    (target, target_language), (_, drafter_language) = zoo["target-a"], zoo["drafter"]
    prompt = target_language.tokenizer(TEXT)["input_ids"]
    text = greedy("target-a", 24)
    drafter = scripted(target_language, drafter_language, prompt, text, wrong=0)
    rounds = run(lane(target, target_language, drafter, drafter_language, draft_length=6), prompt, count)
    assert tokens(rounds) == text[:count]
    assert rounds[-1].finish == "length"


def test_bfloat16_differs_only_at_ties(zoo: dict[str, tuple[PretrainedModel, Language]]) -> None:
    """In bf16 logits depend on the batch shape; tokens may differ only where the top two logits are close."""
    margin = 0.25  # bf16 has 8 bits: a logit near 16 is known to 1/16, and two of them are compared after 16 layers
    (_, target_language), (drafter, drafter_language) = zoo["target-a"], zoo["drafter"]
    target = load_model(zoo_path("target-a"), dtype="bfloat16").lm
    prompt = target_language.tokenizer(TEXT)["input_ids"]
    expected = generate(target, prompt, 96, target_language.vocab.eos)
    got = tokens(run(lane(target, target_language, drafter, drafter_language, draft_length=4), prompt, 96))
    if got != expected:
        first = int(np.argmin([a == b for a, b in zip(got, expected, strict=False)]))
        top = target.new_sequence().forward(prompt + expected[:first], 1)[-1].topk(2).values
        assert float(top[0] - top[1]) < margin
