"""What a conversation holds that was begun on another server: calls that were run there, results, and summaries."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, Field

CALLS = ("_call", "_tool_use", "_use")  # ends of the types of calls
ARGUMENTS = ("arguments", "input", "action", "operation")
CODE = ("code", "queries")
PACKED = re.compile(r"data:[\w/+.-]*;base64,")
TEXTS = (
    *("title", "url", "source", "text", "content", "summary", "output", "outputs", "results", "result", "lines"),
    *("stdout", "stderr", "logs", "error", "message", "error_code", "error_message"),
)


class Replay(BaseModel, extra="allow"):
    """An item of a conversation that no other model of it is for: its text is told where it has any."""

    type: Annotated[str, Field(min_length=1)]

    @property
    def id(self) -> str:
        """The id by which a call and its result belong together."""
        held = self.model_extra or {}
        named = (held.get(name) for name in ("call_id", "tool_use_id", "id"))
        return next((each for each in named if isinstance(each, str)), "")

    @property
    def calls(self) -> bool:
        """True of a call."""
        return self.type.endswith(CALLS) or self.type == "program"

    @property
    def replies(self) -> bool:
        """True of a result."""
        return self.type.endswith(("_output", "_result"))

    @property
    def name(self) -> str:
        """The name of what is called."""
        name = (self.model_extra or {}).get("name")
        end = next((end for end in CALLS if self.type.endswith(end)), "")
        return name if isinstance(name, str) else self.type.removesuffix(end)

    @property
    def arguments(self) -> str | dict[str, Any]:
        """What it is called with."""
        held = self.model_extra or {}
        for name in ARGUMENTS:
            if isinstance(value := held.get(name), dict):
                return value
            if isinstance(value, str):
                return value if name == "arguments" else {name: value}
        return {name: held[name] for name in CODE if name in held}

    @property
    def text(self) -> str:
        """The text of a result or a summary, or the result that a call holds itself."""
        held = self.model_extra or {}
        if "image" in self.type:  # whose result is none
            return ""
        return text_in({name: value for name, value in held.items() if name not in (*ARGUMENTS, *CODE)})


def answered(replays: Iterable[Replay]) -> set[str]:
    """The ids of the calls whose results are there: as text, or whatever they are where the client made them."""
    return {each.id for each in replays if each.text or each.type.endswith("_call_output")}


def text_in(value: Any) -> str:
    """The text that is anywhere in a value, as far as it is to be read; what is encrypted is not."""
    if isinstance(value, str):
        return "" if PACKED.match(value) else value
    if isinstance(value, list):
        return "\n".join(filter(None, map(text_in, value)))
    if not isinstance(value, dict):
        return ""
    names = (*TEXTS, "data") if value.get("type") == "text" else TEXTS
    return "\n".join(text for name in names if (text := text_in(value.get(name))))
