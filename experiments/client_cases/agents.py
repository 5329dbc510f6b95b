"""Agents: pydantic-ai and openai-agents."""

from __future__ import annotations

import asyncio
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
    SCHEMA,
    STREAM,
    STRICT,
    TOOLS,
    Client,
    models,
    same,
    told,
)

PYDANTIC = Client(
    "pydantic-ai",
    'provider = OpenAIProvider(base_url="http://localhost:8080/v1", api_key="none")\n'
    "Agent(OpenAIChatModel(..., provider=provider))",
)


def _agent(url: str, **more: Any) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return Agent(OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{url}/v1", api_key=KEY)), **more)


def _equipped(url: str, **more: Any) -> Any:
    agent, (place, _) = _agent(url), models()

    def get_weather(place: Any, unit: str) -> str:
        same((place.city, place.days, unit), ("Paris", [1, 2], "celsius"))
        return RESULT

    get_weather.__annotations__["place"] = place
    agent.tool_plain(**more)(get_weather)
    return agent


@PYDANTIC.case(CHAT)
def _(url: str) -> None:
    same(_agent(url).run_sync("SAY Good day").output, "Good day")


@PYDANTIC.case(STREAM)
def _(url: str) -> None:
    async def read() -> str:
        async with _equipped(url).run_stream("SAY Good day to you") as stream:
            return str(await stream.get_output())

    same(asyncio.run(read()), "Good day to you")


@PYDANTIC.case(TOOLS)
def _(url: str) -> None:
    same(_equipped(url).run_sync(SAY).output, SAID)


PYDANTIC.cases[NESTED] = PYDANTIC.cases[TOOLS]


@PYDANTIC.case(STRICT)
def _(url: str) -> None:
    same(_equipped(url, strict=True).run_sync(SAY).output, SAID)


@PYDANTIC.case(FORM)
def _(url: str) -> None:
    from pydantic_ai import NativeOutput

    weather = models()[1]
    bare = f'SAY {{"name": "final_result", "arguments": {json.dumps(ARGUMENTS)}}}'
    same(_agent(url, output_type=weather).run_sync(bare).output.place.days, [1, 2])
    native = _agent(url, output_type=NativeOutput(weather)).run_sync(f"SAY {json.dumps(ARGUMENTS)}")
    same(native.output.place.city, "Paris")


@PYDANTIC.case(BACK)
def _(url: str) -> None:
    agent = _equipped(url)
    first = agent.run_sync(SAY.replace("SAY ", "SAY <think>Hm.</think>"))
    same(agent.run_sync("SAY Bye", message_history=first.all_messages()).output, "Bye")


AGENTS = Client(
    "openai-agents",
    'client = AsyncOpenAI(base_url="http://localhost:8080/v1", api_key="none")\n'
    "Agent(name=..., model=OpenAIChatCompletionsModel(..., client))",
)


def _assistant(url: str, *, responses: bool = False, strict: bool = False, **more: Any) -> Any:
    from agents import (
        Agent,
        FunctionTool,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)

    async def call(_: Any, arguments: str) -> str:
        same(json.loads(arguments), ARGUMENTS)
        return RESULT

    tool = FunctionTool("get_weather", "Weather", SCHEMA, call, strict_json_schema=strict)
    kind: Any = OpenAIResponsesModel if responses else OpenAIChatCompletionsModel
    return Agent(name="a", model=kind(MODEL, client), **{"tools": [tool], **more})


def _run(agent: Any, asked: Any) -> Any:
    from agents import Runner

    return asyncio.run(Runner.run(agent, asked))


@AGENTS.case(CHAT)
def _(url: str) -> None:
    for responses in (False, True):
        same(_run(_assistant(url, responses=responses, tools=[]), "SAY Good day").final_output, "Good day")


@AGENTS.case(STREAM)
def _(url: str) -> None:
    from agents import Runner

    async def read(*, responses: bool) -> Any:
        stream = Runner.run_streamed(_assistant(url, responses=responses, strict=True), SAY)
        async for _ in stream.stream_events():
            pass
        return stream.final_output

    for responses in (False, True):
        same(asyncio.run(read(responses=responses)), SAID)


@AGENTS.case(TOOLS)
def _(url: str) -> None:
    for responses in (False, True):
        same(_run(_assistant(url, responses=responses), SAY).final_output, SAID)


AGENTS.cases[NESTED] = AGENTS.cases[TOOLS]


@AGENTS.case(STRICT)
def _(url: str) -> None:
    for responses in (False, True):
        same(_run(_assistant(url, responses=responses, strict=True), SAY).final_output, SAID)


@AGENTS.case(FORM)
def _(url: str) -> None:
    for responses in (False, True):
        agent = _assistant(url, responses=responses, tools=[], output_type=models()[1])
        same(_run(agent, f"SAY {json.dumps(ARGUMENTS)}").final_output.place.days, [1, 2])


@AGENTS.case(BACK)
def _(url: str) -> None:
    for responses in (False, True):
        first = _run(_assistant(url, responses=responses), SAY.replace("SAY ", "SAY <think>Hm.</think>"))
        again = _assistant(url, responses=responses)  # a client is of one event loop
        same(_run(again, [*first.to_input_list(), *told("SAY Bye")]).final_output, "Bye")
