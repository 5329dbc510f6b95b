"""Write the lists and the table of parameters in docs/serve.md from those of the server.

    python tools/write_parameter_docs.py

The tests compare the page with the code.
"""

from __future__ import annotations

import json
import textwrap
from itertools import groupby
from pathlib import Path

from omnidraft.server.bodies import KINDS
from omnidraft.server.unsupported_parameters import Rule, rows

PAGE = Path(__file__).parents[1] / "docs" / "serve.md"
BEGIN, END = "<!-- parameters: made by tools/write_parameter_docs.py -->", "<!-- end of parameters -->"
LINES = textwrap.TextWrapper(120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
ENDPOINTS = {"chat": "chat", "completion": "completions", "response": "responses"}


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _places(kinds: frozenset[str]) -> str:
    return "" if len(kinds) == len(ENDPOINTS) else f" ({', '.join(ENDPOINTS[k] for k in ENDPOINTS if k in kinds)})"


def _by_kinds(found: dict[str, frozenset[str]]) -> list[str]:
    """Names with the endpoints that take them, those of the same endpoints together."""
    order = sorted(found.items(), key=lambda item: (-len(item[1]), sorted(item[1])))
    return [
        _names([name for name, _ in each]) + _places(kinds) for kinds, each in groupby(order, key=lambda item: item[1])
    ]


def _list(title: str, found: dict[str, frozenset[str]]) -> str:
    return "\n".join([f"**{title}**", "", *(LINES.fill(f"- {each}") for each in _by_kinds(found)), ""])


def table() -> str:
    """Lists of what is supported and what is ignored, and a table of what is taken with some values alone."""
    done: dict[str, frozenset[str]] = {}
    others: dict[Rule, dict[str, frozenset[str]]] = {}
    for body, kind in KINDS.items():
        if kind in ENDPOINTS:
            for name in body.model_fields:
                done[name] = done.get(name, frozenset()) | {kind}
            for name, rule in rows(kind):
                found = others.setdefault(Rule(tuple(map(json.dumps, rule.same)), rule.fix), {})
                found[name] = found.get(name, frozenset()) | {kind}
    ignored = {name: kinds for name, kinds in others.pop(Rule(), {}).items() if "[]" not in name}
    lines = ["| parameter | supported values | other values |", "| --- | --- | --- |"]
    for rule, found in sorted(others.items(), key=lambda item: item[0].fix is not None):
        same = " or ".join(f"`{value}`" for value in rule.same) or "none"
        lines.append(f"| {'; '.join(_by_kinds(found))} | {same} | {f'400: {rule.fix}' if rule.fix else 'ignored'} |")
    return "\n".join([_list("Supported", done), _list("Ignored", ignored), "**Some values**", "", *lines])


def page() -> str:
    """The whole page, with the table as it is to be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
