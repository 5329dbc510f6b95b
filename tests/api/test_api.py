"""The Python interface on two small models."""

from __future__ import annotations

import json
import shutil
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import omnidraft
from omnidraft import ConfigError, OmniDraft, PromptError
from omnidraft.alignment import spelling_table as spelling
from omnidraft.config import Drafting, Sampling
from omnidraft.models.language_model import Read
from support.learning import alone
from support.models import CONTEXT
from support.reads import watch

pytestmark = pytest.mark.medium

PROMPT = "hello world"
COUNT = 24


# ------------------------------------------------------------ answers


@pytest.mark.slow
def test_greedy_answers_are_those_of_transformers(model: OmniDraft) -> None:
    result = model.generate(PROMPT, max_new_tokens=COUNT)
    expected = alone(model, PROMPT, COUNT)
    assert len(set(expected)) > COUNT // 2, "the answer must be worth comparing"
    assert result.token_ids == expected
    assert result.finish_reason == "length"
    assert result.stats.tokens == COUNT
    assert result.stats.proposed > 0


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("sentencepiece", [False, True])
def test_text_is_what_the_tokenizer_decodes_after_the_prompt(target: Path, drafter: Path, sentencepiece: bool) -> None:
    model = omnidraft.load(*((drafter, target) if sentencepiece else (target, drafter)), draft_length=4)
    for seed, prompt in enumerate([PROMPT, "hello ", [model.target.tokenizer.bos_token_id]] * 2):
        ids = model.encode(prompt)
        result = model.generate(prompt, max_new_tokens=COUNT, temperature=1.0, seed=seed)
        known, whole = (
            model.target.tokenizer.decode(tokens, skip_special_tokens=True)
            for tokens in (ids, [*ids, *result.token_ids])
        )
        assert f"{known}{result.text}" == whole


def test_a_stream_is_the_same_answer_in_pieces(steady: OmniDraft) -> None:
    options: dict[str, Any] = {"max_new_tokens": COUNT, "temperature": 0.9, "top_k": 50, "seed": 3}
    stream = steady.stream(PROMPT, **options)
    pieces = list(stream)
    assert len(pieces) > 3
    assert all(pieces)
    assert "".join(pieces) == stream.result.text
    again = steady.generate(PROMPT, **options)
    assert (again.text, again.token_ids) == (stream.result.text, stream.result.token_ids)


def test_seeds_decide_every_draw(steady: OmniDraft) -> None:
    asked: dict[str, Any] = {"max_new_tokens": COUNT, "temperature": 1.0}
    answers = [steady.generate(PROMPT, **asked, seed=seed).token_ids for seed in (1, 2, 1)]
    assert answers[0] == answers[2] != answers[1]


@pytest.mark.parametrize("plain", [{"drafter": None, "draft_length": 0}, {"draft_length": 0}])
def test_plain_decoding_is_the_same_loop(model: OmniDraft, target: Path, plain: dict[str, Any]) -> None:
    own, prompt = omnidraft.load(target, **plain, warn=pytest.fail), "hello hello hello hello"  # to be copied from
    result = own.generate(prompt, max_new_tokens=COUNT)
    assert result.token_ids == model.generate(prompt, max_new_tokens=COUNT).token_ids
    assert (own.drafter, result.stats.proposed, result.stats.block_efficiency) == (None, 0, 1.0)


def test_text_ends_where_the_generation_config_says(model: OmniDraft, target: Path, tmp_path: Path) -> None:
    tokens = model.generate(PROMPT, max_new_tokens=COUNT).token_ids
    eos = next(token for place, token in enumerate(tokens) if place > 8 and token not in tokens[:place])
    folder = shutil.copytree(target, tmp_path / "other")
    settings = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    (folder / "generation_config.json").write_text(
        json.dumps(settings | {"eos_token_id": [eos, tokens[-1] + 1]}), encoding="utf-8"
    )
    ending = omnidraft.load(folder, None)
    result = ending.generate(PROMPT, max_new_tokens=COUNT)
    assert (result.finish_reason, result.token_ids[-1]) == ("eos", eos)
    assert result.token_ids == alone(ending, PROMPT, COUNT)


