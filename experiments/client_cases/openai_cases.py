"""OpenAI's own client, and LangChain's."""

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
    PLACE,
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

OPENAI = Client(
    "openai",
    'client = OpenAI(base_url="http://localhost:8080/v1", api_key="none")\n'
    "client.chat.completions.create(model=..., messages=...)",
)


@OPENAI.case(CHAT)
def _(url: str) -> None:
    client = openai_client(url)
    found = client.chat.completions.create(model=MODEL, messages=told("SAY <think>Hm.</think>Good day"))
    same((found.choices[0].message.content, found.choices[0].message.reasoning_content), ("Good day", "Hm."))
    same(client.responses.create(model=MODEL, input="SAY Good day").output_text, "Good day")


@OPENAI.case(STREAM)
def _(url: str) -> None:
    client = openai_client(url)
    chunks = client.chat.completions.create(model=MODEL, messages=told("SAY Good day to you"), stream=True)
    same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), "Good day to you")
    with client.chat.completions.stream(model=MODEL, messages=told(SAY), tools=tools(strict=True)) as stream:
        stream.until_done()
        message = stream.get_final_completion().choices[0].message
    same(json.loads(message.tool_calls[0].function.arguments), ARGUMENTS)
    with client.responses.stream(model=MODEL, input=SAY, tools=[{"type": "function", **FUNCTION}]) as events:
        output = events.get_final_response().output
    same([item.type for item in output], ["message", "function_call"])


@OPENAI.case(TOOLS)
def _(url: str) -> None:
    found = openai_client(url).chat.completions.create(model=MODEL, messages=told(SAY), tools=tools(strict=False))
    (call,) = found.choices[0].message.tool_calls
    same((call.function.name, found.choices[0].finish_reason), ("get_weather", "tool_calls"))


@OPENAI.case(NESTED)
def _(url: str) -> None:
    bare = f'SAY {{"name": "get_weather", "arguments": {json.dumps(ARGUMENTS)}}}'
    found = openai_client(url).chat.completions.create(
        model=MODEL, messages=told(bare), tools=tools(strict=False), tool_choice="required"
    )
    same(json.loads(found.choices[0].message.tool_calls[0].function.arguments), ARGUMENTS)


@OPENAI.case(STRICT)
def _(url: str) -> None:
    wrong = SAY.replace("celsius", "kelvin")
    found = openai_client(url).chat.completions.create(model=MODEL, messages=told(wrong), tools=tools(strict=True))
    arguments = json.loads(found.choices[0].message.tool_calls[0].function.arguments)
    same((arguments["place"], {arguments["unit"]} - {"celsius", "fahrenheit"}), (PLACE, set()))


@OPENAI.case(FORM)
def _(url: str) -> None:
    _, weather = models()
    asked = told(f"SAY {json.dumps(ARGUMENTS)}")
    found = openai_client(url).chat.completions.parse(model=MODEL, messages=asked, response_format=weather)
    same(found.choices[0].message.parsed.place.days, [1, 2])
    response = openai_client(url).responses.parse(model=MODEL, input=asked[0]["content"], text_format=weather)
    same(response.output_parsed.place.city, "Paris")


@OPENAI.case(BACK)
def _(url: str) -> None:
    client, talk = openai_client(url), list[Any](told(f"SAY <think>Hm.</think>{CALL}"))
    message = client.chat.completions.create(model=MODEL, messages=talk, tools=tools(strict=True)).choices[0].message
    talk += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}]
    last = client.chat.completions.create(model=MODEL, messages=talk, tools=tools(strict=True))
    same(last.choices[0].message.content, SAID)
    flat: Any = [{"type": "function", **FUNCTION, "strict": True}]
    items: Any = told(f"SAY <think>Hm.</think>{CALL}")
    output = client.responses.create(model=MODEL, input=items, tools=flat).output
    same([item.type for item in output], ["reasoning", "function_call"])
    items += [*output, {"type": "function_call_output", "call_id": output[-1].call_id, "output": RESULT}]
    same(client.responses.create(model=MODEL, input=items, tools=flat).output_text, SAID)


LANGCHAIN = Client(
    "langchain-openai",
    'model = ChatOpenAI(base_url="http://localhost:8080/v1", api_key="none", model=...)\n'
    "model.bind_tools(tools).invoke(messages)",
)


def _langchain(url: str, **more: Any) -> Any:
    from langchain_openai import ChatOpenAI

    own: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": KEY, "model": MODEL, "max_retries": 0}
    return ChatOpenAI(**own, **more)


@LANGCHAIN.case(CHAT)
def _(url: str) -> None:
    same(_langchain(url).invoke("SAY Good day").content, "Good day")


@LANGCHAIN.case(STREAM)
def _(url: str) -> None:
    chunks = list(_langchain(url, stream_usage=True).bind_tools([models()[1]]).stream("SAY Good day to you"))
    same("".join(chunk.content for chunk in chunks), "Good day to you")


@LANGCHAIN.case(TOOLS)
def _(url: str) -> None:
    found = _langchain(url).bind_tools(tools(strict=False)).invoke(SAY)
    same((found.content.strip(), found.tool_calls[0]["args"]), ("Let me see.", ARGUMENTS))


@LANGCHAIN.case(NESTED)
def _(url: str) -> None:
    asked = SAY.replace("get_weather", "Weather")
    same(_langchain(url).bind_tools([models()[1]]).invoke(asked).tool_calls[0]["args"], ARGUMENTS)


@LANGCHAIN.case(STRICT)
def _(url: str) -> None:
    asked = SAY.replace("get_weather", "Weather")
    same(_langchain(url).bind_tools([models()[1]], strict=True).invoke(asked).tool_calls[0]["args"], ARGUMENTS)


@LANGCHAIN.case(FORM)
def _(url: str) -> None:
    made = _langchain(url).with_structured_output(models()[1])
    same(made.invoke(f"SAY {json.dumps(ARGUMENTS)}").place.days, [1, 2])


@LANGCHAIN.case(BACK)
def _(url: str) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    model, talk = _langchain(url).bind_tools(tools(strict=True)), list[Any]([HumanMessage(SAY)])
    talk.append(model.invoke(talk))
    talk.append(ToolMessage(RESULT, tool_call_id=talk[-1].tool_calls[0]["id"]))
    same(model.invoke(talk).content, SAID)
