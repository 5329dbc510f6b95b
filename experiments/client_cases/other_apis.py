"""Clients of Anthropic's Messages and of Ollama's API."""

from __future__ import annotations

import json
from typing import Any

from experiments.client_cases.shared import (
    ARGUMENTS,
    BACK,
    CALL,
    CHAT,
    FORM,
    FUNCTION,
    KEY,
    MODEL,
    NESTED,
    RESULT,
    SAID,
    SAY,
    SCHEMA,
    STREAM,
    STRICT,
    TOOLS,
    Client,
    same,
    told,
    tools,
)

ANTHROPIC = Client(
    "anthropic",
    'client = Anthropic(base_url="http://localhost:8080", api_key="none")\n'
    "client.messages.create(model=..., max_tokens=500, messages=...)",
)
OLLAMA = Client(
    "ollama",
    'client = Client(host="http://localhost:8080")\nclient.chat(model=..., messages=...)',
)


def _anthropic(url: str) -> Any:
    from anthropic import Anthropic

    return Anthropic(base_url=url, api_key=KEY, max_retries=0).messages


def _asked(text: str, *, strict: bool | None = None) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "messages": told(text)}
    if strict is not None:
        own = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": SCHEMA}
        asked["tools"] = [own | {"strict": strict}]
    return asked


@ANTHROPIC.case(CHAT)
def _(url: str) -> None:
    found = _anthropic(url).create(**_asked("SAY <think>Hm.</think>Good day")).content
    same([(each.type, getattr(each, each.type)) for each in found], [("thinking", "Hm."), ("text", "Good day")])


@ANTHROPIC.case(STREAM)
def _(url: str) -> None:
    with _anthropic(url).stream(**_asked(SAY, strict=False)) as stream:
        found = stream.get_final_message()
    same([each.type for each in found.content], ["text", "tool_use"])
    same((found.content[1].input, found.stop_reason), (ARGUMENTS, "tool_use"))


@ANTHROPIC.case(TOOLS)
def _(url: str) -> None:
    found = _anthropic(url).create(**_asked(SAY, strict=False))
    same((found.content[-1].name, found.stop_reason), ("get_weather", "tool_use"))


@ANTHROPIC.case(NESTED)
def _(url: str) -> None:
    same(_anthropic(url).create(**_asked(SAY, strict=False)).content[-1].input, ARGUMENTS)


@ANTHROPIC.case(STRICT)
def _(url: str) -> None:
    found = _anthropic(url).create(**_asked(SAY.replace("celsius", "kelvin"), strict=True)).content[-1].input
    same({found["unit"]} - {"celsius", "fahrenheit"}, set())


@ANTHROPIC.case(FORM)
def _(url: str) -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    found = _anthropic(url).create(**_asked(f"SAY {json.dumps(ARGUMENTS)}"), output_config=form)
    same(json.loads(found.content[0].text), ARGUMENTS)


@ANTHROPIC.case(BACK)
def _(url: str) -> None:
    client, asked = _anthropic(url), _asked(f"SAY <think>Hm.</think>{CALL}", strict=False)
    content = client.create(**asked).content
    result = {"type": "tool_result", "tool_use_id": content[-1].id, "content": RESULT}
    asked["messages"] += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    same(client.create(**asked).content[-1].text, SAID)


def _ollama(url: str) -> Any:
    from ollama import Client as Ollama

    return Ollama(host=url)


@OLLAMA.case(CHAT)
def _(url: str) -> None:
    client = _ollama(url)
    message = client.chat(model=MODEL, messages=told("SAY <think>Hm.</think>Good day")).message
    same((message.content, message.thinking), ("Good day", "Hm."))
    same(client.generate(model=MODEL, prompt="SAY Good day").response, "Good day")


@OLLAMA.case(STREAM)
def _(url: str) -> None:
    pieces = list(_ollama(url).chat(model=MODEL, messages=told(SAY), tools=tools(strict=False), stream=True))
    same("".join(each.message.content or "" for each in pieces).strip(), "Let me see.")
    (call,) = [call for each in pieces for call in each.message.tool_calls or ()]
    same((call.function.arguments, pieces[-1].done), (ARGUMENTS, True))


@OLLAMA.case(TOOLS)
def _(url: str) -> None:
    (call,) = _ollama(url).chat(model=MODEL, messages=told(SAY), tools=tools(strict=False)).message.tool_calls
    same(call.function.name, "get_weather")


@OLLAMA.case(NESTED)
def _(url: str) -> None:
    (call,) = _ollama(url).chat(model=MODEL, messages=told(SAY), tools=tools(strict=False)).message.tool_calls
    same(call.function.arguments, ARGUMENTS)


@OLLAMA.case(FORM)
def _(url: str) -> None:
    asked = told(f"SAY {json.dumps(ARGUMENTS)}")
    same(json.loads(_ollama(url).chat(model=MODEL, messages=asked, format=SCHEMA).message.content), ARGUMENTS)


@OLLAMA.case(BACK)
def _(url: str) -> None:
    client, talk = _ollama(url), list[Any](told(f"SAY {CALL}"))
    message = client.chat(model=MODEL, messages=talk, tools=tools(strict=False)).message
    talk += [message, {"role": "tool", "tool_name": "get_weather", "content": RESULT}]
    same(client.chat(model=MODEL, messages=talk, tools=tools(strict=False)).message.content, SAID)