def test_text_ends_where_the_context_is_full(model: OmniDraft) -> None:
    prompt = model.encode(PROMPT) * (CONTEXT // 3)
    result = model.generate(prompt[: CONTEXT - 3], max_new_tokens=COUNT)
    assert (result.finish_reason, len(result.token_ids)) == ("context", 4)


# ------------------------------------------------------------ interruptions


def test_an_interrupted_stream_keeps_its_text(model: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = model.generate(PROMPT, max_new_tokens=COUNT)
    calls = 0

    def interrupted(read: Read) -> None:
        nonlocal calls
        calls += read.sequence.model is model.target.lm
        if calls == 6:
            raise KeyboardInterrupt

    watch(monkeypatch, type(model.target.lm), interrupted)
    stream = model.stream(PROMPT, max_new_tokens=COUNT)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    result = stream.result
    assert result.finish_reason == "interrupted"
    assert result.text
    assert expected.text.startswith(result.text)
    assert expected.token_ids[: len(result.token_ids)] == result.token_ids
    assert model.generate(PROMPT, max_new_tokens=COUNT).token_ids == expected.token_ids


# ------------------------------------------------------------ the disk cache


def test_the_spelling_table_is_kept(target: Path, drafter: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    omnidraft.load(target, drafter, warn=pytest.fail)
    assert len(list((home / "tables").iterdir())) == 1
    monkeypatch.setattr(spelling, "build_table", pytest.fail)
    omnidraft.load(target, drafter, warn=pytest.fail)


def nowhere() -> Path:
    raise ConfigError("no home folder is known: set OMNIDRAFT_HOME")


def test_a_table_that_has_no_place_is_said_and_done_without(
    target: Path, drafter: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr("omnidraft.attach.default_cache_dir", nowhere)
    model = omnidraft.load(target, drafter, warn=said.append)
    assert len(said) == 1
    assert "no home folder" in said[0]
    assert "\n" not in said[0]
    assert model.generate(PROMPT, max_new_tokens=4).stats.tokens == 4
    assert list(home.rglob("*.*")) == []


def test_warnings_are_logged_by_default(
    target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("omnidraft.attach.default_cache_dir", nowhere)
    omnidraft.load(target, drafter)
    assert [record.name for record in caplog.records] == ["omnidraft"]


# ------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("prompt", "options", "error", "words"),
    [
        ("", {}, PromptError, "empty"),
        (b"hello", {}, PromptError, "type bytes"),
        (["hello"], {}, PromptError, "holds 'hello' at place 0"),
        ([5, 1.5], {}, PromptError, "holds 1.5 at place 1"),
        (torch.tensor([True]), {}, PromptError, "True. at place 0"),
        ([[1, 2], [3, 4]], {}, PromptError, "holds a list at place 0: give one prompt"),
        (torch.tensor([[[1, 2]]]), {}, PromptError, "holds a Tensor at place 0: give one prompt"),
        (torch.tensor(1), {}, PromptError, "type Tensor"),
        ({"role": "user", "content": "hello"}, {}, PromptError, "put the message into a list"),
        ({"input_ids": [5, 6], "attention_mask": [0, 1]}, {}, PromptError, "is padded"),
        (None, {}, PromptError, "type NoneType"),
        ("a \udcff", {}, PromptError, "no valid Unicode"),
        ([1, 10**6], {}, PromptError, "token id 1000000 is not in"),
        ([-1], {}, PromptError, "token id -1 is not in"),
        ([5] * (CONTEXT + 1), {}, PromptError, f"{CONTEXT + 1} tokens"),
        (PROMPT, {"temperature": 1e-9}, ConfigError, "at least 0.0001"),
        (PROMPT, {"repetition_penalty": 1e-39}, ConfigError, "at least 0.0001"),
        (PROMPT, {"temperature": float("nan")}, ConfigError, "temperature is nan"),
        (PROMPT, {"top_p": 0}, ConfigError, "top_p is 0"),
        (PROMPT, {"max_new_tokens": 0}, ConfigError, "max_new_tokens is 0"),
        (PROMPT, {"max_new_tokens": True}, ConfigError, "max_new_tokens is True"),
        (PROMPT, {"seed": -1}, ConfigError, "seed is -1"),
        (PROMPT, {"seed": 10**5000}, ConfigError, "seed is of type int"),
        (PROMPT, {"logits_processor": abs}, ConfigError, "put it into a list"),
        (PROMPT, {"logits_processor": 3}, ConfigError, "logits_processor is of type int"),
        (PROMPT, {"logits_processor": [None]}, ConfigError, "logits_processor holds None"),
        (PROMPT, {"logits_processor": [lambda _ids, _scores: None]}, ConfigError, "'<lambda>' returns NoneType"),
        (PROMPT, {"logits_processor": [lambda _ids, scores: scores[0]]}, ConfigError, "scores of shape"),
        (PROMPT, {"template": "x"}, ConfigError, "template is of type str"),
        ([{"role": "user"}], {"template": [("a", 1)]}, ConfigError, "template is of type list"),
        *((PROMPT, {"temperature": sign * Fraction(10**400)}, ConfigError, "temperature is Fr") for sign in (1, -1)),
        (PROMPT, {"temprature": 1}, ConfigError, "did you mean 'temperature'"),
        (PROMPT, {"max_tokens": 1}, ConfigError, "did you mean 'max_new_tokens'"),
        (PROMPT, {"draft_length": 1}, ConfigError, "give it to load"),
    ],
)
def test_bad_input_to_generate(
    model: OmniDraft, prompt: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        model.generate(prompt, **options)
    assert "\n" not in str(caught.value)


def test_numbers_of_numpy_and_none_for_no_list(steady: OmniDraft) -> None:
    plain: dict[str, Any] = {"temperature": 0.75, "top_k": 20, "max_new_tokens": 12, "seed": 1}
    other = {name: np.float32(value) if name == "temperature" else np.int64(value) for name, value in plain.items()}
    found = steady.generate(PROMPT, **other, stop=None, logits_processor=None)
    assert found.token_ids == steady.generate(PROMPT, **plain).token_ids
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Sampling(temperature=np.float16(0.5)).temperature == 0.5  # type: ignore[arg-type]
    assert Drafting(max_draft_length=np.int32(3), threshold=np.float64(0.5), draft_length="head").longest == 3  # type: ignore[arg-type]
