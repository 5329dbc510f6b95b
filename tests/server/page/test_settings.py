"""Settings that are remembered, files that go into a message, and what is seen while a prompt is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver import Keys

from support.browser import Page
from support.fake_server import FakeServer

DROP = """
const [name, bytes] = arguments;
const dataTransfer = new DataTransfer();
dataTransfer.items.add(new File([new Uint8Array(bytes)], name));
for (const type of ["dragover", "drop"]) {
  document.getElementById("log").dispatchEvent(new DragEvent(type, { bubbles: true, cancelable: true, dataTransfer }));
}
"""


def test_settings_are_sent_and_remembered(page: Page, fake: FakeServer) -> None:
    page.one("#set").click()
    assert page.focused() == "system"
    page.keys("Be brief.", Keys.TAB, "0.5", Keys.TAB, "64", Keys.ENTER)
    assert not page.one("#settings").is_displayed()
    page.open()
    page.send("Why?")
    page.wait_for_answers(1)
    sent = fake.chats[0]
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert (sent["temperature"], sent["max_tokens"]) == (0.5, 64)
    page.one("#set").click()
    for name, value in (("system", "Be brief."), ("temperature", "0.5"), ("max-tokens", "64")):
        assert page.one(f"#{name}").get_attribute("value") == value
    page.shot("settings")
    page.one("#temperature").send_keys("e9")  # none that may be: the last one stays
    page.keys(Keys.ESCAPE)
    page.send("And?")
    page.wait_for_answers(2)
    assert fake.chats[1]["temperature"] == 0.5
    page.one("#set").click()
    page.one("#defaults").click()
    page.keys(Keys.ESCAPE)
    page.send("At last?")
    page.wait_for_answers(3)
    assert not {"temperature", "max_tokens"} & set(fake.chats[2])
    assert fake.chats[2]["messages"][0]["role"] == "user"


def test_dark_and_light_are_switched(page: Page) -> None:
    def ground() -> int:
        return sum(page.colour("body", "background-color"))

    page.scheme("dark")
    assert ground() < 150
    page.one("#set").click()
    page.one('[value="light"]').click()
    assert ground() > 600
    page.open()
    assert ground() > 600
    page.scheme("light")
    page.one("#set").click()
    page.one('[value="dark"]').click()
    assert ground() < 150
    page.one("#defaults").click()
    assert ground() > 600


def test_what_is_shown_beside_the_conversation_is_remembered(page: Page) -> None:
    assert page.one("#panel").is_displayed()
    assert page.one("#list").is_displayed()
    page.one("#view").click()
    page.one("#lists").click()
    page.one("#sources").click()
    page.open()
    assert not page.one("#panel").is_displayed()
    assert not page.one("#list").is_displayed()
    assert page.attributes("#lists", "aria-expanded") == page.attributes("#view", "aria-pressed") == ["false"]
    assert not page.one("#sources").is_selected()


def test_a_prompt_that_is_read_shows_how_long(page: Page, fake: FakeServer) -> None:
    fake.held = 0
    page.send("Why does the moon have phases?")
    page.wait(lambda: page.text(".figures").startswith("Reading a prompt of 6 tokens · "))
    assert fake.tokenized == ["Why does the moon have phases?"]
    seen = page.text(".figures")
    page.wait(lambda: page.text(".figures") != seen)
    fake.go.set()
    page.wait_for_answers(1)
    assert page.texts(".figures span")[0] == "7 tokens"


def test_a_long_prompt_shows_how_much_is_read_and_what_is_left(page: Page, fake: FakeServer) -> None:
    fake.read, fake.held = (250, 500), 2
    page.send("Why does the moon have phases?")
    page.wait(lambda: "about 2 s left" in page.text(".figures"))
    assert page.text(".figures").startswith("Reading a prompt of 1,000 tokens · ")
    bar = page.one(".figures progress")
    assert (bar.get_attribute("max"), bar.get_attribute("value")) == ("1000", "500")
    assert fake.chats[0]["return_progress"] is True
    fake.go.set()
    page.wait_for_answers(1)
    assert not page.all("progress")


def test_files_go_into_the_message(page: Page, fake: FakeServer, tmp_path: Path) -> None:
    chosen = tmp_path / "period.py"
    chosen.write_text('print("```")\n', encoding="utf-8")
    page.one("#chosen").send_keys(str(chosen))
    page.wait(lambda: len(page.all("#files li")) == 1)
    page.driver.execute_script(DROP, "notes", list("Größe\nzwei".encode()))
    page.wait(lambda: len(page.all("#files li")) == 2)
    page.driver.execute_script(DROP, "gone.txt", [65])
    page.wait(lambda: len(page.all("#files li")) == 3)
    page.one('[aria-label="Remove gone.txt"]').click()
    assert [text.splitlines()[0] for text in page.texts("#files li")] == ["period.py · 1 line", "notes · 2 lines"]
    page.send("What is it?")
    page.wait_for_answers(1)
    assert fake.chats[0]["messages"][0]["content"] == (
        'period.py:\n````py\nprint("```")\n````\n\nnotes:\n```\nGröße\nzwei\n```\n\nWhat is it?'
    )
    assert not page.one("#files").is_displayed()
    assert page.text("article.own .text") == "What is it?"
    assert page.texts(".file summary") == ["period.py · 1 line", "notes · 2 lines"]
    page.open()
    page.one(".file summary").click()
    page.wait(lambda: page.text(".file pre").strip() == 'print("```")')
    page.driver.execute_script(DROP, "alone.txt", [65])
    page.wait(lambda: len(page.all("#files li")) == 1)
    page.one("#message").send_keys(Keys.ENTER)
    page.wait_for_answers(2)
    assert fake.chats[1]["messages"][-1]["content"] == "alone.txt:\n```txt\nA\n```"


@pytest.mark.parametrize("data", [[137, 80, 78, 71], [65, 0, 65]])
def test_what_is_no_text_is_refused(page: Page, data: list[int]) -> None:
    page.driver.execute_script(DROP, "moon.png", data)
    page.wait(lambda: page.text("#notice") == "moon.png is not a text in UTF-8")
    assert page.all("#files li") == []
