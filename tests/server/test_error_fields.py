"""Programs read an error's fields: its message may be worded in any way."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from omnidraft.config import Drafting, GenerationLimits, Learning, Sampling, choice, settings_of, stop_strings
from omnidraft.errors import CONTEXT_LENGTH, ConfigError, InputError, PromptError
from omnidraft.server.server_settings import Serving
from support.serving import At

WRONG: list[tuple[Any, str]] = [
    (lambda: settings_of(Sampling, {"temperature": "hot"}), "temperature"),
    (lambda: settings_of(Sampling, {"top_k": 1.5}), "top_k"),
    (lambda: GenerationLimits(seed=-1), "seed"),
    (lambda: Drafting(draft_length="long"), "draft_length"),
    (lambda: Drafting(threshold=0.5), "threshold"),
    (lambda: Drafting(reuse_answers="all"), "reuse_answers"),
    (lambda: Learning(train="head"), "train"),
    (lambda: settings_of(Sampling, {"temprature": 1}), "temprature"),
    (lambda: stop_strings(5), "stop"),
    (lambda: stop_strings([""]), "stop"),
    (lambda: choice("mode", "x", ("exact",)), "mode"),
    (lambda: Serving(host="a b"), "host"),
    (lambda: Serving(api_key=" "), "api_key"),
    (lambda: Serving(host="0.0.0.0"), "api_key"),  # noqa: S104
    (lambda: settings_of(Serving, {"cors_origin": "x"}), "cors_origin"),
    (lambda: Serving(cors_origin=("x",)), "cors_origin"),
]


@pytest.mark.parametrize(("make", "option"), WRONG, ids=[str(place) for place in range(len(WRONG))])
def test_an_option_is_named_in_a_field(make: Any, option: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make()
    assert raised.value.option == option
    again = pickle.loads(pickle.dumps(raised.value))  # noqa: S301  as from another process
    assert (again.option, str(again)) == (option, str(raised.value))


def test_the_server_reads_fields_alone(server: At, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InputError, "__str__", lambda _: "in other words")
    text = {"model": "zoo:target-a"}
    long = server.post("/v1/completions", text | {"prompt": "pens and boxes " * 9000}).json()["error"]
    assert (long["message"], long["code"]) == ("in other words", CONTEXT_LENGTH)
    stop = server.post("/v1/completions", text | {"prompt": "x", "stop": ["a", 5]}).json()["error"]
    assert stop["param"].startswith("stop")


def test_a_path_that_is_not_there_is_named_in_the_form_of_its_api(server: At) -> None:
    assert server.post("/v1/embeddings", {}).json()["error"]["message"].startswith('there is no "/v1/embeddings": see')
    assert server.post("/api/embed", {}).json()["error"].startswith('there is no "/api/embed": see')
    found = server.get("/v1/messages")
    assert found.status_code == 405
    assert found.json()["error"]["message"] == '"/v1/messages" takes no GET: use POST'


def test_a_prompt_for_the_chat_keeps_its_code() -> None:
    from omnidraft.cli.chat import _steps

    class Talk:
        def ask(self, *_: object) -> Iterator[str]:
            raise PromptError("too long", code=CONTEXT_LENGTH)

    with pytest.raises(PromptError) as raised:
        list(_steps(Talk(), "x", lambda: False))  # type: ignore[arg-type]
    assert raised.value.code == CONTEXT_LENGTH
