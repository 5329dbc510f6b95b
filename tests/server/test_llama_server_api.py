"""llama-server's own API: answers as those of completions, in its form, whole and in a stream."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest

from omnidraft.api import OmniDraft
from omnidraft.server.apis import llama_server
from omnidraft.server.requests import fill_in_middle
from support.serving import QUESTION, At, events, user

pytestmark = pytest.mark.medium

LONG: dict[str, Any] = {"prompt": "Question: Tim has 4 boxes of 6 pens.", "n_predict": 16, "temperature": 0}
LONG |= {"ignore_eos": True}
DRAWN: dict[str, Any] = {"prompt": QUESTION, "n_predict": 24, "temperature": 1.2, "seed": 5, "ignore_eos": True}


def answer(at: At, **body: Any) -> Mapping[str, Any]:
    found = at.post("/completion", body)
    assert found.status_code == 200, found.text
    made: Mapping[str, Any] = found.json()
    return made


def text(at: At, **body: Any) -> str:
    """The text of a completion in OpenAI's form."""
    asked = {"max_tokens": body.pop("n_predict", None), **body}
    return str(at.post("/v1/completions", asked).json()["choices"][0]["text"])


def test_an_answer_is_that_of_a_completion(server: At, alone: OmniDraft) -> None:
    made = answer(server, **LONG)
    assert made["content"] == text(server, **LONG)
    assert made["prompt"] == LONG["prompt"]
    assert made["tokens_evaluated"] == len(alone.encode(LONG["prompt"]))
    assert (made["tokens_predicted"], made["stop"], made["stop_type"]) == (16, True, "limit")
    assert (made["model"], made["index"], made["tokens"], made["truncated"]) == ("chat", 0, [], False)
    assert made["has_new_line"] == ("\n" in made["content"])
    assert made["timings"]["predicted_n"] == 16
    longer = {**LONG, "prompt": 3 * LONG["prompt"]}  # of 16 tokens and more
    _, again = answer(server, **longer), answer(server, **longer)
    assert again["tokens_cached"] == again["timings"]["cache_n"] > 0


def test_settings_are_those_of_the_answer(plain: At) -> None:
    own = {"top_k": 7, "top_p": 0.9, "min_p": 0.05, "repeat_penalty": 1.3, "presence_penalty": 0.5}
    told = answer(plain, **DRAWN, **own, stop=["zz"])["generation_settings"]
    expected = {"seed": 5, "temperature": 1.2, "n_predict": 24, "stop": ["zz"], "frequency_penalty": 0, "stream": False}
    assert told == expected | own | {"repeat_last_n": 64, "n_probs": 0}
    assert answer(plain, **LONG)["generation_settings"]["repeat_last_n"] == -1


@pytest.mark.parametrize("fixture", ["server", "plain"])
def test_a_stream_is_the_whole_answer_in_pieces(fixture: str, request: pytest.FixtureRequest, alone: OmniDraft) -> None:
    at: At = request.getfixturevalue(fixture)
    asked = LONG | {"n_probs": 2, "return_tokens": True}
    whole, told = answer(at, **asked), at.post("/completion", asked | {"stream": True})
    assert told.headers["content-type"].startswith("text/event-stream")
    assert "[DONE]" not in told.text
    *pieces, last = events(told)
    assert "".join(each["content"] for each in pieces) == whole["content"]
    assert [token for each in pieces for token in each["tokens"]] == whole["tokens"]
    assert whole["content"] == alone.text_after(alone.encode(LONG["prompt"])).feed(whole["tokens"])
    probs = [each for piece in pieces for each in piece.get("completion_probabilities", ())]
    assert (
        [each["id"] for each in probs] == [each["id"] for each in whole["completion_probabilities"]] == whole["tokens"]
    )
    assert [each["stop"] for each in (*pieces, last)] == [*(False for _ in pieces), True]
    assert [each["tokens_predicted"] for each in pieces] == [
        *itertools.accumulate(len(each["tokens"]) for each in pieces)
    ]
    assert (last["content"], last["tokens"], last["tokens_predicted"]) == ("", [], 16)
    assert last.keys() == whole.keys() - {"completion_probabilities"}


