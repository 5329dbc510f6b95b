"""Parameters that are refused by name: without a word, their loss would change what an answer means.

Each body lists its own (`Body.refused`).  Whatever else there is no field for is ignored, and named in the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omnidraft.server.errors import ApiError

TEXT_ALONE = "only text is supported: leave it out"
STATELESS = "nothing is kept between requests: send the whole conversation"
OUT = "leave it out"
CODE = "unsupported_value"
Fixes = Mapping[str, str]
"""What to do in place of a parameter, by its path, in which [] is any item of a list."""


def each(fix: str, *names: str) -> Fixes:
    """The same fix for each of these."""
    return dict.fromkeys(names, fix)


SAMPLED: Fixes = {
    **each(OUT, "stop_token_ids", "bad_words", "allowed_token_ids", "include_stop_str_in_output", "lora"),
    **each("use response_format", "format"),
    **each("use structured_outputs", "regex", "ebnf"),
    **each("use json, regex, choice or grammar", "structured_outputs.structural_tag"),
    **each(TEXT_ALONE, "images"),
}
MESSAGES: Fixes = {
    **each(TEXT_ALONE, "messages[].audio", "messages[].images", "messages[].files"),
    **each("use tool_calls", "messages[].function_call"),
    **each("use continue_final_message", "messages[].prefix", "messages[].partial"),
}

OFF: Sequence[Any] = (False, "", [])  # values that ask for nothing; 0 equals False
SAME: Mapping[str, Sequence[Any]] = {"modalities": (["text"], []), "parse_special": (True,)}


def check(body: Mapping[str, Any], refused: Fixes) -> None:
    """Raise ApiError for a parameter that is refused, unless it asks for what is done anyway."""
    for pattern, fix in refused.items():
        holder, _, name = pattern.rpartition(".")
        for path, one in _holders(body, holder):
            value = one.get(name)
            if value is not None and value not in SAME.get(name, OFF):
                raise ApiError(400, f"{path}{name} is not supported: {fix}", param=path + name, code=CODE)


def _holders(body: Mapping[str, Any], name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The body itself, an object in it, or those of a list in it, each with the beginning of the path to a key."""
    value: Any = body.get(name.removesuffix("[]")) if name else body
    if name.endswith("[]"):
        listed = enumerate(value if isinstance(value, list) else ())
        yield from ((f"{name[:-1]}{place}].", each) for place, each in listed if isinstance(each, dict))
    elif isinstance(value, dict):
        yield f"{name}." if name else "", value
