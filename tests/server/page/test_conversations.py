"""Conversations that the page keeps, and what is done with their messages."""

from __future__ import annotations

import json
from pathlib import Path

from selenium.webdriver import Keys

from support.browser import Page
from support.fake_server import FakeServer
from support.page_texts import text_of, traced
from support.waiting import until

ANSWER = "article.answer > div"


def menu(page: Page, title: str, action: str) -> None:
    """Choose an action for the conversation of this title."""
    page.one(f'[aria-label="Actions for {title}"]').click()
    page.one(f'#menu [value="{action}"]').click()


def tool(page: Page, message: int, name: str) -> None:
    """Press a button of a message, counted from 1."""
    tools = page.all(f"article:nth-of-type({message}) .tools button")
    page.driver.execute_script(
        "arguments[0].click()", next(one for one in tools if one.get_attribute("textContent") == name)
    )


def said(fake: FakeServer, chat: int = -1) -> list[str]:
    """The texts of a request."""
    return [message["content"] for message in fake.chats[chat]["messages"]]


def test_conversations_are_kept_and_opened_again(page: Page, fake: FakeServer) -> None:
    assert page.one("#none").is_displayed()
    page.send("First?")
    page.wait_for_answers(1)
    assert page.texts("#conversations .name") == ["First?"]
    figures = page.texts(".figures span")
    page.open()
    assert page.text("article.own .text") == "First?"
    assert page.text(ANSWER) == text_of(fake)
    assert page.texts("article.answer .drafted") == ["The moon"]
    assert page.texts("article.answer .counted") == ["the same"]
    assert page.texts(".figures span") == figures
    assert page.texts("#curve figcaption strong") == ["2.33"]
    page.one("#new").click()
    assert page.driver.title == "OmniDraft"
    page.driver.execute_script("document.getElementById('model').value = 'target-b'")
    page.send("Second?")
    page.wait_for_answers(1)
    assert page.texts("#conversations .name") == ["Second?", "First?"]
    assert page.texts("#conversations [aria-current]") == ["Second?"]
    page.all("#conversations .name")[1].click()
    page.wait(lambda: page.text("article.own .text") == "First?")
    assert page.texts("#conversations [aria-current]") == ["First?"]
    assert page.one("#model").get_attribute("value") == "target-a"  # whom it was with
    assert page.driver.title == "First? · OmniDraft"
    assert page.focused() == "message"
    page.send("And now?")
    page.wait_for_answers(2)
    assert said(fake) == ["First?", text_of(fake), "And now?"]
    assert page.texts("#conversations .name") == ["First?", "Second?"]


def test_one_is_renamed_and_deleted_by_keys(page: Page) -> None:
    page.send("First?")
    page.wait_for_answers(1)
    page.driver.execute_script("document.querySelector('#conversations .name').focus()")
    page.keys(Keys.TAB, Keys.ENTER)
    assert page.text("#menu button") == "Rename"
    page.keys(Keys.ENTER, "no", Keys.ESCAPE)
    assert page.texts("#conversations .name") == ["First?"]
    page.keys(Keys.TAB, Keys.ENTER, Keys.ENTER, "The moon", Keys.ENTER)
    assert page.texts("#conversations .name") == ["The moon"]
    page.send("More")
    page.wait_for_answers(2)
    page.open()
    assert page.texts("#conversations .name") == ["The moon"]
    menu(page, "The moon", "delete")
    assert page.all("article") == page.all("#conversations li") == []
    assert page.text("#notice").startswith("Deleted “The moon”")
    page.one("#notice button").click()
    assert page.texts("#conversations .name") == ["The moon"]
    assert not page.one("#notice").is_displayed()
    menu(page, "The moon", "delete")
    page.open()
    assert page.all("article") == page.all("#conversations li") == []


def test_one_that_is_deleted_while_its_answer_comes_stays_deleted(page: Page, fake: FakeServer) -> None:
    fake.held = 1
    page.send("First?")
    page.wait(lambda: page.text(ANSWER) == "The moon shows")
    menu(page, "First?", "delete")
    assert fake.left.wait(10)
    fake.go.set()
    page.send("Second?")
    page.wait_for_answers(1)
    page.open()
    assert page.texts("#conversations .name") == ["Second?"]


