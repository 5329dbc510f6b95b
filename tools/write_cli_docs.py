"""Write docs/cli.md: the help of every command, as the commands themselves print it.

    python tools/write_cli_docs.py

The tests compare the page with what the commands say.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
COLUMNS = "110"
INTRODUCTION = """# Command line

Answers go to stdout, everything else to stderr. Exit codes: 0; 1 (something failed); 2 (bad input, said in one line);
130 (Ctrl-C); 141 (the reader of stdout is gone). This page is made by
`python tools/write_cli_docs.py` from the commands' own help.
"""
_COMMAND = re.compile(r"^    ([\w-]+)(?:  |$)", re.MULTILINE)


def helps(words: tuple[str, ...] = ()) -> dict[str, str]:
    """The help of a command and of all below it, by name."""
    from omnidraft.cli.main import main

    text = ""
    for ask in ("--help", "--help-all"):
        if ask in ("--help", *re.findall(r"--help-all", text)):
            shown = io.StringIO()
            with contextlib.redirect_stdout(shown):
                main([*words, ask])
            text = shown.getvalue()
    found = {" ".join(("omnidraft", *words)): text}
    _, listed, rest = text.partition("\n  COMMAND\n")
    for name in _COMMAND.findall(rest.partition("\n\n")[0]) if listed else []:
        found |= helps((*words, name))
    return found


def page() -> str:
    """The whole page."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = COLUMNS
    try:
        sections = [f"## `{name}`\n\n```text\n{text.rstrip()}\n```\n" for name, text in helps().items()]
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return "\n".join([INTRODUCTION, *sections])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
