"""The README's snippets run as they stand, on the models that ship."""

from __future__ import annotations

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import overhead
from experiments.study import Study
from omnidraft.cli import bench
from omnidraft.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("home")
def test_python(capsys: pytest.CaptureFixture[str]) -> None:
    snippets = [snippet for snippet in blocks("python") if "OpenAI" not in snippet]  # those need a server
    assert len(snippets) >= 2
    names: dict[str, object] = {}
    for snippet in snippets:  # one after the other, as a reader would
        exec(compile(snippet, "README.md", "exec"), names)  # noqa: S102 (our own page)
        assert capsys.readouterr().out.strip()


@pytest.mark.usefixtures("home")
def test_shell(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("omnidraft ")]
    assert commands
    for command in commands:
        assert main(shlex.split(command, comments=True)[1:]) == 0
        assert capsys.readouterr().out.strip()


def test_long_commands_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes minutes is not run, but its options are read."""
    read: list[str] = []

    def note(options: argparse.Namespace, _console: object) -> int:
        read.append(options.words[2])
        return 0

    server = SimpleNamespace(run=lambda: read.append("serve"))
    monkeypatch.setattr("omnidraft.server.run.Running", lambda *_, **__: server)
    for name in ("_compare", "_exactness"):
        monkeypatch.setattr(bench, name, note)
    monkeypatch.setattr(overhead, "measure", note)
    monkeypatch.setattr(Study, "measure", lambda _self, options, console: note(options, console))
    for line in (line for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")):
        program, *words = shlex.split(line.removeprefix("$ "), comments=True)
        if program == "omnidraft":
            assert main(words) == 0
        else:
            assert import_module(words[1]).main(words[2:]) == 0
    studies = [f"experiments.{name}" for name in ("overhead", "adaptation", "paper")]
    assert read == ["serve", "compare", "exactness", *studies]


def test_make_targets_exist() -> None:
    named = {line.split()[1] for block in blocks("sh") for line in block.splitlines() if line.startswith("make ")}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert named == {"demo", "test"}
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in named)


PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "src/omnidraft/zoo/README.md",
    *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}"


def test_every_page_is_linked() -> None:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert all(re.search(rf"\]\((docs/)?{re.escape(path.name)}", text) for path in (ROOT / "docs").glob("*.md"))