def test_exports(page: Page, fake: FakeServer, downloads: Path) -> None:
    fake.thought = traced("Think of it.")
    page.send("The far side?")
    page.wait_for_answers(1)

    def exported(kind: str) -> str:
        path = downloads / f"the-far-side.{kind}"
        menu(page, "The far side?", kind)
        until(lambda: path.exists() and path.stat().st_size > 0)
        return path.read_text(encoding="utf-8")

    kept = json.loads(exported("json"))
    assert kept["title"] == "The far side?"
    question, answer = kept["messages"]
    assert question == {"role": "user", "content": "The far side?"}
    assert answer["content"] == text_of(fake)
    assert answer["reasoning_content"] == "Think of it."
    assert (answer["model"], answer["finish_reason"], answer["tokens_a_pass"]) == ("target-a", "stop", [3, 3, 3, 1])
    assert answer["figures"]["tokens"] == 10
    assert exported("md") == (
        "# The far side?\n\n## You\n\nThe far side?\n\n## target-a\n\n"
        f"<details><summary>Thought</summary>\n\nThink of it.\n\n</details>\n\n{text_of(fake)}\n"
    )


def test_an_answer_is_made_again(page: Page, fake: FakeServer) -> None:
    page.send("Why?")
    page.wait_for_answers(1)
    fake.rounds = traced("Another one.")
    tool(page, 2, "Regenerate")
    page.wait(lambda: page.text(ANSWER) == "Another one.")
    page.wait_for_answers(1)
    assert said(fake) == ["Why?"]
    fake.held = 0  # stopped before the first token: the answer of before is back
    tool(page, 2, "Regenerate")
    page.wait(lambda: page.text(ANSWER) == "")
    page.keys(Keys.ESCAPE)
    page.wait(lambda: page.text(ANSWER) == "Another one.")
    fake.go.set()
    page.open()
    assert page.text(ANSWER) == "Another one."
    page.send("And?")
    page.wait_for_answers(2)
    assert said(fake) == ["Why?", "Another one.", "And?"]


def test_an_earlier_message_is_changed(page: Page, fake: FakeServer) -> None:
    for count, text in enumerate(("One?", "Two?"), start=1):
        page.send(text)
        page.wait_for_answers(count)
    tool(page, 1, "Edit")
    page.keys(" No.", Keys.ESCAPE)
    assert page.texts("article.own .text") == ["One?", "Two?"]
    assert page.driver.execute_script("return document.activeElement.textContent") == "Edit"
    page.keys(Keys.ENTER, " Or three", (Keys.SHIFT, Keys.ENTER), "or four?", Keys.ENTER)
    page.wait_for_answers(1)
    assert page.texts("article.own .text") == ["One? Or three\nor four?"]
    assert said(fake) == ["One? Or three\nor four?"]
    page.open()
    assert page.texts("article.own .text") == ["One? Or three\nor four?"]


def test_messages_that_were_dropped_are_had_back(page: Page, fake: FakeServer) -> None:
    for count, text in enumerate(("One?", "Two?"), start=1):
        page.send(text)
        page.wait_for_answers(count)
    fake.held = 0
    tool(page, 2, "Regenerate")
    page.wait(lambda: page.text("#notice").startswith("3 messages were dropped."))
    assert page.texts("article.own .text") == ["One?"]
    page.one("#notice button").click()
    assert fake.left.wait(10)
    fake.go.set()
    page.wait_for_answers(2)
    page.send("Three?")
    page.wait_for_answers(3)
    assert said(fake) == ["One?", text_of(fake), "Two?", text_of(fake), "Three?"]
    page.open()
    assert page.texts("article.own .text") == ["One?", "Two?", "Three?"]


