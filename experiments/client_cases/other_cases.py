"""Agents, and clients of Anthropic's Messages and of Ollama's API."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from experiments.client_cases.shared import (
    ARGUMENTS,
    CALL,
    FORM,
    FUNCTION,
    KEY,
    MODEL,
    RESULT,
    SAID,
    SAY,
    SCHEMA,
    THINK,
    UNITS,
    Client,
    models,
    same,
    told,
    tools,
)


class PydanticAI(Client):
    """An agent of PydanticAI."""

    package = "pydantic-ai"

    def agent(self, **more: Any) -> Any:
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        provider = OpenAIProvider(base_url=f"{self.url}/v1", api_key=KEY)
        return Agent(OpenAIChatModel(MODEL, provider=provider), **more)

    def equipped(self, **more: Any) -> Any:
        agent, place = self.agent(), models()[0]

        def get_weather(place: Any, unit: str) -> str:
            same((place.city, place.days, unit), ("Paris", [1, 2], "celsius"))
            return RESULT

        get_weather.__annotations__["place"] = place
        agent.tool_plain(**more)(get_weather)
        return agent

    def chat(self) -> None:
        same(self.agent().run_sync("SAY Good day").output, "Good day")

    def stream(self) -> None:
        async def read() -> str:
            async with self.equipped().run_stream("SAY Good day to you") as stream:
                return str(await stream.get_output())

        same(asyncio.run(read()), "Good day to you")

    def tools(self, **more: Any) -> None:
        same(self.equipped(**more).run_sync(SAY).output, SAID)

    nested = tools

    def strict(self) -> None:
        self.tools(strict=True)

    def form(self) -> None:
        from pydantic_ai import NativeOutput

        weather = models()[1]
        bare = f'SAY {{"name": "final_result", "arguments": {json.dumps(ARGUMENTS)}}}'
        same(self.agent(output_type=weather).run_sync(bare).output.place.days, [1, 2])
        same(self.agent(output_type=NativeOutput(weather)).run_sync(FORM).output.place.city, "Paris")

    def back(self) -> None:
        agent = self.equipped()
        first = agent.run_sync(THINK)
        same(agent.run_sync("SAY Bye", message_history=first.all_messages()).output, "Bye")


class Agents(Client):
    """OpenAI's agents."""

    package = "openai-agents"

    def agents(self, *, strict: bool = False, **more: Any) -> list[Any]:
        """One that asks for chat completions, and one that asks for responses."""
        import agents
        from openai import AsyncOpenAI

        agents.set_tracing_disabled(True)

        async def call(_: Any, arguments: str) -> str:
            same(json.loads(arguments), ARGUMENTS)
            return RESULT

        tool = agents.FunctionTool("get_weather", "Weather", SCHEMA, call, strict_json_schema=strict)
        kinds: tuple[Any, ...] = (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel)
        clients = (AsyncOpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0) for _ in kinds)
        pairs = zip(kinds, clients, strict=True)
        return [agents.Agent(name="a", model=kind(MODEL, one), **{"tools": [tool], **more}) for kind, one in pairs]

    def run_agent(self, agent: Any, asked: Any) -> Any:
        from agents import Runner

        return asyncio.run(Runner.run(agent, asked))

    def chat(self) -> None:
        for agent in self.agents(tools=[]):
            same(self.run_agent(agent, "SAY Good day").final_output, "Good day")

    def stream(self) -> None:
        from agents import Runner

        async def read(agent: Any) -> Any:
            stream = Runner.run_streamed(agent, SAY)
            async for _ in stream.stream_events():
                pass
            return stream.final_output

        for agent in self.agents(strict=True):
            same(asyncio.run(read(agent)), SAID)

    def tools(self, *, strict: bool = False) -> None:
        for agent in self.agents(strict=strict):
            same(self.run_agent(agent, SAY).final_output, SAID)

    nested = tools

    def strict(self) -> None:
        self.tools(strict=True)

    def form(self) -> None:
        for agent in self.agents(tools=[], output_type=models()[1]):
            same(self.run_agent(agent, FORM).final_output.place.days, [1, 2])

    def back(self) -> None:
        for agent, again in zip(self.agents(), self.agents(), strict=True):  # a client is of one event loop
            first = self.run_agent(agent, THINK)
            same(self.run_agent(again, [*first.to_input_list(), *told("SAY Bye")]).final_output, "Bye")


