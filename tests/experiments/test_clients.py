"""The cases of the clients that are installed here, and the table that is made of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments import clients
from experiments.client_cases import CLIENTS
from experiments.echo import serving

HERE = [(name, case) for name in ("openai", "langchain-openai") for case in CLIENTS[name].cases()]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("echo")) as url:
        yield url


@pytest.mark.medium
@pytest.mark.parametrize(("library", "name"), HERE)
def test_what_is_tried(url: str, library: str, name: str) -> None:
    pytest.importorskip(library.replace("-", "_"))
    CLIENTS[library](url).run(name)


@pytest.mark.slow
def test_a_case_that_fails_is_told() -> None:
    assert clients.tried("openai", "chat", "http://127.0.0.1:9", None)


def test_the_page_shows_what_was_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcomes = {"openai": {"version": "1.2", "cases": {"chat": "", "strict": "it fails"}}}
    made = clients.table(outcomes)
    assert made.splitlines()[0] in clients.PAGE.read_text(encoding="utf-8"), "the columns are those of the page"
    assert made.splitlines()[2].startswith("| openai | 1.2 | yes |")
    assert " no |" in made
    path = tmp_path / "clients.md"
    path.write_text(clients.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(clients, "PAGE", path)
    whole = clients.page(made)
    assert made in whole
    assert whole.count(clients.BEGIN) == whole.count(clients.END) == 1
    for name, client in CLIENTS.items():
        assert client.cases()
        assert re.search(rf"^\*\*{name}\*\*\n\n```python\n", whole, re.MULTILINE), "it says how to set it up"
