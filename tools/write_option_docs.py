"""Write the table of the options of `load` in docs/using.md from its signature and the settings.

    python tools/write_option_docs.py

The tests compare the page with the code.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

from omnidraft.api import load
from omnidraft.config import DraftingOptions, LearningOptions

PAGE = Path(__file__).parents[1] / "docs" / "using.md"
BEGIN, END = "<!-- options: made by tools/write_option_docs.py -->", "<!-- end of options -->"
OWN = {
    "target": "a folder, a GGUF file, a hub id or `zoo:NAME`",
    "drafter": "the same, an `OmniDraft` to share its drafter, or `None` for [counts](#memory) alone; `auto` is "
    "[`zoo:general`](#defaults)",
    "dtype": "`float32`, `bfloat16` or `float16` of both models, or `int8` of the target",
    "device": "of both models: `cpu`, `cuda`, `cuda:N` or `mps`",
    "adapt": "[learning](learning.md) from the answers: `off`, `background` or `inline`",
    "profile": "[where learned weights are kept](profiles.md): a file, or `None`; `auto`: that of this pair",
    "warn": "a function that is called with each warning, one line",
}


def rows() -> list[tuple[str, str, str]]:
    """Name, default and meaning of every option."""
    parameters = inspect.signature(load).parameters
    found = [(name, parameters[name].default, about) for name, about in OWN.items()]
    settings = (*fields(DraftingOptions), *fields(LearningOptions))
    found += [(f.name, f.default, f.metadata["help"]) for f in settings]
    shown = {inspect.Parameter.empty: "", parameters["warn"].default: "the logger `omnidraft`"}
    return [(name, shown[value] if callable(value) else f"`{value}`", about) for name, value, about in found]


def page() -> str:
    """The whole page, with the table as it is to be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table = "".join(f"| `{name}` | {default} | {about} |\n" for name, default, about in rows())
    head = "| option | default | |\n| --- | --- | --- |\n"
    return f"{before}{BEGIN}\n\n{head}{table}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