class Anthropic(Client):
    """Anthropic's own client."""

    package = "anthropic"

    @property
    def messages(self) -> Any:
        """The client of messages."""
        import anthropic

        return anthropic.Anthropic(base_url=self.url, api_key=KEY, max_retries=0).messages

    def asking(self, text: str, *, strict: bool | None = None) -> dict[str, Any]:
        asked: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "messages": told(text)}
        if strict is not None:
            own = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": SCHEMA}
            asked["tools"] = [own | {"strict": strict}]
        return asked

    def chat(self) -> None:
        found = self.messages.create(**self.asking("SAY <think>Hm.</think>Good day")).content
        same([(each.type, getattr(each, each.type)) for each in found], [("thinking", "Hm."), ("text", "Good day")])

    def stream(self) -> None:
        with self.messages.stream(**self.asking(SAY, strict=False)) as stream:
            found = stream.get_final_message()
        same([each.type for each in found.content], ["text", "tool_use"])
        same((found.content[1].input, found.stop_reason), (ARGUMENTS, "tool_use"))

    def tools(self) -> None:
        found = self.messages.create(**self.asking(SAY, strict=False))
        same((found.content[-1].name, found.stop_reason), ("get_weather", "tool_use"))
        same(found.content[-1].input, ARGUMENTS)

    nested = tools

    def strict(self) -> None:
        asked = self.asking(SAY.replace("celsius", "kelvin"), strict=True)
        found = self.messages.create(**asked).content[-1].input
        same({found["unit"]} - set(UNITS), set())

    def form(self) -> None:
        form = {"format": {"type": "json_schema", "schema": SCHEMA}}
        found = self.messages.create(**self.asking(FORM), output_config=form)
        same(json.loads(found.content[0].text), ARGUMENTS)

    def back(self) -> None:
        client, asked = self.messages, self.asking(f"SAY <think>Hm.</think>{CALL}", strict=False)
        content = client.create(**asked).content
        result = {"type": "tool_result", "tool_use_id": content[-1].id, "content": RESULT}
        asked["messages"] += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        same(client.create(**asked).content[-1].text, SAID)


class Ollama(Client):
    """Ollama's own client."""

    package = "ollama"

    @property
    def client(self) -> Any:
        """Ollama's own client."""
        import ollama

        return ollama.Client(host=self.url)

    def chat(self) -> None:
        message = self.client.chat(model=MODEL, messages=told("SAY <think>Hm.</think>Good day")).message
        same((message.content, message.thinking), ("Good day", "Hm."))
        same(self.client.generate(model=MODEL, prompt="SAY Good day").response, "Good day")

    def stream(self) -> None:
        pieces = list(self.client.chat(model=MODEL, messages=told(SAY), tools=tools(strict=False), stream=True))
        same("".join(each.message.content or "" for each in pieces).strip(), "Let me see.")
        (call,) = [call for each in pieces for call in each.message.tool_calls or ()]
        same((call.function.arguments, pieces[-1].done), (ARGUMENTS, True))

    def tools(self) -> None:
        message = self.client.chat(model=MODEL, messages=told(SAY), tools=tools(strict=False)).message
        (call,) = message.tool_calls
        same((call.function.name, call.function.arguments), ("get_weather", ARGUMENTS))

    nested = tools

    def form(self) -> None:
        found = self.client.chat(model=MODEL, messages=told(FORM), format=SCHEMA).message
        same(json.loads(found.content), ARGUMENTS)

    def back(self) -> None:
        client, talk = self.client, list[Any](told(f"SAY {CALL}"))
        message = client.chat(model=MODEL, messages=talk, tools=tools(strict=False)).message
        talk += [message, {"role": "tool", "tool_name": "get_weather", "content": RESULT}]
        same(client.chat(model=MODEL, messages=talk, tools=tools(strict=False)).message.content, SAID)
