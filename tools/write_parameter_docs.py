"""Write the lists and the table of parameters in docs/serve.md from those of the server.

    python tools/write_parameter_docs.py

The tests compare the page with the code.
"""

from __future__ import annotations

import textwrap
from itertools import groupby
from pathlib import Path

from omnidraft.server.requests.chat_bodies import ChatRequest, CompletionRequest
from omnidraft.server.requests.fields import Body
from omnidraft.server.requests.response_bodies import ResponseRequest

PAGE = Path(__file__).parents[1] / "docs" / "serve.md"
BEGIN, END = "<!-- parameters: made by tools/write_parameter_docs.py -->", "<!-- end of parameters -->"
LINES = textwrap.TextWrapper(120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
ENDPOINTS: dict[str, type[Body]] = {"chat": ChatRequest, "completions": CompletionRequest, "responses": ResponseRequest}


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _places(kinds: frozenset[str]) -> str:
    return "" if len(kinds) == len(ENDPOINTS) else f" ({', '.join(name for name in ENDPOINTS if name in kinds)})"


def _by_kinds(found: dict[str, frozenset[str]]) -> list[str]:
    """Names with the endpoints that take them, those of the same endpoints together."""
    order = sorted(found.items(), key=lambda item: (-len(item[1]), sorted(item[1])))
    return [
        _names([name for name, _ in each]) + _places(kinds) for kinds, each in groupby(order, key=lambda item: item[1])
    ]


def table() -> str:
    """Lists of what is supported, and a table of what is refused."""
    supported: dict[str, frozenset[str]] = {}
    refused: dict[str, dict[str, frozenset[str]]] = {}
    for endpoint, body in ENDPOINTS.items():
        for name in body.model_fields:
            supported[name] = supported.get(name, frozenset()) | {endpoint}
        for name, fix in body.refused.items():
            places = refused.setdefault(fix, {})
            places[name] = places.get(name, frozenset()) | {endpoint}
    lines = ["**Supported**", "", *(LINES.fill(f"- {each}") for each in _by_kinds(supported)), ""]
    lines += ["**Refused**", "", "| parameter | in its place |", "| --- | --- |"]
    lines += [f"| {'; '.join(_by_kinds(places))} | {fix} |" for fix, places in refused.items()]
    return "\n".join(lines)


def page() -> str:
    """The whole page, with the table as it is to be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
