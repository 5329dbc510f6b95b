"""The page of the server in a headless Chromium, before a server with canned answers.

Screenshots go to `artefacts/`, to be looked at.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from selenium.webdriver import Keys

from support.browser import WAIT_S, Page
from support.fake_server import FakeServer
from support.page_texts import MARKDOWN, text_of, traced

# ------------------------------------------------------------ answers


def test_an_answer_streams_with_its_sources_and_figures(page: Page, fake: FakeServer) -> None:
    fake.held = 1
    page.send("Why?")
    page.wait(lambda: page.text("article.answer > div") == "The moon shows")
    assert page.one("article.answer").get_attribute("aria-busy") == "true"
    assert not page.one("#send").is_displayed()
    assert page.one("#stop").is_displayed()
    assert "3 tokens so far" in page.text("article.answer .figures")
    fake.go.set()
    page.wait_for_answers(1)
    assert page.text("article.answer > div") == text_of(fake)
    assert page.texts("article.answer .drafted") == ["The moon"]
    assert page.texts("article.answer .counted") == ["the same"]
    assert page.texts("article.answer .target") == ["shows", "face."]
    assert page.texts("article.answer .figures span") == [
        "7 tokens", "0.50 s", "14.0 tokens/s", "75 % of draft tokens accepted", "2.33 tokens a pass",
        "1.50× against no drafting (estimate)",
    ]  # fmt: skip
    assert page.text("#status") == "Answer complete, 7 tokens"
    assert page.one("#send").is_displayed()
    assert fake.chats == [
        {
            "model": "target-a",
            "messages": [{"role": "user", "content": "Why?"}],
            "stream": True,
            "return_progress": True,
            "omnidraft": {"trace": True},
        }
    ]


def test_an_answer_without_drafts_has_no_estimate(page: Page, fake: FakeServer) -> None:
    fake.acceptance = None
    fake.answered = 6
    page.send("Why?")
    page.wait_for_answers(1)
    assert page.texts("article.answer .figures span")[3:] == ["no drafts", "2.33 tokens a pass"]
    page.wait(lambda: "7 requests" in page.text("#requests"))
    assert page.texts("#charts figcaption strong")[0] == "–"
    assert len(page.attributes("#charts .line", "points")[0].split()) == 6


def test_a_conversation_and_a_new_one_with_another_model(page: Page, fake: FakeServer) -> None:
    for i, text in enumerate(("one", "two"), start=1):
        page.send(text)
        page.wait_for_answers(i)
    assert [message["content"] for message in fake.chats[1]["messages"]] == ["one", text_of(fake), "two"]
    assert [message["role"] for message in fake.chats[1]["messages"]] == ["user", "assistant", "user"]
    page.one("#new").click()
    assert page.all("article") == []
    assert page.one("#empty").is_displayed()
    page.driver.execute_script("let m = document.getElementById('model'); m.value = 'target-b'")
    page.send("three")
    page.wait_for_answers(1)
    assert fake.chats[2]["model"] == "target-b"
    assert fake.chats[2]["messages"] == [{"role": "user", "content": "three"}]


def test_the_stop_button_keeps_what_there_is(page: Page, fake: FakeServer) -> None:
    fake.held = 1
    page.send("Why?")
    page.wait(lambda: page.text("article.answer > div") == "The moon shows")
    page.one("#stop").click()
    page.wait_for_answers(1)
    assert fake.left.wait(WAIT_S)
    assert page.texts("article.answer .figures span") == ["3 tokens", "stopped"]
    fake.go.set()
    page.send("Go on")
    page.wait_for_answers(2)
    assert [message["content"] for message in fake.chats[1]["messages"]] == ["Why?", "The moon shows", "Go on"]


def test_a_new_chat_ends_the_answer_of_the_old_one(page: Page, fake: FakeServer) -> None:
    fake.held = 1
    page.send("Why?")
    page.wait(lambda: page.text("article.answer > div") == "The moon shows")
    page.one("#new").click()
    assert fake.left.wait(WAIT_S)
    fake.go.set()
    page.send("Again")
    page.wait_for_answers(1)
    assert fake.chats[1]["messages"] == [{"role": "user", "content": "Again"}]


# ------------------------------------------------------------ figures


def test_the_charts_move(page: Page, fake: FakeServer) -> None:
    def points() -> list[int]:
        return [len(line.split()) for line in page.attributes("#charts .line", "points")]

    def moved(count: int) -> bool:
        return points() == [count] * 4

    page.wait(lambda: "0 requests" in page.text("#requests"))
    assert points() == []
    for i in (1, 2, 3):
        page.send("Why?")
        page.wait_for_answers(i)
        page.wait(partial(moved, i))
    assert page.texts("#charts figcaption strong") == ["60 %", "1.8", "4", "1"]
    label = page.attributes("#charts svg", "aria-label")[0]
    assert label == "Draft tokens accepted: 3 answers, the last 60 %"
    assert "3 requests" in page.text("#requests")
    fake.answered = 30  # of other clients: the page asks by itself
    page.wait(lambda: points() == [26, 30, 30, 30])  # four of them had no draft


def test_one_answer_is_now(page: Page, fake: FakeServer) -> None:
    fake.answered = 1
    page.wait(lambda: len(page.all("#charts .last")) == 4)
    assert set(page.attributes("#charts .last", "cx")) == {"294"}
    assert page.texts("#charts figcaption strong") == ["40 %", "1.5", "2", "0"]
    assert page.texts("#charts figure:last-child text") == ["0", "1", "2", "", "now"]


def test_the_profile_and_the_report(page: Page, fake: FakeServer) -> None:
    fake.answered = 4
    page.wait(lambda: "384" in page.texts("#profile dd"))
    learned = dict(zip(page.texts("#profile dt"), page.texts("#profile dd"), strict=True))
    assert learned["tokens seen"] == "384"
    assert learned["profile"] == "profiles/drafter/target-0123456789ab.safetensors"
    page.one("#report summary").click()
    page.wait(lambda: len(page.all("#tables table")) == 2)
    assert "The pair works together." in page.text("#tables")
    assert "target-a" in page.text("#tables")
    page.driver.execute_script("document.getElementById('panel').scrollTop = 1e6")
    page.shot("report")


# ------------------------------------------------------------ people and their machines


def test_keys_alone(page: Page, fake: FakeServer) -> None:
    fake.held = 1
    assert page.focused() == "message"
    page.keys("one", (Keys.SHIFT, Keys.ENTER), "two", Keys.ENTER)
    page.wait(lambda: page.text("article.answer > div") == "The moon shows")
    assert fake.chats[0]["messages"][0]["content"] == "one\ntwo"
    page.keys("draft", Keys.ENTER)  # one answer at a time: what is typed stays
    assert page.one("#message").get_attribute("value") == "draft"
    page.keys(Keys.ESCAPE)
    page.wait_for_answers(1)
    assert "stopped" in page.text("article.answer .figures")
    reached = []
    for _ in range(30):
        page.keys(Keys.TAB)
        reached.append(page.focused())
        style = "let s = getComputedStyle(document.activeElement); return s.outlineStyle + s.outlineWidth"
        if reached[-1]:
            assert page.driver.execute_script(style) == "solid2px", reached
    assert {"send", "sources", "panel", "model", "new", "log"} <= set(reached)
    while page.focused() != "new":
        page.keys(Keys.TAB)
    page.keys(Keys.ENTER)
    assert page.all("article") == []
    assert page.focused() == "message"


def short_of_end(page: Page) -> float:
    """Pixels of the conversation below its view."""
    script = "let log = document.getElementById('log'); return log.scrollHeight - log.scrollTop - log.clientHeight"
    return float(page.driver.execute_script(script))


def test_a_long_conversation_is_followed_to_its_end(page: Page, fake: FakeServer) -> None:
    fake.rounds = traced("A line of an answer.\n\n" * 12)
    for count in range(1, 5):
        page.send("Why?")
        page.wait_for_answers(count)
        page.wait(lambda: short_of_end(page) < 2)
    assert page.driver.execute_script("return document.getElementById('log').scrollTop") > 500


def test_a_reader_who_scrolls_up_is_left_there(page: Page, fake: FakeServer) -> None:
    fake.rounds = traced("A line of an answer.\n\n" * 40)
    page.send("Why?")
    page.wait_for_answers(1)
    page.wait(lambda: short_of_end(page) < 2)
    fake.held = len(fake.rounds) // 2
    page.send("And why?")
    page.wait(lambda: len(page.text("article:last-child > div")) > 200)
    page.wait(lambda: short_of_end(page) < 2)
    page.driver.execute_script("document.getElementById('log').scrollTop -= 300")
    page.wait(lambda: short_of_end(page) > 250)
    place = page.driver.execute_script("return document.getElementById('log').scrollTop")
    fake.held = None
    fake.go.set()
    page.wait_for_answers(2)
    assert page.driver.execute_script("return document.getElementById('log').scrollTop") == pytest.approx(place, abs=2)
    assert short_of_end(page) > 300
    page.driver.execute_script("document.getElementById('log').scrollTop = 1e6")  # back to the end: followed again
    page.wait(lambda: short_of_end(page) < 2)
    page.send("At last?")
    page.wait_for_answers(3)
    page.wait(lambda: short_of_end(page) < 2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_are_readable(page: Page, fake: FakeServer, scheme: str) -> None:
    fake.rounds = [*fake.rounds, [("\n\n", "target")], *traced(MARKDOWN)]
    fake.answered = 20
    page.scheme(scheme)
    page.send("Why does the moon have phases?")
    page.wait_for_answers(1)
    ground = page.colour("body", "background-color")
    assert (sum(ground) < 150) == (scheme == "dark")
    for selector in (".drafted", ".counted", ".target", ".figures", "#keys", "#requests", ".answer a", "dt"):
        assert page.contrast(selector) >= 4.5, selector
    assert page.contrast("svg text", "fill") >= 4.5
    assert page.contrast("svg .line", "stroke") >= 3
    page.shot(scheme)
    page.scheme("light")


def test_sources_are_told_by_more_than_colour_and_can_be_hidden(page: Page) -> None:
    page.send("Why?")
    page.wait_for_answers(1)

    def looks() -> list[tuple[str, str]]:
        found = [page.one(f"article.answer .{source}") for source in ("drafted", "counted", "target")]
        return [
            (e.value_of_css_property("text-decoration-line"), e.value_of_css_property("text-decoration-style"))
            for e in found
        ]

    assert looks() == [("underline", "solid"), ("underline", "dotted"), ("none", "solid")]
    assert page.texts("#legend li") == ["drafted and accepted", "from earlier text", "target’s own"]
    before = page.colour("article.answer .drafted")
    page.one("#sources").click()
    assert {line for line, _ in looks()} == {"none"}
    assert page.colour("article.answer .drafted") == page.colour("article.answer .target") != before


def test_a_phone(page: Page, fake: FakeServer) -> None:
    fake.rounds = [*fake.rounds, [("\n\n", "target")], *traced(MARKDOWN + "x" * 200)]
    page.resize(390, 844, phone=True)
    page.open()
    page.send("Why does the moon have phases, and how long does each of them last?")
    page.wait_for_answers(1)
    assert not page.one("#panel").is_displayed()
    assert page.overflow() <= 0
    page.shot("phone")
    page.one("#view").click()
    assert page.one("#panel").is_displayed()
    assert not page.one("#log").is_displayed()
    assert page.overflow() <= 0
    page.shot("phone-figures")


# ------------------------------------------------------------ what goes wrong


def test_the_key_is_asked_for(driver: Any, fake: FakeServer) -> None:
    fake.key = "right"
    page = Page(driver, fake.url)
    page.open(ready=False)
    page.wait(lambda: page.one("#ask").is_displayed())
    page.keys("wrong", Keys.ENTER)
    page.wait(lambda: page.one("#ask").is_displayed() and "refuses" in page.text("#ask-text"))
    page.shot("key")
    page.keys("right", Keys.ENTER)
    page.wait(lambda: page.one("#model").is_enabled())
    page.send("Why?")
    page.wait_for_answers(1)
    page.open()  # the tab remembers
    assert not page.one("#ask").is_displayed()
    page.driver.execute_script("sessionStorage.setItem('omnidraft-key', 'ключ')")  # which no header can hold
    page.open(ready=False)
    page.wait(lambda: page.one("#ask").is_displayed())
    page.keys("right", Keys.ENTER)
    page.wait(lambda: page.one("#model").is_enabled())
    assert all("401" in line for line in page.complaints())


def test_it_waits_for_a_server_that_is_loading(driver: Any, fake: FakeServer) -> None:
    fake.loads = 2
    page = Page(driver, fake.url)
    page.open(ready=False)
    page.wait(lambda: "being loaded" in page.text("#empty"))
    page.wait(lambda: page.one("#model").is_enabled())
    assert page.text("#empty").startswith("Ask the model")
    assert all("503" in line for line in page.complaints())


def test_without_a_key_the_page_says_so(driver: Any, fake: FakeServer) -> None:
    fake.key = "right"
    page = Page(driver, fake.url)
    page.open(ready=False)
    page.wait(lambda: page.one("#ask").is_displayed())
    page.keys(Keys.ESCAPE)
    page.wait(lambda: "asks for an API key" in page.text("#empty"))
    page.complaints()


def test_a_refusal_is_shown_and_can_be_tried_again(driver: Any, fake: FakeServer) -> None:
    page = Page(driver, fake.url)
    page.open()
    fake.refusals = [(429, "the queue is full", {"Retry_After": "3"})]
    page.send("Why?")
    page.wait(lambda: page.all(".error") != [])
    page.shot("error")
    assert page.text(".error").startswith("the queue is full (try again in 3 s)")
    page.one(".error button").click()
    page.wait_for_answers(1)
    assert page.text("article.answer > div") == text_of(fake)
    assert len(page.all("article")) == 2
    assert fake.chats[-1]["messages"] == [{"role": "user", "content": "Why?"}]
    assert all("429" in line for line in page.complaints())


@pytest.mark.parametrize(("error", "words"), [("", "connection was lost"), ("NaN in the logits", "NaN in the logits")])
def test_an_answer_that_breaks_off_says_so_and_is_kept(page: Page, fake: FakeServer, error: str, words: str) -> None:
    fake.breaks_off = error
    page.send("Why?")
    page.wait(lambda: page.all(".error") != [])
    assert words in page.text(".error")
    assert page.text("article.answer > div") == text_of(fake)
    assert page.texts("article.answer .figures span")[-1] == "broken off"
    fake.breaks_off = None
    page.send("Again")
    page.wait_for_answers(2)
    assert len(fake.chats[-1]["messages"]) == 3