def test_probabilities_are_those_of_a_completion(server: At) -> None:
    probs = answer(server, **LONG, n_probs=3)["completion_probabilities"]
    body = {**LONG, "max_tokens": 16, "logprobs": 3}
    body.pop("n_predict")
    expected = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    assert [each["token"] for each in probs] == expected["tokens"]
    assert [each["logprob"] for each in probs] == pytest.approx(expected["token_logprobs"], abs=1e-3)
    for each in probs:
        assert bytes(each["bytes"]).decode() == each["token"]
        assert each["top_logprobs"][0]["id"] == each["id"]  # greedy
        assert len(each["top_logprobs"]) == 3
    assert "completion_probabilities" not in answer(server, **LONG, n_probs=0)


def test_why_an_answer_ends_is_said(server: At) -> None:
    content = answer(server, **LONG)["content"]
    stop = content[3:5]
    for streams in (False, True):
        made = events(server.post("/completion", LONG | {"stop": ["never", stop], "stream": streams}))
        assert "".join(each["content"] for each in made) == content[: content.index(stop)]
        assert (made[-1]["stop_type"], made[-1]["stopping_word"]) == ("word", stop)
    ended = answer(server, prompt=QUESTION, n_predict=16, temperature=0)
    assert (ended["stop_type"], ended["stopping_word"]) == ("eos", "")
    assert ended["tokens_predicted"] < 16


def test_a_prompt_is_text_or_tokens_or_both(plain: At, alone: OmniDraft) -> None:
    first, second = "Question: Tim has", " 4 boxes of 6 pens."
    ids = alone.encode(first) + alone.target.tokenizer(second, add_special_tokens=False)["input_ids"]
    expected = alone.generate(ids, max_new_tokens=12, temperature=0, min_new_tokens=12).text
    asked = {"n_predict": 12, "temperature": 0, "ignore_eos": True}
    for prompt in (ids, [*alone.encode(first), second], {"prompt_string": first + second}):
        assert answer(plain, prompt=prompt, **asked)["content"] == expected
    mixed = answer(plain, prompt=[first, *ids[len(alone.encode(first)) :]], **asked)
    assert (mixed["content"], mixed["tokens_evaluated"]) == (expected, len(ids))


def test_several_prompts_and_answers_are_a_list(plain: At) -> None:
    prompts: list[list[Any]] = [["Question: Tim", "Question: Ann"], [[9, 8], "Question: Ann"], [[9, "Tim"], [7]]]
    for several in prompts:
        found: Any = answer(plain, **DRAWN | {"prompt": several})
        assert [each["index"] for each in found] == [0, 1]
        assert [each["content"] for each in found] == [
            answer(plain, **DRAWN | {"prompt": each})["content"] for each in several
        ]
        streams: dict[int, str] = {}
        for each in events(plain.post("/completion", DRAWN | {"prompt": several, "stream": True})):
            streams[each["index"]] = streams.get(each["index"], "") + each["content"]
        assert streams == {each["index"]: each["content"] for each in found}
    drawn: Any = answer(plain, **DRAWN, n=2)
    assert len({each["content"] for each in drawn}) == 2
    assert [each["generation_settings"]["seed"] for each in drawn] == [5, 6]


def test_a_prompt_alone_is_read(server: At) -> None:
    for streams in (False, True):
        made = events(server.post("/completion", {"prompt": "Question: pens", "n_predict": 0, "stream": streams}))
        assert [each["content"] for each in made] == [""]
        assert (made[-1]["tokens_predicted"], made[-1]["generation_settings"]["n_predict"]) == (0, 0)


def test_an_answer_has_the_form_that_is_asked_for(plain: At) -> None:
    for form, pattern in (({"grammar": 'root ::= "x" [0-9]'}, "x"), ({"json_schema": {"const": "x"}}, '"x"')):
        assert answer(plain, **DRAWN | {"ignore_eos": False}, **form)["content"].startswith(pattern)


