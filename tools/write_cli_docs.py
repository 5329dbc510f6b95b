"""Write docs/cli.md from the help of every command; options that commands share are listed once.

    python tools/write_cli_docs.py

The tests compare the page with the commands.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import textwrap
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from omnidraft.cli.main import main

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
COLUMNS = "110"
SETTINGS = "\nsettings, by --set KEY=VALUE:\n"
SHARED = 2  # commands with the same help of an option make it a common one
INTRODUCTION = """# Command line

Answers go to stdout, everything else to stderr. Exit codes: 0 success, 1 failure, 2 bad input (one line says what is
wrong), 130 Ctrl-C, 141 stdout was closed. Files and pipes are in UTF-8, on Windows too. Every command has `--help`,
with examples; those with `--set` have `--help-all`. Made by `python tools/write_cli_docs.py`.
"""
SAMPLING = (
    "Sampling defaults to the target's generation config, else to the values here and in [settings](#settings).\n"
)
_COMMAND = re.compile(r"^    ([\w-]+)(?:  |$)", re.MULTILINE)
_ENTRY = re.compile(r"^  (\S.*(?:\n {4,}\S.*)*)\n", re.MULTILINE)  # an option with its help
_OPTIONAL = re.compile(r" \[--?[^\]]*\]")
Entry = tuple[str, str]  # what is typed, its help


def helps(words: tuple[str, ...] = ()) -> dict[str, str]:
    """The help of a command and of all below it, by name."""
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


def _entry(text: str) -> Entry:
    """The option and its help, whose lines argparse breaks differently from command to command."""
    name, _, about = re.sub(r"\n +", "  ", text).partition("  ")
    return name, " ".join(about.split())


def _options(text: str) -> list[Entry]:
    return [_entry(found) for found in _ENTRY.findall(text) if re.match("--(?!help-all)", found)]


def _usage(text: str) -> str:
    """A help without the list of all options that argparse puts into its usage."""
    usage, _, rest = text.partition("\n\n")
    required = _OPTIONAL.sub("", " ".join(usage.split()).removesuffix(" [OPTION ...]"))
    return f"{required}{' [OPTION ...]' if _options(text) else ''}\n\n{rest}"


def _section(name: str, text: str, common: set[Entry]) -> str:
    """The part of a command: its own options as they are, the common ones by name."""
    also = [f"`{entry[0].split()[0]}`" for entry in _options(text) if entry in common]

    def own(found: re.Match[str]) -> str:
        entry = _entry(found[1])
        return "" if entry in common or entry[0] in ("-h, --help", "--help-all") else found[0]

    body = _ENTRY.sub(own, _usage(text).partition("\nexamples:\n")[0])
    body = re.sub(r"^\S[^\n]*:\n(?=\n|\Z)\n?", "", body, flags=re.MULTILINE).rstrip()  # headings of nothing
    links = "\n" + _wrapped(f"[Common options](#common-options): {', '.join(also)}.") if also else ""
    return f"## `{name}`\n\n```text\n{body}\n```\n{links}"


def _told(name: str, text: str, common: set[Entry]) -> bool:
    """True of a command that the list of the one above says all of: it has no options of its own."""
    return len(name.split()) > 2 and all(entry in common for entry in _options(text))


def _common(options: list[Entry]) -> set[Entry]:
    """The options that several commands have with the same help: of each name, the help that most have."""
    times = Counter(options)
    most = {entry[0].split()[0]: entry for entry in sorted(times, key=lambda entry: times[entry])}
    return {entry for entry in most.values() if times[entry] >= SHARED}


def _settings(texts: list[str], flags: set[str]) -> str:
    """The settings that have no option of their own, by group."""
    groups = dict.fromkeys(group for text in texts for group in re.findall(r"^\w.*:\n(?:  .*\n)+", text, re.MULTILINE))
    parts, seen = [], set[Entry]()
    for group in groups:
        own = [entry for entry in map(_entry, _ENTRY.findall(group)) if entry[0] not in flags and entry not in seen]
        seen.update(own)
        if own:
            parts.append(f"{group.partition(':')[0].capitalize()}:\n\n{_listed(own)}")
    return "\n".join(parts)


def _listed(entries: Iterable[Entry]) -> str:
    return "".join(_wrapped(f"- `{name}`: {about}") for name, about in entries)


def _wrapped(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) + "\n"


def page() -> str:
    """The whole page."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = COLUMNS
    try:
        texts = {name: text.partition(SETTINGS) for name, text in helps().items()}
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    options = [entry for text, _, _ in texts.values() for entry in _options(text)]
    common = _common(options)
    shown = [name for name, (text, _, _) in texts.items() if not _told(name, text, common)]
    shown = [name for name in shown if name == "omnidraft" or not any(each.startswith(f"{name} ") for each in shown)]
    of_set = [entry for text, _, settings in texts.values() if settings for entry in _options(text)]  # takes --set
    flags = {entry[0].split()[0].removeprefix("--").replace("-", "_") for entry in of_set}
    return "\n".join([
        INTRODUCTION,
        *(_section(name, texts[name][0], common) for name in shown),
        f"## Common options\n\n{SAMPLING}\n{_listed(sorted(common))}",
        "## Settings\n\n`--set KEY=VALUE`, such as `--set min_p=0.05`, takes these names, and those of options.\n",
        _settings([text for _, _, text in texts.values()], flags),
    ])  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
