"""Exactness with a real model: SmolLM2-135M-Instruct, from the GGUF file of a PyPI package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import omnidraft
from omnidraft.api import OmniDraft
from omnidraft.attach import make_cache
from omnidraft.bench.exactness import EXPECTED, joint_distribution, judged, sampled
from omnidraft.bench.interleaved import drafter_of
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.drafter import Drafter
from omnidraft.decoding.lane import Lane
from omnidraft.demo import smollm2 as download
from omnidraft.errors import ModelError
from support.compilers import needs_the_8_bit_step
from support.remembering import Remembering
from support.serving import At, serving, user

pytestmark = pytest.mark.slow
DRAFTER = "zoo:general"
OPEN = "Tell me about dogs."  # a question whose drafts are accepted often enough for a wrong acceptance to show
SAMPLES = 1000
QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that reverses a string.",
    "Janet has 3 apples and buys 4 more. How many are there now?",
    "写一首关于春天的短诗。",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where the file is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIDRAFT_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def smollm2(home: None) -> Path:  # noqa: ARG001
    """The GGUF file; where it cannot be had, the test is skipped."""
    try:
        return download.smollm2(print)
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def model(smollm2: Path, home: None) -> OmniDraft:  # noqa: ARG001
    """The target in 8 bits, as people run it, with a drafter that drafts in every round."""
    needs_the_8_bit_step()
    return omnidraft.load(smollm2, DRAFTER, dtype="int8", profile=None, draft_length=4)


def test_greedy_answers_are_those_of_generate(smollm2: Path, home: None) -> None:  # noqa: ARG001
    model, accepted = omnidraft.load(smollm2, DRAFTER, dtype="float32", profile=None, draft_length=4), 0
    for question in QUESTIONS:
        answer = model.generate([{"role": "user", "content": question}], max_new_tokens=24, temperature=0.0)
        ids = torch.tensor([model.encode_message(question)])
        whole: Any = model.target.lm.model
        alone = whole.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, pad_token_id=0
        )
        assert list(answer.token_ids) == alone[0, ids.shape[1] :].tolist(), question
        accepted += answer.stats.accepted
    assert accepted > 0, "drafts must have been tested"


def test_sampled_tokens_follow_the_distribution_of_the_target(model: OmniDraft) -> None:
    sampling, target = Sampling(temperature=1.0, top_k=8), Remembering(model.target.lm)
    drafting, own = Drafting(draft_length=2), drafter_of(model)
    drafter = Drafter(Remembering(own.drafter.model))
    attached = replace(own, drafter=drafter, cache=make_cache(own.cache.table, drafting))
    prompt, eos = model.encode_message(OPEN), sorted(model.lane.eos)
    lane = Lane(target, eos, attached, drafting)
    distribution = joint_distribution(target, prompt, eos, sampling, EXPECTED / SAMPLES)
    found, did = sampled(lane, prompt, SAMPLES, sampling, 0, lambda: None)
    finding = judged(found, distribution, did, OPEN, 1e-4)
    assert finding is not None
    assert finding.drafted > 1
    assert finding.detectable < 0.14
    assert finding.passes, finding


@pytest.fixture(scope="module")
def server(smollm2: Path, home: None) -> Iterator[At]:  # noqa: ARG001
    needs_the_8_bit_step()
    with serving([smollm2], DRAFTER, {"draft_length": 4, "dtype": "int8"}) as at:
        yield at


def test_the_openai_client_gets_what_the_library_answers(server: At, model: OmniDraft) -> None:
    client, name = server.client, server.get("/v1/models").json()["data"][0]["id"]
    accepted = 0
    for question in QUESTIONS[:2]:
        expected = model.generate(user(question), max_new_tokens=24, temperature=0.0)
        asked: Any = {"model": name, "messages": user(question), "max_tokens": 24, "temperature": 0}
        whole = client.chat.completions.create(**asked)
        assert whole.choices[0].message.content == expected.text
        assert whole.usage.completion_tokens == len(expected.token_ids)
        accepted += whole.timings["draft_n_accepted"]
        pieces = list(client.chat.completions.create(**asked, stream=True))
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices) == expected.text
        answer = client.responses.create(model=name, input=question, max_output_tokens=24, temperature=0)
        assert answer.output_text == expected.text
    assert accepted > 0


def test_answers_of_the_server_follow_a_schema_and_have_log_probabilities(server: At) -> None:
    client, name = server.client, server.get("/v1/models").json()["data"][0]["id"]
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["n"],
    }
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": schema | {"additionalProperties": False}},
    }
    asked: Any = {"model": name, "messages": user("How many legs has a dog?"), "max_tokens": 24, "temperature": 0}
    answer = client.chat.completions.create(**asked, response_format=form)
    assert 0 <= json.loads(answer.choices[0].message.content)["n"] <= 99
    found = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(found) > 4
    assert all(each.top_logprobs[0].token == each.token and each.logprob <= 0 for each in found)  # greedy
    other = client.chat.completions.create(**asked | {"model": "other"})
    assert other.model_extra is not None
    assert other.model_extra["omnidraft"]["ignored"] == ["model"]