def test_biases_are_of_tokens_and_of_texts(server: At) -> None:
    (token,) = server.post("/tokenize", {"content": "a"}).json()["tokens"]
    for bias in ([[token, 1000]], [["a", 1000]], {str(token): 1000}):
        assert answer(server, **LONG, logit_bias=bias)["content"] == "a" * 16
    first = answer(server, **LONG, return_tokens=True)["tokens"][0]
    assert first not in answer(server, **LONG, logit_bias=[[first, False]], return_tokens=True)["tokens"]


def test_fields_are_told_by_their_paths(server: At) -> None:
    fields = ["content", "timings/prompt_n", "generation_settings/n_predict", "nothing", "content/nothing"]
    made = answer(server, **LONG, response_fields=fields)
    assert list(made) == ["content", "timings/prompt_n", "generation_settings/n_predict"]
    assert made["generation_settings/n_predict"] == 16


def test_what_editors_send_beside_is_taken(server: At) -> None:
    own = {"id_slot": 0, "cache_prompt": True, "n_indent": 4, "samplers": ["top_k", "infill"], "t_max_predict_ms": 500}
    own |= {"mirostat": 0, "typical_p": 1, "tfs_z": 1, "penalize_nl": True, "n_keep": -1, "timings_per_token": True}
    made = answer(server, **LONG, **own)
    assert made["content"] == answer(server, **LONG)["content"]
    assert {"n_indent", "samplers"} <= set(made["omnidraft"]["ignored"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"prompt": {"prompt_string": "x", "multimodal_data": ["aGk="]}}, "prompt.multimodal_data"),
        ({"prompt": [1, None]}, "prompt[1]"),
        ({"prompt": [True, 1]}, "prompt[0]"),
        ({"prompt": ["x", {}]}, "prompt[1]"),
        ({"prompt": [10**9]}, "prompt[0]"),
        ({"prompt": [1, "\ud800"]}, "prompt[1]"),
        ({"prompt": "x", "n_probs": 21}, "n_probs"),
        ({"prompt": "x", "logit_bias": [["\ud800", 1]]}, "logit_bias[0][0]"),
        ({"prompt": "x", "logit_bias": [[1]]}, "logit_bias"),
        ({"prompt": "x", "temperature": -1}, "temperature"),
        ({"prompt": "x", "n_predict": 2, "max_tokens": 3}, "n_predict"),
        ({"prompt": "x", "grammar": "nothing", "json_schema": {}}, "grammar"),
    ],
    ids=json.dumps,
)
def test_what_cannot_be_is_named(server: At, body: dict[str, Any], param: str) -> None:
    data = json.dumps(body).encode()  # a lone surrogate is in it as an escape
    found = server.raw("/completion", data)
    assert found.status_code == 400, found.text
    assert found.json()["error"]["param"] == param


def test_completions_have_openais_form_unless_they_have_llama_servers_length(server: At) -> None:
    asked = {"prompt": LONG["prompt"], "temperature": 0, "ignore_eos": True}
    own = server.post("/completions", asked | {"n_predict": 4}).json()
    assert own["content"] == server.post("/completions", asked | {"max_tokens": 4}).json()["choices"][0]["text"]
    assert server.post("/v1/completions", asked | {"n_predict": 4}).json()["choices"][0]["text"] == own["content"]


# ---------------------------------------------------------------- filling in