def test_a_cut_answer_goes_on(page: Page, fake: FakeServer) -> None:
    fake.finish = "length"
    page.send("Why?")
    page.wait_for_answers(1)
    cut = text_of(fake)
    assert page.texts(".figures span")[-1] == "cut off at the token limit"
    fake.rounds, fake.finish = traced(" And so on."), "stop"
    tool(page, 2, "Continue")
    page.wait(lambda: page.text(ANSWER) == f"{cut} And so on.")
    page.wait_for_answers(1)
    assert fake.chats[1]["continue_final_message"] is True
    assert fake.chats[1]["messages"][-1] == {"role": "assistant", "content": cut}
    assert page.texts(".figures span")[-1] == "of the last part; 10 tokens in all"
    assert [one.is_displayed() for one in page.all("article.answer .tools button")] == [True, True, False]
    page.send("More?")
    page.wait_for_answers(2)
    assert said(fake) == ["Why?", f"{cut} And so on.", "More?"]
    assert "continue_final_message" not in fake.chats[-1]


def test_an_answer_that_cannot_go_on_is_kept(page: Page, fake: FakeServer) -> None:
    fake.finish = "length"
    page.send("Why?")
    page.wait_for_answers(1)
    fake.refusals = [(400, "leave it out", {})]
    tool(page, 2, "Continue")
    page.wait(lambda: page.text(".error") == "leave it out")
    page.wait_for_answers(1)
    assert page.text(ANSWER) == text_of(fake)
    assert page.texts(".figures span")[-1] == "cut off at the token limit"
    assert [one.is_displayed() for one in page.all("article.answer .tools button")] == [True] * 3
    assert all("400" in line for line in page.complaints())


def test_what_is_copied(page: Page, fake: FakeServer) -> None:
    fake.rounds = traced("<think>Hm.</think>\n\nIt has **phases**.")
    page.send("Why *so*?")
    page.wait_for_answers(1)
    page.grant_clipboard()
    tool(page, 2, "Copy")
    page.wait(lambda: page.clipboard() == "It has **phases**.")
    tool(page, 1, "Copy")
    page.wait(lambda: page.clipboard() == "Why *so*?")


def test_a_message_without_an_answer_is_asked_again(page: Page, fake: FakeServer) -> None:
    fake.held = 0
    page.send("Why?")
    page.wait(lambda: fake.chats != [])
    page.open()  # before a word of it was there
    assert page.text(".error").startswith("This message has no answer.")
    fake.go.set()
    page.one(".error button").click()
    page.wait_for_answers(1)
    assert page.text(ANSWER) == text_of(fake)
    assert said(fake) == ["Why?"]


def test_an_answer_that_is_left_is_kept_as_far_as_it_came(page: Page, fake: FakeServer) -> None:
    fake.held = 1
    page.send("Why?")
    page.wait(lambda: page.text(ANSWER) == "The moon shows")
    page.one("#new").click()
    page.one("#conversations .name").click()
    page.wait_for_answers(1)
    assert page.text(ANSWER) == "The moon shows"
    assert page.texts(".figures span") == ["3 tokens", "stopped"]


def test_a_full_storage_is_said(page: Page) -> None:
    page.driver.execute_script(
        "for (let n = 2 ** 22; n; n >>= 1) try { localStorage['x' + n] = 'x'.repeat(n) } catch {}"
    )
    page.send("Why?")
    page.wait_for_answers(1)
    page.wait(lambda: "no room" in page.text("#notice"))


def test_two_tabs_have_one_list(page: Page) -> None:
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.open()
    page.send("In the other tab?")
    page.wait_for_answers(1)
    page.driver.close()
    page.driver.switch_to.window(first)
    page.wait(lambda: page.texts("#conversations .name") == ["In the other tab?"])
    assert page.all("article") == []


def test_the_curve_runs_along_the_conversation(page: Page, fake: FakeServer) -> None:
    assert page.text("#curve figcaption strong") == "–"
    for count in (1, 2, 3):
        page.send("Why?")
        page.wait_for_answers(count)
    assert len(page.attributes("#curve .line", "points")[0].split()) == 9
    assert len(page.all("#curve .mark")) == 2  # where the second and the third begin
    assert page.attributes("#curve svg", "aria-label") == ["Tokens a pass, on average: 9 passes, the last 2.25"]
    fake.rounds = traced("word " * 900)
    page.send("At length?")
    page.wait_for_answers(4)
    assert len(page.attributes("#curve .line", "points")[0].split()) <= 150
    assert "309 passes" in page.attributes("#curve svg", "aria-label")[0]
    page.one("#new").click()
    page.wait(lambda: page.text("#curve figcaption strong") == "–")
