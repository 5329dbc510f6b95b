"""What wraps clients: litellm and instructor."""

from __future__ import annotations

import json
from typing import Any

from experiments.client_cases.shared import (
    ARGUMENTS,
    BACK,
    CHAT,
    FORM,
    KEY,
    MODEL,
    NESTED,
    RESULT,
    SAID,
    SAY,
    STREAM,
    STRICT,
    TOOLS,
    Client,
    models,
    openai_client,
    same,
    told,
    tools,
)

LITELLM = Client(
    "litellm",
    'options = {"model": "openai/...", "api_base": "http://localhost:8080/v1", "api_key": "none"}\n'
    "litellm.completion(**options, messages=...)",
)


def _litellm(url: str, text: Any, **more: Any) -> Any:
    import litellm

    messages = told(text) if isinstance(text, str) else text
    return litellm.completion(model=f"openai/{MODEL}", api_base=f"{url}/v1", api_key=KEY, messages=messages, **more)


@LITELLM.case(CHAT)
def _(url: str) -> None:
    found = _litellm(url, "SAY <think>Hm.</think>Good day").choices[0].message
    same((found.content, found.reasoning_content), ("Good day", "Hm."))


@LITELLM.case(STREAM)
def _(url: str) -> None:
    import litellm

    chunks = list(_litellm(url, SAY, tools=tools(strict=True), stream=True))
    message = litellm.stream_chunk_builder(chunks).choices[0].message
    same(json.loads(message.tool_calls[0].function.arguments), ARGUMENTS)


@LITELLM.case(TOOLS)
def _(url: str) -> None:
    found = _litellm(url, SAY, tools=tools(strict=False)).choices[0].message
    same(json.loads(found.tool_calls[0].function.arguments), ARGUMENTS)


LITELLM.cases[NESTED] = LITELLM.cases[TOOLS]


@LITELLM.case(STRICT)
def _(url: str) -> None:
    found = _litellm(url, SAY, tools=tools(strict=True)).choices[0].message
    same(json.loads(found.tool_calls[0].function.arguments), ARGUMENTS)


@LITELLM.case(FORM)
def _(url: str) -> None:
    found = _litellm(url, f"SAY {json.dumps(ARGUMENTS)}", response_format=models()[1]).choices[0].message
    same(json.loads(found.content), ARGUMENTS)


@LITELLM.case(BACK)
def _(url: str) -> None:
    message = _litellm(url, SAY.replace("SAY ", "SAY <think>Hm.</think>"), tools=tools(strict=False)).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}
    talk = [*told(SAY), message.model_dump(), result]
    same(_litellm(url, talk, tools=tools(strict=False)).choices[0].message.content, SAID)


INSTRUCTOR = Client(
    "instructor",
    'client = instructor.from_openai(OpenAI(base_url="http://localhost:8080/v1", api_key="none"))\n'
    "client.create(model=..., messages=..., response_model=...)",
)


def _instructor(url: str, mode: str, text: str, **more: Any) -> Any:
    import instructor

    client = instructor.from_openai(openai_client(url), mode=getattr(instructor.Mode, mode))
    create = client.chat.completions.create_partial if more.pop("partial", False) else client.chat.completions.create
    return create(model=MODEL, messages=told(text), response_model=models()[1], max_retries=0, **more)


def _named(name: str) -> str:
    return f'SAY {{"name": "{name}", "arguments": {json.dumps(ARGUMENTS)}}}'


@INSTRUCTOR.case(TOOLS)
def _(url: str) -> None:
    same(_instructor(url, "TOOLS", _named("Weather")).place.days, [1, 2])


INSTRUCTOR.cases[NESTED] = INSTRUCTOR.cases[TOOLS]


@INSTRUCTOR.case(STREAM)
def _(url: str) -> None:
    *_, last = _instructor(url, "TOOLS", _named("PartialWeather"), partial=True)
    same(last.place.city, "Paris")


@INSTRUCTOR.case(STRICT)
def _(url: str) -> None:
    same(_instructor(url, "TOOLS_STRICT", _named("Weather")).place.days, [1, 2])


@INSTRUCTOR.case(FORM)
def _(url: str) -> None:
    for mode in ("JSON_SCHEMA", "JSON"):
        same(_instructor(url, mode, f"SAY {json.dumps(ARGUMENTS)}").place.days, [1, 2])