def test_what_stands_between_two_texts(plain: At, alone: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = alone.target.tokenizer
    words = tokenizer.get_vocab()
    first, second, third, repository, file = sorted(word for word in words if word.isalpha())[:5]
    monkeypatch.setattr(fill_in_middle, "FAMILIES", (fill_in_middle.FillInTokens(first, second, third),))

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    middle = [words[first], *ids("a = 1"), words[second], *ids("\nprint(a)"), words[third]]
    asked = {"input_prefix": "a = ", "prompt": "1", "input_suffix": "\nprint(a)", "n_predict": 6, "temperature": 0}
    made = plain.post("/infill", asked).json()
    assert made["content"] == alone.generate(middle, max_new_tokens=6, temperature=0).text
    assert made["tokens_evaluated"] == len(middle)
    assert made["prompt"] == tokenizer.decode(middle)

    extra = {"input_extra": [{"filename": "x.py", "text": "x = 2"}, {"text": "y = 3\n", "time": 5}]}
    unmarked = [*ids("x.py\nx = 2\n"), *ids("file\ny = 3\n"), *middle]
    assert plain.post("/infill", asked | extra).json()["prompt"] == tokenizer.decode(unmarked)
    monkeypatch.setattr(llama_server, "FILES", ((repository, file),))
    marked = [words[repository], *ids("repository\n"), words[file], *ids("x.py\nx = 2\n")]
    marked += [words[file], *ids("file\ny = 3\n"), words[file], *ids("file\n"), *middle]
    found = plain.post("/infill", asked | extra).json()
    assert (found["prompt"], found["tokens_evaluated"]) == (tokenizer.decode(marked), len(marked))
    assert "insert" in plain.post("/api/show", {"model": "chat"}).json()["capabilities"]
    empty = plain.post("/infill", {"input_prefix": "a = ", "n_predict": 0}).json()
    assert empty["tokens_evaluated"] == len([words[first], *ids("a = "), words[second], words[third]])


def test_a_target_that_cannot_fill_in_says_so(server: At) -> None:
    found = server.post("/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert found.status_code == 400
    assert "no tokens to fill in" in found.json()["error"]["message"]


# ---------------------------------------------------------------- tokens, as vLLM's clients ask for them


def test_a_piece_that_is_no_text_is_told_by_its_bytes(server: At) -> None:
    told = server.post("/tokenize", {"content": "a\U0001f389", "with_pieces": True}).json()["tokens"]
    pieces = [each["piece"] for each in told]
    data = [each.encode() if isinstance(each, str) else bytes(each) for each in pieces]
    assert b"".join(data) == "a\U0001f389".encode()
    assert pieces[0] == "a"
    assert any(isinstance(each, list) for each in pieces)


def test_tokens_are_told_in_vllms_form(server: At, alone: OmniDraft) -> None:
    info = server.get("/tokenizer_info").json()
    tokenizer = alone.target.tokenizer
    assert info["chat_template"] == tokenizer.chat_template
    assert {name: info[f"{name}_token"] for name in ("bos", "eos")} == {
        "bos": tokenizer.bos_token,
        "eos": tokenizer.eos_token,
    }
    found = server.post("/tokenize", {"prompt": "two pens", "add_special_tokens": False, "return_token_strs": True})
    made = found.json()
    assert made["tokens"] == tokenizer("two pens", add_special_tokens=False)["input_ids"]
    assert (made["count"], made["max_model_len"]) == (len(made["tokens"]), alone.target.lm.context)
    assert made["token_strs"] == tokenizer.convert_ids_to_tokens(made["tokens"])
    assert server.post("/detokenize", {"tokens": made["tokens"]}).json()["prompt"] == "two pens"
    begun = server.post("/tokenize", {"model": "zoo:target-a", "prompt": "x"}).json()["tokens"]
    assert (
        begun
        == server.post("/tokenize", {"model": "zoo:target-a", "content": "x", "add_special": True}).json()["tokens"]
    )
    assert begun[1:] == server.post("/tokenize", {"model": "zoo:target-a", "content": "x"}).json()["tokens"]
    chat = server.post("/tokenize", {"messages": user("Hi."), "add_generation_prompt": True}).json()["tokens"]
    assert chat == alone.encode(user("Hi."))
    assert server.get("/tokenizer_info", params={"model": "zoo:target-a"}).json()["bos_token"] == "<|begin_of_text|>"
    assert server.post("/tokenize", {}).json()["error"]["param"] == "content"
