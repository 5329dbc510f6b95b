"""The options of `load` are few and all on the page of the API; the page of the paper has the others."""

from __future__ import annotations

import inspect

import pytest

from omnidraft.api import OmniDraft, load
from project.test_readme import ROOT, blocks
from support.project_files import tool

MOST = 16  # options of `load`


def test_the_page_lists_the_options_of_load() -> None:
    page = tool("write_option_docs")
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run python tools/write_option_docs.py"
    assert {*page.OWN} == {*inspect.signature(load).parameters} - {"options"}
    assert len(page.rows()) <= MOST


def test_the_page_lists_the_arguments_of_generate_and_the_fields_of_answers() -> None:
    page = tool("write_option_docs")
    assert {*page.ARGUMENTS} == {*inspect.signature(OmniDraft.stream).parameters} - {"self", "sampling"}
    answer, stats = page.names_of_answers()
    assert [*page.ANSWER] == answer
    assert [*page.STATS] == stats


@pytest.mark.medium
def test_the_page_of_the_source_lists_its_files() -> None:
    page = tool("write_source_docs")
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run python tools/write_source_docs.py"
    assert "|  |" not in page.page(), "a file says nothing of itself"


@pytest.mark.slow
@pytest.mark.snippet
@pytest.mark.usefixtures("home")
def test_the_settings_of_experiments_are_given_as_the_page_of_the_paper_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (snippet,) = blocks("python", (ROOT / "docs" / "paper.md").read_text(encoding="utf-8"))
    exec(compile(snippet, "paper.md", "exec"), {})  # noqa: S102 (our own page)
    assert capsys.readouterr().out.strip()
