"""Functions and roles told of in words, for targets whose chat template has no place for them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from omnidraft.server.messages import Prompt

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


def in_words(prompt: Prompt, *, system: bool = True) -> Prompt:
    """The prompt with calls as text of the answers that made them, and results as messages of the user.

    Without `system`, what the system says is the user's, too.
    """
    messages: list[dict[str, Any]] = []
    for each in prompt.messages:
        made = dict(each)
        if calls := made.pop("tool_calls", None):
            texts = [f"<tool_call>{json.dumps(call['function'], ensure_ascii=False)}</tool_call>" for call in calls]
            made["content"] = "\n".join([*([made["content"]] if made.get("content") else []), *texts])
        if made["role"] == "tool":
            made = {"role": "user", "content": f"<tool_response>{made['content']}</tool_response>"}
        if made["role"] == "system" and not system:
            made["role"] = "user"
        if messages and made["role"] == messages[-1]["role"] == "user":
            messages[-1] = messages[-1] | {"content": f"{messages[-1]['content']}\n{made['content']}"}
        else:
            messages.append(made)
    optional = {name: paths for name, paths in prompt.optional.items() if name != "tool_calls"}
    return replace(prompt, messages=messages, optional=optional)
