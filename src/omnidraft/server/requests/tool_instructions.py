"""Functions and roles told of in words, for targets whose chat template has no place for them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from omnidraft.server.requests.messages import Prompt
from omnidraft.server.requests.tool_results import with_short_ids
from omnidraft.text import roles

TEXT = """\
You may call functions. These are all there are, a JSON object each:
{functions}

To call one, answer with nothing but this, a line for each call:
<tool_call>{{"name": "NAME", "arguments": {{...}}}}</tool_call>
Results come in the next message. Where no function is needed, answer in plain text."""


def instructed(prompt: Prompt, functions: Collection[Mapping[str, Any]], *, system: bool = True) -> Prompt:
    """The prompt with the functions told of in the first message, and earlier calls and results as text.

    With `system`, that is the system message, which is made where there is none; else the first of the user.
    """
    lines = "\n".join(json.dumps(each, ensure_ascii=False) for each in functions)
    text = TEXT.format(functions=lines)
    prompt = in_words(prompt)
    messages = prompt.messages
    if system and messages[0]["role"] == "system":
        told = [messages[0] | {"content": f"{messages[0]['content']}\n\n{text}"}, *messages[1:]]
    elif system:
        told = [{"role": "system", "content": text}, *messages]
    else:
        first = next((at for at, each in enumerate(messages) if each["role"] == "user"), 0)
        told = [*messages]
        told[first] = messages[first] | {"content": f"{text}\n\n{messages[first]['content']}"}
    variables = {name: value for name, value in prompt.variables.items() if name != "tools"}
    return replace(prompt, messages=told, variables=variables)


def alternatives(prompt: Prompt) -> Iterator[Prompt]:
    """The prompt for templates that refuse it: with short ids of calls, and with fewer roles.

    First without later system messages, then without any, and at last without tools'.
    """
    short = replace(prompt, messages=with_short_ids(prompt.messages))
    told = [prompt] if short.messages == prompt.messages else [prompt, short]
    yield from told[1:]
    for each in (*told, in_words(prompt)):
        for messages in roles.of_fewer_roles(each.messages):
            yield replace(each, messages=messages)


def in_words(prompt: Prompt) -> Prompt:
    """The prompt with calls as text of the answers that made them, and results as messages of the user."""
    messages: list[dict[str, Any]] = []
    for each in prompt.messages:
        message = dict(each)
        if calls := message.pop("tool_calls", None):
            texts = [f"<tool_call>{json.dumps(call['function'], ensure_ascii=False)}</tool_call>" for call in calls]
            message["content"] = "\n".join([*([message["content"]] if message.get("content") else []), *texts])
        if message["role"] == "tool":
            message = {"role": "user", "content": f"<tool_response>{message['content']}</tool_response>"}
        if messages and message["role"] == messages[-1]["role"] == "user":
            messages[-1] = messages[-1] | {"content": f"{messages[-1]['content']}\n{message['content']}"}
        else:
            messages.append(message)
    optional = {name: paths for name, paths in prompt.optional.items() if name != "tool_calls"}
    return replace(prompt, messages=messages, optional=optional)
