"""The page in a browser, before the real server and models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from selenium.webdriver import Keys

from support.browser import Page, chromium
from support.serving import QUESTION, At, Rounds, user
from support.waiting import until


@pytest.mark.slow
def test_a_conversation(server: At, rounds: Rounds, tmp_path: Path) -> None:
    question = QUESTION.replace("\n", " ")  # a key that sends
    with chromium(tmp_path) as driver:
        page = Page(driver, server.url)
        page.open()
        assert page.texts("#model option") == [one["id"] for one in server.get("/v1/models").json()["data"]]
        page.send(question)
        page.wait_for_answers(1)
        plain = server.chat(messages=user(question), max_tokens=None).json()["choices"][0]["message"]["content"]
        words = [word for word in plain.split() if word.strip("#")]  # which Markdown has before a heading
        assert page.text("article.answer > div").split() == words
        figures = page.texts("article.answer .figures span")
        assert [re.sub(r"[\d.]+", "N", text) for text in figures][:3] == ["N tokens", "N s", "N tokens/s"]
        assert {"% of draft tokens accepted", "tokens a pass"} <= {text.lstrip("0123456789. ") for text in figures}
        assert page.all("article.answer .drafted, article.answer .counted")
        assert page.all("article.answer .target")
        page.wait(lambda: len(page.all("#charts .line")) == 4)
        page.one("#report summary").click()
        page.wait(lambda: "The pair works together." in page.text("#tables"))
        page.send("Once more, at length")
        rounds.wait(3)
        page.wait(lambda: "so far" in page.text("article.answer:last-child .figures"))
        page.keys(Keys.ESCAPE)
        page.wait_for_answers(2)
        assert "stopped" in page.text("article.answer:last-child .figures")
        rounds.let()
        until(lambda: server.figures()["active"] == 0)
        page.shot("real")
        assert page.complaints() == []
