"""Several answers, prompts that are repeated or filled in, penalties, forms, and drafting: each does what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from llguidance import LLMatcher

from omnidraft.api import OmniDraft
from omnidraft.server.answers.answer import Answer, Sources, TokenInfo
from omnidraft.server.apis.chat import Places
from omnidraft.server.grammars.grammar import ResponseFormat, Thought, answer_grammar, text_grammar, tokens_of
from omnidraft.server.reading.events import Reasoning, Text
from omnidraft.server.requests import fill_in_middle
from omnidraft.server.requests.bodies import read
from omnidraft.server.requests.fields import Options
from omnidraft.server.requests.messages import of_response
from omnidraft.server.requests.response_bodies import ResponseRequest
from omnidraft.server.requests.sampling_options import sampling_of
from omnidraft.server.server_settings import Serving
from support.serving import QUESTION, At, events, serving, user

pytestmark = pytest.mark.medium

CHATS, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
PROMPT, OTHER = "Question: Tim has 4 boxes", "Question: Ann has 3 pens and"
DRAWN: dict[str, Any] = {"temperature": 1.2, "seed": 5}


@pytest.fixture(scope="module")
def quick(chat: Path) -> Iterator[At]:
    """In 8 bits, where lanes take over what others have read."""
    with serving([chat], options={"dtype": "int8", "draft_length": 3}, lanes=3) as at:
        yield at


def streamed(at: At, path: str, body: dict[str, Any]) -> dict[int, str]:
    """The texts of a stream, by the numbers of their answers."""
    found: dict[int, str] = {}
    for event in events(at.post(path, body | {"stream": True})):
        for choice in event["choices"]:
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            found[choice["index"]] = found.get(choice["index"], "") + text
    return found


# ---------------------------------------------------------------- several answers


@pytest.mark.slow
def test_answers_differ_by_their_seeds(plain: At) -> None:
    asked = {"messages": user(QUESTION), "max_tokens": 12, **DRAWN}
    found = plain.post(CHATS, asked | {"n": 4}).json()
    texts = [choice["message"]["content"] for choice in found["choices"]]
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    for number, text in enumerate(texts):
        one = plain.post(CHATS, asked | {"seed": DRAWN["seed"] + number}).json()
        assert one["choices"][0]["message"]["content"] == text
        assert one["usage"]["prompt_tokens"] == found["usage"]["prompt_tokens"]  # once for all
    assert found["usage"]["completion_tokens"] == found["timings"]["predicted_n"] == 4 * 12
    assert streamed(plain, CHATS, asked | {"n": 4}) == dict(enumerate(texts))


def test_greedy_answers_are_made_once(plain: At) -> None:
    asked = {"messages": user(QUESTION), "max_tokens": 6, "temperature": 0, "n": 3}
    before = plain.figures()["requests"]
    found = plain.post(CHATS, asked).json()
    assert plain.figures()["requests"] == before + 1
    texts = [choice["message"]["content"] for choice in found["choices"]]
    assert len(texts) == 3
    assert len(set(texts)) == 1
    assert streamed(plain, CHATS, asked) == dict(enumerate(texts))


@pytest.mark.slow
def test_the_likeliest_of_several(plain: At) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 10, "logprobs": 0, **DRAWN}
    four = plain.post(TEXTS, asked | {"n": 4}).json()["choices"]

    def likelihood(choice: dict[str, Any]) -> float:
        found = choice["logprobs"]["token_logprobs"]
        return float(sum(found) / len(found))

    order = sorted(four, key=likelihood, reverse=True)
    best = plain.post(TEXTS, asked | {"n": 2, "best_of": 4}).json()
    assert [choice["text"] for choice in best["choices"]] == [choice["text"] for choice in order[:2]]
    assert best["usage"]["completion_tokens"] == sum(len(choice["logprobs"]["tokens"]) for choice in four)
    bare = plain.post(TEXTS, {**asked, "logprobs": None, "n": 1, "best_of": 4}).json()["choices"][0]
    assert (bare["text"], bare["logprobs"]) == (order[0]["text"], None)


def test_prompts_are_answered_in_their_order(plain: At) -> None:
    asked = {"max_tokens": 8, "temperature": 0}
    found = plain.post(TEXTS, asked | {"prompt": [PROMPT, OTHER]}).json()
    each = [plain.post(TEXTS, asked | {"prompt": prompt}).json() for prompt in (PROMPT, OTHER)]
    texts = [one["choices"][0]["text"] for one in each]
    assert [choice["text"] for choice in found["choices"]] == texts
    assert found["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in each)
    assert streamed(plain, TEXTS, asked | {"prompt": [PROMPT, OTHER]}) == dict(enumerate(texts))
    ids = [
        plain.post("/tokenize", {"content": prompt, "add_special": True}).json()["tokens"] for prompt in (PROMPT, OTHER)
    ]
    assert [c["text"] for c in plain.post(TEXTS, asked | {"prompt": ids}).json()["choices"]] == texts


def test_a_prompt_is_read_once_for_all_its_answers(quick: At) -> None:
    asked = {"messages": user(QUESTION * 3), "max_tokens": 6, **DRAWN}
    found = quick.post(CHATS, asked | {"n": 3}).json()
    length = found["usage"]["prompt_tokens"]
    assert found["timings"]["prompt_n"] == length + 2  # of each other answer, the last token
    assert found["timings"]["cache_n"] == 2 * (length - 1)
    greedy = {"messages": user(QUESTION * 3), "max_tokens": 12, "temperature": 0}
    assert quick.post(CHATS, greedy).json()["choices"][0]["message"]["content"]


# ---------------------------------------------------------------- the prompt


@pytest.mark.parametrize("kind", ["plain", "quick"])
def test_a_prompt_is_repeated_with_its_logprobs(kind: str, request: pytest.FixtureRequest, alone: OmniDraft) -> None:
    at: At = request.getfixturevalue(kind)
    text = QUESTION * 4  # longer than what is read at a time
    for length in (0, 1):
        asked = {"prompt": text, "max_tokens": length, "temperature": 0, "logprobs": 2, "echo": True}
        found = at.post(TEXTS, asked).json()
        choice = found["choices"][0]
        ids = alone.encode(text)
        logprobs = choice["logprobs"]
        assert found["usage"]["completion_tokens"] == length
        assert len(logprobs["tokens"]) == len(ids) + length
        assert choice["text"].startswith(text)
        assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
        rows = torch.log_softmax(alone.target.lm.new_sequence().forward(ids, len(ids)).float(), -1)
        expected = [float(row[token]) for row, token in zip(rows, ids[1:], strict=False)]
        near = 1e-3 if kind == "plain" else 0.5
        assert logprobs["token_logprobs"][1 : len(ids)] == pytest.approx(expected, abs=near)
        for token, place in zip(logprobs["tokens"][: len(ids)], logprobs["text_offset"], strict=False):
            assert choice["text"][place : place + len(token)] == token
    bare = at.post(TEXTS, {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "echo": True})
    text = bare.json()["choices"][0]["text"]
    assert text.startswith(PROMPT)
    assert streamed(at, TEXTS, {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "echo": True}) == {0: text}
    again = at.post(TEXTS, {"prompt": PROMPT, "max_tokens": 4, "temperature": 0}).json()
    assert text == PROMPT + again["choices"][0]["text"]


def test_tokens_are_placed_in_a_repeated_text_of_any_characters(plain: At) -> None:
    asked = {"prompt": "Zoë … 你好😀 and", "max_tokens": 2, "temperature": 0, "logprobs": 0, "echo": True}
    choice = plain.post(TEXTS, asked).json()["choices"][0]
    placed = zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True)
    whole = [(token, place) for token, place in placed if "\ufffd" not in token]
    assert len(whole) > 4
    assert all(choice["text"].startswith(token, place) for token, place in whole)


@pytest.mark.parametrize(
    ("echo", "prompt", "made", "places"),
    [
        ("é x", [b"\xc3", b"\xa9", b" x"], [b"y"], [0, 0, 1, 3]),
        ("Hello you", [None, b" Hello", b" you"], [b" a", None, b"b"], [0, 0, 5, 9, 11, 11]),
        ("<s> Hello", [None, b" Hello"], [b"!"], [0, 3, 9]),
        ("", [], [b" a", b"b"], [0, 2]),
    ],
)
def test_what_a_tokenizer_adds_to_a_text_has_no_place_in_it(
    echo: str, prompt: list[bytes | None], made: list[bytes | None], places: list[int]
) -> None:
    told = SimpleNamespace(task=SimpleNamespace(echo=echo), prompt_tokens=len(prompt))
    found = Places(cast("Answer", told))
    for data, place in zip([*prompt, *made], places, strict=True):
        text = "<s>" if data is None else data.decode("utf-8", "replace")
        assert found.of(TokenInfo(text=text, data=None if data is None else [*data], logprob=0.0)) == place


def test_what_stands_between_two_texts(plain: At, alone: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    words = alone.target.tokenizer.get_vocab()
    first, second, third = sorted(word for word in words if word.isalpha())[:3]
    marks = fill_in_middle.FillInTokens(first, second, third)
    monkeypatch.setattr(fill_in_middle, "FAMILIES", (marks,))
    found = plain.post(TEXTS, {"prompt": "a = ", "suffix": "\nprint(a)", "max_tokens": 6, "temperature": 0}).json()
    before, after = (
        alone.target.tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("a = ", "\nprint(a)")
    )
    ids = [words[marks.before], *before, words[marks.after], *after, words[marks.middle]]
    assert found["choices"][0]["text"] == alone.generate(ids, max_new_tokens=6, temperature=0).text


def test_the_last_message_goes_on(plain: At, alone: OmniDraft) -> None:
    messages = [*user(QUESTION), {"role": "assistant", "content": "He has 4"}]
    asked = {"messages": messages, "max_tokens": 6, "temperature": 0}
    found = plain.post(CHATS, asked | {"continue_final_message": True, "add_generation_prompt": False}).json()
    ids = alone.encode(messages, {"continue_final_message": True})
    assert found["usage"]["prompt_tokens"] == len(ids)
    assert found["choices"][0]["message"]["content"] == alone.generate(ids, max_new_tokens=6, temperature=0).text
    bare = plain.post(CHATS, asked | {"add_generation_prompt": False}).json()
    assert bare["usage"]["prompt_tokens"] < plain.post(CHATS, asked).json()["usage"]["prompt_tokens"]


# ---------------------------------------------------------------- what is drawn


COUNT = 16


@pytest.fixture(scope="module")
def bare(alone: OmniDraft) -> str:
    """What is drawn without further options."""
    return alone.generate(user(QUESTION), max_new_tokens=COUNT, **DRAWN).text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "own"),
    [
        *(
            (each, each)
            for each in (
                *({"top_p": 0.3}, {"min_p": 0.3}, {"top_k": 3}, {"repetition_penalty": 1.8}, {"seed": 4}),
                *({"frequency_penalty": 1.5}, {"presence_penalty": 1.5}),
            )
        ),
        ({"repeat_penalty": 1.8, "repeat_last_n": -1}, {"repetition_penalty": 1.8}),
        ({"repeat_penalty": 1.8, "repeat_last_n": 4}, {"repetition_penalty": 1.8, "repetition_window": 4}),
        ({"repeat_penalty": 1.8, "repeat_last_n": 0}, {}),
        ({"logit_bias": {"10": 100}}, {"logit_bias": {10: 100}}),
        ({"logit_bias": [[10, 100], [11, False]]}, {"logit_bias": {10: 100, 11: -1e4}}),
        ({"min_tokens": COUNT - 2}, {"min_new_tokens": COUNT - 2}),
        ({"ignore_eos": True}, {"min_new_tokens": COUNT}),
    ],
    ids=str,
)
def test_what_is_drawn_is_the_librarys(
    plain: At, alone: OmniDraft, bare: str, asked: dict[str, Any], own: dict[str, Any]
) -> None:
    found = plain.chat(**DRAWN | asked, max_tokens=COUNT).json()["choices"][0]["message"]["content"]
    assert found == alone.generate(user(QUESTION), max_new_tokens=COUNT, **DRAWN | own).text
    assert (found == bare) == (not own) or "min_new_tokens" in own


PENALTIES: list[tuple[dict[str, Any], int]] = [  # and the window
    ({"repeat_penalty": 1.8}, 64),
    ({"repeat_penalty": 1.8, "repeat_last_n": 9}, 9),
    ({"repeat_penalty": 1.8, "repeat_last_n": -1}, 0),
    ({"repetition_penalty": 1.8}, 0),
    ({"repetition_penalty": 1.8, "repeat_last_n": 9}, 9),
    ({"repetition_penalty": 1.8, "repeat_penalty": 1.8}, 0),
]


@pytest.mark.parametrize(("asked", "window"), PENALTIES, ids=str)
def test_a_penalty_covers_the_last_tokens_by_the_name_that_it_has(
    plain: At, alone: OmniDraft, asked: dict[str, Any], window: int
) -> None:
    prompt, own = " ".join([QUESTION] * 5), {"repetition_penalty": 1.8, "repetition_window": window}
    expected = [alone.generate(each, max_new_tokens=24, temperature=0, **own).text for each in (user(prompt), prompt)]
    greedy = {"temperature": 0, **asked}
    chat = plain.post(CHATS, {"messages": user(prompt), "max_tokens": 24, **greedy}).json()
    answered = plain.post(RESPONSES, {"input": prompt, "max_output_tokens": 24, **greedy}).json()
    assert chat["choices"][0]["message"]["content"] == expected[0]
    assert answered["output"][0]["content"][0]["text"] == expected[0]
    text = plain.post(TEXTS, {"prompt": prompt, "max_tokens": 24, **greedy}).json()["choices"][0]["text"]
    native = plain.post("/completion", {"prompt": prompt, "n_predict": 24, **greedy}).json()["content"]
    assert text == native == expected[1]
    if "repetition_penalty" not in asked:  # which Ollama has no such name for
        options = {"options": {"num_predict": 24, **greedy}, "model": "chat", "stream": False}
        said = plain.post("/api/chat", {"messages": user(prompt), **options}).json()["message"]["content"]
        assert said == plain.post("/api/generate", {"prompt": prompt, **options}).json()["response"] == expected[0]


@pytest.mark.parametrize(
    ("window", "own"), [(0, {"repetition_penalty": 1.0}), (9, {"repetition_window": 9}), (-1, {"repetition_window": 0})]
)
def test_a_window_alone_is_of_the_targets_own_penalty(window: int, own: dict[str, Any]) -> None:
    made = sampling_of(Options(repeat_last_n=window), Serving(), 5)
    assert {name: value for name, value in made.items() if name.startswith("repetition")} == own
    assert "repetition_window" not in sampling_of(Options(), Serving(), 5)


FORMS: list[tuple[dict[str, Any], str]] = [
    ({"guided_regex": "[ab]{3,5}"}, "[ab]{3,5}"),
    ({"guided_choice": ["yes", 'no, "never"']}, 'yes|no, "never"'),
    ({"guided_grammar": 'root ::= "x" [0-9] "y"'}, "x[0-9]y"),
    ({"grammar": 'root ::= "x" [0-9] "y"'}, "x[0-9]y"),
    ({"guided_json": {"enum": ["a", "b"]}}, '"a"|"b"'),
    ({"guided_json": '{"enum": ["a", "b"]}'}, '"a"|"b"'),
    ({"json_schema": {"const": 7}}, "7"),
    ({"response_format": {"type": "json_schema", "schema": {"const": 7}}}, "7"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": 7}, "strict": "true"}}}, "7"),
    ({"structured_outputs": {"choice": ["a/b", "c"]}}, "a/b|c"),
    ({"structured_outputs": {"regex": "a/[0-9]"}}, "a/[0-9]"),
    ({"structured_outputs": {"json": {"const": [1, 2]}}}, r"\[1, 2\]"),
    ({"response_format": {"type": "json_object", "schema": {"const": {"a": 1}}}}, r'\{"a": 1\}'),
    ({"guided_json": {"$defs": {"注文": {"const": 7}}, "$ref": "#/$defs/注文"}}, "7"),
    ({"guided_json": {"type": "object", "unevaluatedProperties": False}}, r"\{\}"),
    ({"grammar": 'root ::= start thought "\\u00e9"\nstart ::= "x"\nthought ::= [\\U0001F389]'}, "x🎉é"),
]


@pytest.mark.parametrize(("asked", "pattern"), FORMS, ids=str)
def test_answers_have_their_form(plain: At, asked: dict[str, Any], pattern: str) -> None:
    for seed in range(3):
        drawn = {"temperature": 1.5, "seed": seed, "max_tokens": 24, **asked}
        assert re.fullmatch(pattern, plain.chat(**drawn).json()["choices"][0]["message"]["content"])
        assert re.fullmatch(pattern, plain.post(TEXTS, {"prompt": "x", **drawn}).json()["choices"][0]["text"])


SAME: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [  # twice the same, and another
    ({"guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}}, {"structured_outputs": {"regex": "a*"}}),
    ({"guided_choice": ["a", "b"]}, {"structured_outputs": {"choice": ["a", "b"]}}, {"guided_regex": "a|b"}),
    ({"guided_grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "b"'}),
    ({"guided_json": {"const": 1, "title": "x"}}, {"json_schema": '{"title": "x", "const": 1}'}, {"json_schema": "{}"}),
    ({"guided_json": {"const": 1}}, {"structured_outputs": {"json": {"const": 1}}}, {"json_schema": {"const": True}}),
    (
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
        {"guided_json": {"const": 1}},
    ),
]


@pytest.mark.parametrize(("one", "same", "other"), SAME, ids=str)
def test_a_form_may_be_said_twice(plain: At, one: dict[str, Any], same: dict[str, Any], other: dict[str, Any]) -> None:
    drawn = {"temperature": 1, "seed": 1, "max_tokens": 4}
    twice, once = plain.chat(**drawn, **one, **same), plain.chat(**drawn, **one)
    assert twice.status_code == 200
    assert twice.json()["choices"][0]["message"] == once.json()["choices"][0]["message"]
    refused = plain.chat(**one, **other)
    assert refused.status_code == 400
    assert "different forms: leave one out" in refused.json()["error"]["message"]


UNIQUE = {"type": "array", "items": {"type": "integer", "not": {"const": 3}}, "uniqueItems": True, "maxItems": 2}


def test_keywords_that_a_grammar_lacks_are_named_unless_they_are_strict(plain: At) -> None:
    form: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "x", "schema": UNIQUE}}
    found = plain.chat(response_format=form, max_tokens=16).json()
    path = "response_format.json_schema.schema"
    assert sorted(found["omnidraft"]["ignored"]) == [f"{path}.items.not", f"{path}.uniqueItems"]
    form["json_schema"]["strict"] = True
    refused = plain.chat(response_format=form)
    assert refused.status_code == 400
    assert "uniqueItems" in refused.json()["error"]["message"]
    function: dict[str, Any] = {"name": "add", "parameters": {"type": "object", "properties": {"a": UNIQUE}}}
    asked: dict[str, Any] = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    found = plain.chat(**asked, max_tokens=24).json()
    path = "tools[0].function.parameters.properties.a"
    assert sorted(found["omnidraft"]["ignored"]) == [f"{path}.items.not", f"{path}.uniqueItems"]
    function["strict"] = True
    assert plain.chat(**asked).json()["error"]["param"] == "tools[0].function.parameters"


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools(plain: At, mode: str) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("add", "sub", "mul")]
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "sub"}}]}
    choice: dict[str, Any] = {"type": "allowed_tools", "allowed_tools": allowed}
    found = plain.chat(tools=tools, tool_choice=choice, max_tokens=24).json()
    assert sorted(found["omnidraft"]["ignored"]) == ["tools[0]", "tools[2]"]
    calls = found["choices"][0]["message"].get("tool_calls", [])
    assert [call["function"]["name"] for call in calls] == (["sub"] if mode == "required" else [])
    flat = [{"type": "function", "name": name} for name in ("add", "sub")]
    choice = {"type": "allowed_tools", "mode": mode, "tools": [flat[1]]}
    body = {"input": QUESTION, "tools": flat, "tool_choice": choice, "max_output_tokens": 24}
    assert plain.post(RESPONSES, body).json()["omnidraft"]["ignored"] == ["tools[0]"]
    choice["tools"] = [flat[1] | {"name": "div"}]
    assert plain.post(RESPONSES, body).json()["error"]["param"] == "tool_choice"


@pytest.mark.parametrize(
    ("choice", "called", "unused"),
    [
        ("any", ["add", "sub"], ""),  # Mistral's word
        *(({"type": kind}, ["add", "sub"], "") for kind in ("any", "required")),  # Anthropic's form
        ({"type": "tool", "name": "sub"}, ["sub"], "tools[0]"),
        ({"type": "function", "name": "sub"}, ["sub"], "tools[0]"),
        ({"type": "function", "function": {"name": "sub"}}, ["sub"], "tools[0]"),
        ({"type": "auto"}, [], ""),
        ({"type": "none"}, [], "tools"),
        ({"type": "auto", "disable_parallel_tool_use": True}, [], "tool_choice.disable_parallel_tool_use"),
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", RESPONSES])
def test_a_choice_of_tools_in_the_words_of_other_apis(
    plain: At, path: str, choice: Any, called: list[str], unused: str
) -> None:
    tools = [{"name": name} for name in ("add", "sub")]
    flat = [{"type": "function", **each} for each in tools]
    body: dict[str, Any] = {"input": QUESTION, "tools": flat, "max_output_tokens": 24}
    if path != RESPONSES:
        body = {"messages": user(QUESTION), "tools": [{"function": each} for each in tools], "max_tokens": 24}
    found = plain.post(path, {**body, "tool_choice": choice, "temperature": 0}).json()
    items = found["output"] if path == RESPONSES else found["choices"][0]["message"].get("tool_calls", [])
    names = [item.get("function", item)["name"] for item in items if item["type"] != "message"]
    assert len(names) == bool(called)
    assert set(names) <= set(called)
    assert found.get("omnidraft", {}).get("ignored", []) == ([unused] if unused else [])


@pytest.mark.parametrize(
    "other",
    [{"type": "web_search"}, {"type": "custom", "name": "write"}, {"type": "mcp", "server_label": "x"}],
    ids=str,
)
def test_a_function_is_called_beside_a_tool_that_cannot_be(plain: At, other: dict[str, Any]) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"$ref": "#/$defs/数"}}, "required": ["a"]}
    schema |= {"$defs": {"数": {"const": 7}}, "unevaluatedProperties": False}
    add = {"name": "add", "parameters": schema}
    function = {"type": "function", "function": add}
    answer = plain.chat(tools=[other, function], tool_choice="required", max_tokens=24).json()
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 7})
    assert answer["omnidraft"]["ignored"] == ["tools[0]"]
    body = {"input": QUESTION, "tools": [{"type": "function", **add}, other], "tool_choice": "required"}
    answer = plain.post(RESPONSES, {**body, "max_output_tokens": 24}).json()
    (item,) = answer["output"]
    assert (item["type"], item["name"], json.loads(item["arguments"])) == ("function_call", "add", {"a": 7})
    assert answer["omnidraft"]["ignored"] == ["tools[1]"]


PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADDS: list[dict[str, Any]] = [
    {"name": "add", "parameters": PARAMETERS},
    {"name": "free", "parameters": {"type": "object", "additionalProperties": True}},
]
GOOD = ['{"name": "add", "arguments": {"a": 1}}', '{"name": "free", "arguments": {"b": "x"}}']
WRONG = [
    '{"name": "add", "arguments": {"a": "x"}}',
    '{"name": "add", "arguments": {"b": 1}}',
    '{"name": "sub"',
    "nothing",
]
THOUGHT = Thought("</think>", special=False)


def follows(tokens: Any, alone: OmniDraft, grammar: str, text: str) -> bool:
    """Whether an answer may be this text."""
    matcher = LLMatcher(tokens, grammar)
    ids = alone.target.tokenizer(text, add_special_tokens=False)["input_ids"]
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


def test_a_call_within_text_follows_a_strict_schema(alone: OmniDraft) -> None:
    tokens = tokens_of(alone)
    grammar = text_grammar(tokens, ADDS, special=False)
    assert follows(tokens, alone, grammar, "He has 24 pens <b>.")
    for call in GOOD:
        for written in (f"<tool_call>\n{call}\n</tool_call>", f"Well. <tool_call>{call}</tool_call> So."):
            assert follows(tokens, alone, grammar, written), written
    two = "".join(f"<tool_call>\n{call}\n</tool_call>\n" for call in GOOD)
    assert follows(tokens, alone, grammar, two)
    for call in WRONG:
        assert not follows(tokens, alone, grammar, f"<tool_call>\n{call}\n</tool_call>")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (ResponseFormat("json", {"const": {"a": 1}}, ""), '{"a": 1}'),
        (ResponseFormat("regex", "[ab]+", ""), "abba"),
        (ResponseFormat("choice", ["yes", "no"], ""), "no"),
        (ResponseFormat("grammar", 'root ::= "x" [0-9]', ""), "x7"),
    ],
    ids=lambda value: value.kind if isinstance(value, ResponseFormat) else value,
)
def test_a_form_or_a_call_follows_reasoning(alone: OmniDraft, form: ResponseFormat, text: str) -> None:
    tokens = tokens_of(alone)
    for functions in ((), ADDS):
        for thought in (None, THOUGHT):
            grammar = answer_grammar(tokens, form, functions, thought)
            before = "" if thought is None else "Let me {see}.\n</think>\n\n"
            assert follows(tokens, alone, grammar, before + text)
            assert follows(tokens, alone, grammar, before + GOOD[0]) == bool(functions)
            assert not follows(tokens, alone, grammar, f"{before}else")
            if thought is not None:
                assert not follows(tokens, alone, grammar, text)
    calls = answer_grammar(tokens, None, ADDS, THOUGHT)
    assert follows(tokens, alone, calls, f"Hm.</think>{GOOD[0]}")
    assert not follows(tokens, alone, calls, f"Hm.</think>{text}")


# ---------------------------------------------------------------- drafting


@pytest.mark.slow
def test_a_request_says_how_it_is_drafted(server: At) -> None:
    asked = {"max_tokens": 24, "temperature": 0}
    drafted = server.chat(**asked).json()
    assert drafted["timings"]["draft_n"] > 0
    assert "drafting" not in drafted.get("omnidraft", {})
    off = server.chat(**asked, omnidraft={"draft_length": 0}).json()
    assert (off["timings"]["draft_n"], off["timings"]["draft_n_accepted"]) == (0, 0)
    assert off["omnidraft"]["drafting"] == "off, as the request asks"
    one = server.chat(**asked, omnidraft={"draft_length": 1}).json()
    counted = server.chat(**asked, omnidraft={"sources": ["counts"]}).json()
    network = server.chat(**asked, omnidraft={"sources": ["drafter"]}).json()
    texts = {each["choices"][0]["message"]["content"] for each in (drafted, off, one, counted, network)}
    assert len(texts) == 1
    assert one["timings"]["draft_n"] > 0
    traced = events(server.chat(**asked, omnidraft={"trace": True, "draft_length": 1}, stream=True))
    assert max(event.get("omnidraft", {}).get("draft", 0) for event in traced) <= 2


def test_a_server_without_drafts_says_so(plain: At) -> None:
    found = plain.chat(temperature=0).json()
    assert found["timings"]["draft_n"] == 0
    assert found["omnidraft"]["drafting"] in ("off", "off, as the request asks")
    last = events(plain.chat(stream=True))[-1]
    assert last["timings"]["draft_n"] == 0
    assert last["omnidraft"]["drafting"]


@pytest.mark.slow
def test_a_drafter_that_cannot_be_loaded_is_named(chat: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with serving([chat], tmp_path, lanes=1) as at:
        found = at.chat(temperature=0).json()
        assert found["choices"][0]["message"]["content"] is not None
        assert found["omnidraft"]["drafting"].startswith("the drafter failed to load: ")


@pytest.mark.slow
def test_sources_of_content_are_not_those_of_the_reasoning_before_it(model: OmniDraft) -> None:
    """Marks and calls between them are told otherwise, or not at all."""
    said = "<think>Six by four.</think>\n\nThat is 24."
    ids = model.target.tokenizer(said, add_special_tokens=False)["input_ids"]
    task: Any = SimpleNamespace(served=SimpleNamespace(model=model), ids=model.encode("Pens?"))
    sources = Sources(task)
    first, second = len(ids) // 2, len(ids) - len(ids) // 2
    records = [SimpleNamespace(emitted=part, proposals=(), counts=SimpleNamespace(accepted=count, draft_passes=1))
               for part, count in ((ids[:first], 0), (ids[first:], second))]  # fmt: skip
    found: list[Any] = [sources.of(cast("Any", records[0]), [Reasoning("Six by")])]
    found.append(sources.of(cast("Any", records[1]), [Reasoning(" four."), Text("That is 24.")]))
    tokens = [token for each in found for token in each["tokens"]]
    assert "".join(token["text"] for token in tokens) == "Six by four.That is 24."
    texts = [model.target.tokenizer.decode(ids[:count]) for count in range(first + 1)]
    assert tokens[0]["source"] == "target"
    assert tokens[-1]["source"] == "drafted"
    assert sum(token["source"] == "target" for token in tokens) < len(texts)


def test_functions_of_a_namespace_are_called_by_their_own_names(plain: At) -> None:
    """As Codex gives those of MCP servers, and takes calls of them."""
    add = {"type": "function", "name": "add", "strict": None, "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "namespace", "name": "mcp__sums", "description": "d", "tools": [add]}]
    called = {"type": "function_call", "call_id": "c", "namespace": "mcp__sums", "name": "add", "arguments": "{}"}
    talk = [*user("x"), called, {"type": "function_call_output", "call_id": "c", "output": "5"}]
    body = {"input": talk, "tools": tools, "tool_choice": "required", "max_output_tokens": 60}
    for stream in (False, True):
        last = events(plain.post("/v1/responses", body | {"stream": stream}))[-1]
        made = last.get("response", last)
        (call,) = made["output"]
        assert (call["type"], call["namespace"], call["name"]) == ("function_call", "mcp__sums", "add")
        assert made["omnidraft"]["ignored"] == ["tools[0].description"]
    messages = of_response(read(body, ResponseRequest).body).messages
    assert messages[1]["tool_calls"][0]["function"]["name"] == "mcp__sums__add"
