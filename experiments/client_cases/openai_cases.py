"""OpenAI's own client, and what wraps it: LangChain, LiteLLM and Instructor."""

from __future__ import annotations

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
    THINK,
    UNITS,
    Client,
    models,
    same,
    told,
    tools,
)


def named(name: str) -> str:
    """A call of a function, without text before it or marks around it."""
    return f'SAY {{"name": "{name}", "arguments": {json.dumps(ARGUMENTS)}}}'


class OpenAI(Client):
    """OpenAI's own client, by chat completions and responses."""

    package = "openai"

    @property
    def client(self) -> Any:
        """OpenAI's own client."""
        import openai

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0)

    def asked(self, text: str, **more: Any) -> Any:
        return self.client.chat.completions.create(model=MODEL, messages=told(text), **more).choices[0]

    def chat(self) -> None:
        message = self.asked("SAY <think>Hm.</think>Good day").message
        same((message.content, message.reasoning_content), ("Good day", "Hm."))
        same(self.client.responses.create(model=MODEL, input="SAY Good day").output_text, "Good day")

    def stream(self) -> None:
        client, asked = self.client, told("SAY Good day to you")
        chunks = client.chat.completions.create(model=MODEL, messages=asked, stream=True)
        same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), "Good day to you")
        with client.chat.completions.stream(model=MODEL, messages=told(SAY), tools=tools(strict=True)) as stream:
            stream.until_done()
            message = stream.get_final_completion().choices[0].message
        same(json.loads(message.tool_calls[0].function.arguments), ARGUMENTS)
        with client.responses.stream(model=MODEL, input=SAY, tools=[{"type": "function", **FUNCTION}]) as events:
            output = events.get_final_response().output
        same([item.type for item in output], ["message", "function_call"])

    def tools(self) -> None:
        found = self.asked(SAY, tools=tools(strict=False))
        (call,) = found.message.tool_calls
        same((call.function.name, found.finish_reason), ("get_weather", "tool_calls"))

    def nested(self) -> None:
        (call,) = self.asked(named("get_weather"), tools=tools(strict=False), tool_choice="required").message.tool_calls
        same(json.loads(call.function.arguments), ARGUMENTS)

    def strict(self) -> None:
        (call,) = self.asked(SAY.replace("celsius", "kelvin"), tools=tools(strict=True)).message.tool_calls
        arguments = json.loads(call.function.arguments)
        same((arguments["place"], {arguments["unit"]} - set(UNITS)), (ARGUMENTS["place"], set()))

    def form(self) -> None:
        weather = models()[1]
        found = self.client.chat.completions.parse(model=MODEL, messages=told(FORM), response_format=weather)
        same(found.choices[0].message.parsed.place.days, [1, 2])
        response = self.client.responses.parse(model=MODEL, input=FORM, text_format=weather)
        same(response.output_parsed.place.city, "Paris")

    def back(self) -> None:
        client, talk = self.client, list[Any](told(f"SAY <think>Hm.</think>{CALL}"))
        items = list(talk)
        message = (
            client.chat.completions.create(model=MODEL, messages=talk, tools=tools(strict=True)).choices[0].message
        )
        talk += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}]
        last = client.chat.completions.create(model=MODEL, messages=talk, tools=tools(strict=True))
        same(last.choices[0].message.content, SAID)
        flat: Any = [{"type": "function", **FUNCTION, "strict": True}]
        output = client.responses.create(model=MODEL, input=items, tools=flat).output
        same([item.type for item in output], ["reasoning", "function_call"])
        items += [*output, {"type": "function_call_output", "call_id": output[-1].call_id, "output": RESULT}]
        same(client.responses.create(model=MODEL, input=items, tools=flat).output_text, SAID)


