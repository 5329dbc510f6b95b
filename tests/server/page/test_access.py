"""Who uses the page by keys, with a screen reader, in the dark or on a phone."""

from __future__ import annotations

import re
from typing import Any

import pytest
from selenium.webdriver import Keys

from support.browser import Page
from support.fake_server import PAGE, FakeServer
from support.page_texts import MARKDOWN, traced

NAMED = {
    "button",
    "textbox",
    "combobox",
    "checkbox",
    "radio",
    "spinbutton",
    "link",
    "dialog",
    "navigation",
    "image",
    "log",
}
AT = """
const at = document.activeElement;
return at === document.body ? "" : at.id || at.getAttribute("aria-label") || at.textContent;
"""
COLORED = """
for (const name of arguments[0]) {
  const part = Object.assign(document.createElement("pre"), { className: name, textContent: name });
  document.getElementById("log").append(part);
}
"""


def unnamed(page: Page) -> list[Any]:
    """What a screen reader would have no name for."""
    tree = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    seen = [node for node in tree if not node["ignored"] and node["role"]["value"].lower() in NAMED]
    assert len(seen) > 5
    return [node["role"]["value"] for node in seen if not node.get("name", {}).get("value", "").strip()]


def test_the_order_of_focus(page: Page) -> None:
    page.send("Why?")
    page.wait_for_answers(1)
    page.driver.execute_script("document.activeElement.blur(); getSelection().removeAllRanges()")
    page.one("#lists").click()
    page.one("#lists").click()
    reached = [page.driver.execute_script(AT)]
    while reached[-1] != "sources":
        page.keys(Keys.TAB)
        reached.append(page.driver.execute_script(AT))
        assert len(reached) < 30
    assert reached == [
        "lists", "model", "new", "set", "view", "Why?", "Actions for Why?", "log", "Edit", "Copy", "Copy", "Regenerate",
        "message", "attach", "send", "sources",
    ]  # fmt: skip


def test_everything_has_a_name(page: Page, fake: FakeServer) -> None:
    fake.rounds, fake.finish = traced(MARKDOWN), "length"
    page.send("Why?")
    page.wait_for_answers(1)
    assert unnamed(page) == []
    page.one("#set").click()
    assert unnamed(page) == []
    page.keys(Keys.ESCAPE)
    page.one("#conversations .more").click()
    assert unnamed(page) == []


def test_escape_closes_before_it_stops(page: Page, fake: FakeServer) -> None:
    fake.held = 1
    page.send("Why?")
    page.wait(lambda: page.text("article.answer > div") == "The moon shows")
    for opening, opened in (("#set", "#settings"), ("#conversations .more", "#menu")):
        page.one(opening).click()
        assert page.one(opened).is_displayed()
        page.keys(Keys.ESCAPE)
        page.wait(lambda opened=opened: not page.one(opened).is_displayed())  # type: ignore[misc]
        assert page.one("#stop").is_displayed()
    page.keys(Keys.ESCAPE)
    page.wait_for_answers(1)
    assert page.texts(".figures span")[-1] == "stopped"
    fake.go.set()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_of_code_are_readable(page: Page, scheme: str) -> None:
    page.scheme(scheme)
    style = (PAGE / "chat.css").read_text(encoding="utf-8")
    names = sorted(set(re.findall(r"\.(hljs-\w+)", style)))
    assert len(names) > 20
    page.driver.execute_script(COLORED, names)
    for name in names:
        assert page.contrast(f".{name}") >= 4.5, name
    page.scheme("light")


def test_the_list_on_a_phone(page: Page) -> None:
    page.resize(390, 844, phone=True)
    page.open()
    for text in ("The first?", "The second, with a title that is longer than a phone is wide?"):
        page.one("#new").click()
        page.send(text)
        page.wait_for_answers(1)
    assert not page.one("#list").is_displayed()
    page.one("#lists").click()
    assert page.one("#list").is_displayed()
    assert page.overflow() <= 0
    assert page.driver.execute_script(AT).startswith("The second")
    page.shot("phone-list")
    page.keys(Keys.ESCAPE)
    assert not page.one("#list").is_displayed()
    assert page.focused() == "lists"
    page.keys(Keys.ENTER, Keys.TAB, Keys.TAB, Keys.ENTER)  # past the actions of the first, to the next
    assert not page.one("#list").is_displayed()
    assert page.text("article.own .text") == "The first?"
    page.one("#set").click()
    assert page.overflow() <= 0
    page.shot("phone-settings")
