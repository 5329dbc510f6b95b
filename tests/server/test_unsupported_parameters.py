"""What cuts beside a grammar still cuts, and log-probabilities are the target's own."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import torch

from omnidraft.api import OmniDraft
from support.serving import QUESTION, At, events, user

pytestmark = pytest.mark.medium

SCHEMA = {
    "type": "object",
    "properties": {"pens": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["pens"],
    "additionalProperties": False,
}
PROMPT = "Question: Tim has 4 boxes"


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"top_p": 0.1}, {"min_p": 0.9}, {"top_k": 1}], ids=str)
def test_what_cuts_leaves_a_grammar_its_tokens(plain: At, change: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    found: dict[bool, set[str]] = {}
    for seed in range(8):
        for cut in ({}, change):
            asked = {"temperature": 1.5, "seed": seed, "max_tokens": 64, "response_format": form} | cut
            answer = plain.chat(**asked)
            assert answer.status_code == 200, answer.text
            text = answer.json()["choices"][0]["message"]["content"]
            assert 0 <= json.loads(text)["pens"] <= 99
            found.setdefault(bool(cut), set()).add(text)
    assert len(found[True]) < len(found[False])  # it still cuts


def expected(model: OmniDraft, ids: list[int], made: list[int]) -> list[float]:
    """The target's own log-probabilities of these tokens after these ids."""
    rows = model.target.lm.new_sequence().forward(ids + made, len(made) + 1)[:-1]
    return [float(row[token]) for row, token in zip(torch.log_softmax(rows.float(), -1), made, strict=True)]


def figures(told: dict[str, Any]) -> list[float]:
    """The log-probabilities of a token and of those that might have stood in its place."""
    return [each["logprob"] for each in (told, *told["top_logprobs"])]


def texts(told: dict[str, Any]) -> list[dict[str, Any]]:
    """What else is told of them."""
    return [{key: each[key] for key in each if "logprob" not in key} for each in (told, *told["top_logprobs"])]


@pytest.mark.parametrize("stream", [False, True])
def test_completions_have_logprobs_and_places(plain: At, alone: OmniDraft, stream: bool) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 2, "stream": stream}
    bodies = events(plain.post("/v1/completions", asked))
    parts = [body["choices"][0]["logprobs"] for body in bodies if body["choices"]]
    found = {key: [each for part in parts for each in part[key]] for key in parts[0]}
    content = "".join(body["choices"][0]["text"] for body in bodies)
    made = list(alone.generate(PROMPT, max_new_tokens=12, temperature=0).token_ids)
    assert found["token_logprobs"] == pytest.approx(expected(alone, alone.encode(PROMPT), made), abs=1e-4)
    names = ("tokens", "text_offset", "token_logprobs", "top_logprobs")
    for token, place, logprob, top in zip(*(found[name] for name in names), strict=True):
        assert content[place : place + len(token)] == token
        assert len(top) == 2
        assert top[token] == max(top.values()) == logprob  # of a greedy answer


@pytest.mark.parametrize("most", [0, 1, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_the_token_itself_is_always_among_the_likeliest(plain: At, most: int, stream: bool) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 20, "temperature": 1.5, "seed": 5, "logprobs": most, "stream": stream}
    for echo in (False, True):
        found = [
            body["choices"][0]["logprobs"] for body in events(plain.post("/v1/completions", asked | {"echo": echo}))
        ]
        rows = [
            row
            for each in found
            for row in zip(each["tokens"], each["token_logprobs"], each["top_logprobs"], strict=True)
        ]
        rows = [row for row in rows if row[1] is not None]  # the first of a prompt
        assert len(rows) >= 20
        assert all(token in top and top[token] >= logprob for token, logprob, top in rows)
        assert {len(top) for _, _, top in rows} <= {max(most, 1), most + 1}
        assert any(len(top) == most + 1 for _, _, top in rows)  # of a sampled one that is not likely
    chat = plain.chat(temperature=1.5, seed=5, max_tokens=20, logprobs=True, top_logprobs=most).json()
    assert {len(each["top_logprobs"]) for each in chat["choices"][0]["logprobs"]["content"]} == {most}


def test_responses_have_logprobs(plain: At, alone: OmniDraft) -> None:
    near = partial(pytest.approx, abs=1e-4)  # passes over more or fewer tokens round otherwise
    asked = {"input": QUESTION, "max_output_tokens": 12, "temperature": 0, "top_logprobs": 2}
    asked["include"] = ["message.output_text.logprobs"]
    part = plain.post("/v1/responses", asked).json()["output"][0]["content"][0]
    made = list(alone.generate(user(QUESTION), max_new_tokens=12, temperature=0).token_ids)
    found = [each["logprob"] for each in part["logprobs"]]
    assert found == near(expected(alone, alone.encode(user(QUESTION)), made))
    assert "".join(each["token"] for each in part["logprobs"]) == part["text"]
    assert all(max(top["logprob"] for top in each["top_logprobs"]) == each["logprob"] for each in part["logprobs"])
    told = events(plain.post("/v1/responses", asked | {"stream": True}))
    streamed = [each for event in told if event["type"].endswith("text.delta") for each in event["logprobs"]]
    assert [figures(each) for each in streamed] == [near(figures(each)) for each in part["logprobs"]]
    assert [texts(each) for each in streamed] == [texts(each) for each in part["logprobs"]]