class LangChain(Client):
    """LangChain's model of a chat."""

    package = "langchain-openai"

    def model(self, **more: Any) -> Any:
        from langchain_openai import ChatOpenAI

        own: dict[str, Any] = {"base_url": f"{self.url}/v1", "api_key": KEY, "model": MODEL, "max_retries": 0}
        return ChatOpenAI(**own, **more)

    def chat(self) -> None:
        same(self.model().invoke("SAY Good day").content, "Good day")

    def stream(self) -> None:
        chunks = list(self.model(stream_usage=True).bind_tools([models()[1]]).stream("SAY Good day to you"))
        same("".join(chunk.content for chunk in chunks), "Good day to you")

    def tools(self) -> None:
        found = self.model().bind_tools(tools(strict=False)).invoke(SAY)
        same((found.content.strip(), found.tool_calls[0]["args"]), ("Let me see.", ARGUMENTS))

    def nested(self, **more: Any) -> None:
        asked = SAY.replace("get_weather", "Weather")
        same(self.model().bind_tools([models()[1]], **more).invoke(asked).tool_calls[0]["args"], ARGUMENTS)

    def strict(self) -> None:
        self.nested(strict=True)

    def form(self) -> None:
        same(self.model().with_structured_output(models()[1]).invoke(FORM).place.days, [1, 2])

    def back(self) -> None:
        from langchain_core.messages import HumanMessage, ToolMessage

        model, talk = self.model().bind_tools(tools(strict=True)), list[Any]([HumanMessage(SAY)])
        talk.append(model.invoke(talk))
        talk.append(ToolMessage(RESULT, tool_call_id=talk[-1].tool_calls[0]["id"]))
        same(model.invoke(talk).content, SAID)


class LiteLLM(Client):
    """LiteLLM, with the server as an OpenAI one."""

    package = "litellm"

    def asked(self, text: Any, **more: Any) -> Any:
        import litellm

        own: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": f"{self.url}/v1", "api_key": KEY}
        return litellm.completion(**own, messages=told(text) if isinstance(text, str) else text, **more)

    def chat(self) -> None:
        found = self.asked("SAY <think>Hm.</think>Good day").choices[0].message
        same((found.content, found.reasoning_content), ("Good day", "Hm."))

    def stream(self) -> None:
        import litellm

        chunks = list(self.asked(SAY, tools=tools(strict=True), stream=True))
        message = litellm.stream_chunk_builder(chunks).choices[0].message
        same(json.loads(message.tool_calls[0].function.arguments), ARGUMENTS)

    def tools(self, *, strict: bool = False) -> None:
        found = self.asked(SAY, tools=tools(strict=strict)).choices[0].message
        same(json.loads(found.tool_calls[0].function.arguments), ARGUMENTS)

    nested = tools

    def strict(self) -> None:
        self.tools(strict=True)

    def form(self) -> None:
        found = self.asked(FORM, response_format=models()[1]).choices[0].message
        same(json.loads(found.content), ARGUMENTS)

    def back(self) -> None:
        message = self.asked(THINK, tools=tools(strict=False)).choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}
        talk = [*told(SAY), message.model_dump(), result]
        same(self.asked(talk, tools=tools(strict=False)).choices[0].message.content, SAID)


class Instructor(Client):
    """Instructor over OpenAI's own client."""

    package = "instructor"

    def asked(self, mode: str, text: str, create: str = "create", **more: Any) -> Any:
        import instructor

        client = instructor.from_openai(OpenAI(self.url).client, mode=getattr(instructor.Mode, mode))
        own: dict[str, Any] = {"model": MODEL, "messages": told(text), "response_model": models()[1], "max_retries": 0}
        return getattr(client.chat.completions, create)(**own, **more)

    def tools(self, mode: str = "TOOLS") -> None:
        same(self.asked(mode, named("Weather")).place.days, [1, 2])

    nested = tools

    def stream(self) -> None:
        *_, last = self.asked("TOOLS", named("PartialWeather"), "create_partial")
        same(last.place.city, "Paris")

    def strict(self) -> None:
        self.tools("TOOLS_STRICT")

    def form(self) -> None:
        for mode in ("JSON_SCHEMA", "JSON"):
            same(self.asked(mode, FORM).place.days, [1, 2])
