"""The README's snippets run as they stand, on the models that ship."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from omnidraft.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def test_python(capsys: pytest.CaptureFixture[str]) -> None:
    snippets = blocks("python")
    assert len(snippets) >= 2
    names: dict[str, object] = {}
    for snippet in snippets:  # one after the other, as a reader would
        exec(compile(snippet, "README.md", "exec"), names)  # noqa: S102 (our own page)
        assert capsys.readouterr().out.strip()


def test_shell(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("omnidraft ")]
    assert commands
    for command in commands:
        assert main(shlex.split(command, comments=True)[1:]) == 0
        assert capsys.readouterr().out.strip()


def test_make_targets_exist() -> None:
    named = {line.split()[1] for block in blocks("sh") for line in block.splitlines() if line.startswith("make ")}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert named == {"demo", "test"}
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in named)


@pytest.mark.parametrize(
    "page", ["README.md", "docs/how-it-works.md", "CONTRIBUTING.md", "src/omnidraft/zoo/README.md"]
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}"
