"""The README's snippets run as they stand, on a model that ships in place of the file that they name."""

from __future__ import annotations

import argparse
import io
import re
import shlex
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.study import Study
from omnidraft.cli import bench
from omnidraft.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
FILE, STAND_IN = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "zoo:target-b"


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.replace(FILE, STAND_IN), flags=re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """The words of each command that follows a `$` of a page."""
    lines = [line for block in blocks("console", page) for line in block.splitlines() if line.startswith("$ ")]
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]


@pytest.mark.medium
@pytest.mark.snippet
@pytest.mark.usefixtures("home")
def test_python(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = [snippet for snippet in blocks("python") if "OpenAI" not in snippet]  # that one needs a server
    exec(compile(snippet, "README.md", "exec"), {})  # noqa: S102 (our own page)
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
@pytest.mark.snippet
@pytest.mark.usefixtures("home")
def test_chat_and_serve(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []
    server = SimpleNamespace(run=lambda: served.append("serve"))
    monkeypatch.setattr("omnidraft.server.run.Running", lambda *_, **__: server)
    line = b"Question: Tim has 4 boxes of 6 pens. How many pens has he?\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(line), encoding="utf-8"))
    named = commands(README)
    assert [words[1] for words in named] == ["chat", "serve"]
    assert [main(words[1:]) for words in named] == [0, 0]
    assert served == ["serve"]
    assert capsys.readouterr().out.strip()


def test_commands_of_benchmarks_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes minutes is not run, but its options are read."""
    read: list[str] = []

    def note(options: argparse.Namespace, _console: object) -> int:
        read.append(options.words[2])
        return 0

    for name in ("_compare", "_exactness"):
        monkeypatch.setattr(bench, name, note)
    monkeypatch.setattr(Study, "run", lambda _self, options, console: note(options, console))
    for program, *words in commands(BENCHMARKS):
        assert (main(words) if program == "omnidraft" else import_module(words[1]).main(words[2:])) == 0
    studies = [f"experiments.{name}" for name in ("adaptation", "paper")]
    assert read == ["compare", "exactness", *studies]


def test_it_is_read_in_a_minute() -> None:
    """At 300 words of prose and some seconds a table: what a stranger asks first comes before the details."""
    prose = re.sub(r"^```.*?^```", "", README, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= 700
    assert max(len(line) for line in README.splitlines() if not line.startswith("|")) <= 120
    headings = re.findall(r"^## (.*)$", README, flags=re.MULTILINE)
    assert headings[:3] == ["Install", "Use", "Speed"]


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
