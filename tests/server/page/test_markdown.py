"""Markdown, formulas, code and thoughts of answers on the page, with the sources of their tokens."""

from __future__ import annotations

import re

import pytest

from support.browser import WAIT_S, Page
from support.fake_server import FakeServer
from support.page_texts import MARKDOWN, traced

INJECTION = """<script>window.pwned = 1</script> <img src=x onerror="window.pwned = 2">
[a](javascript:window.pwned=3) [b](https://ok.example/"onclick=window.pwned=4) <b>bold?</b> &lt;i&gt;

```html"><img src=x onerror=window.pwned=5>
<script>window.pwned = 6</script>
```
"""


def test_markdown(page: Page, fake: FakeServer) -> None:
    fake.rounds = traced(MARKDOWN)
    page.send("Why?")
    page.wait_for_answers(1)
    assert page.text("h3") == "Phases"
    assert page.texts("article.answer strong") == ["moon"]
    assert page.texts("article.answer em") == ["phases"]
    assert page.texts("article.answer :not(pre) > code") == ["code"]
    assert "snake_case_names; 2 * 3 * 4.\nSee NASA" in page.text("article.answer > div")
    assert page.one("article.answer ol").get_attribute("start") == "3"
    assert page.texts("article.answer ol > li > ul > li") == ["inner"]
    assert page.one("pre > code").get_attribute("textContent") == 'if 1 < 2:\n    print("**no bold**")'
    links = {a.get_attribute("href"): a.get_attribute("rel") for a in page.all("article.answer a")}
    assert links.keys() == {"https://science.nasa.gov/moon", "http://example.com/x"}
    assert all("noopener" in (rel or "") for rel in links.values())
    page.grant_clipboard()
    page.one(".code button").click()
    page.wait(lambda: page.text(".code button") == "Copied")
    assert page.clipboard() == 'if 1 < 2:\n    print("**no bold**")'


RICH = r"""Prices of $5 or $10, about ~5 to ~10; the area is $\pi r^2$, and \(a_1 * b_1\).

$$
\begin{aligned}
x &= \frac{1}{2} \\
  &= y
\end{aligned}
$$

| Phase | Days |
|:------|-----:|
| **New** moon<br>again | 0.0 |
| Full \| round | 14.8 |

> Quoted
> twice

- [x] done
- [ ] open

1. A step with code:

   ```python
   def f(x):
       return "one"  # two
   ```

<div>
in *HTML*
</div>

![a picture](https://pictures.example/x.png) and ~~struck~~ and $\frac{$
"""


def test_tables_formulas_and_colors(page: Page, fake: FakeServer) -> None:
    fake.rounds = traced(RICH)
    page.send("Why?")
    page.wait_for_answers(1)
    page.wait(lambda: len(page.all("article.answer math")) == 3)
    assert page.text("article.answer p").startswith("Prices of $5 or $10, about ~5 to ~10; the area is")
    assert page.texts("article.answer .maths:not(.display) mi")[:2] == ["π", "r"]
    assert page.all(".maths.display mtable mfrac") != []
    assert page.all("annotation, article.answer [style]") == []
    assert "\\" not in "".join(str(math.get_attribute("textContent")) for math in page.all("math"))
    assert page.attributes(".maths mtd", "class") == ["to-right", "to-left"] * 2
    assert page.texts("article.answer th") == ["Phase", "Days"]
    assert page.texts("article.answer td") == ["New moon\nagain", "0.0", "Full | round", "14.8"]
    assert page.attributes("article.answer td", "align") == ["left", "right"] * 2
    assert page.texts("article.answer td strong") == ["New"]
    assert page.text("article.answer blockquote") == "Quoted\ntwice"
    assert [text.split() for text in page.texts("article.answer li.task")] == [["☑", "done"], ["☐", "open"]]
    assert page.one("ol pre code").get_attribute("textContent") == 'def f(x):\n    return "one"  # two'
    assert page.texts("pre .hljs-keyword") == ["def", "return"]
    assert page.texts("pre .hljs-string") == ['"one"']
    assert len({page.colour(f"pre {part}") for part in ("code", ".hljs-keyword", ".hljs-string", ".hljs-comment")}) == 4
    assert page.texts("del") == ["struck"]
    assert page.texts("article.answer > div > p > em") == ["HTML"]
    assert "<div>\nin HTML\n</div>" in page.text("article.answer > div")
    assert page.all("article.answer img") == []
    links = [a.get_attribute("href") for a in page.all("article.answer a")]
    assert links == ["https://pictures.example/x.png"]
    assert page.text("article.answer > div > p:last-child").endswith(r"and $\frac{$")


KINDS = """
const [text, done] = arguments;
import(new URL("page/markdown.js", location)).then(async ({ show }) => {
  const element = document.createElement("div");
  const kinds = [...text].map((c) => ({ d: "d", D: "d", c: "c", C: "c" })[c] ?? "t").join("");
  show(element, text, kinds);
  const of = (name) => [...element.querySelectorAll(name)].map((e) => e.textContent).join("");
  done([of(".drafted"), of(".counted"), element.textContent.replace(/Copy|code/g, "")]);
}).catch((error) => done(String(error)));
"""
PLACES = [
    "d c *d* **c d** `d` ~~c~~",
    "- d\n- c\n  - d *c*\n    d\n\n      c",
    "> d\n> c **d**\n>\n> > c\n> > d",
    "| d | c |\n|---|---|\n| c | **d** |",
    "1. d\n\n   ```\n   d c\n     d\n   ```\n2. c",
    "[d](https://cd.example/dc) c https://d.example d ![c](https://d.example/c)",
    "d\r\nc\r\n\r\n- d *c*\r\n- d\r\n\r\nc",
    "# d *c*\n\nc\n===\n\nd  \nc\\\nd \\* c &lt; <d> c",
    '```json\n{\'d\': "c"}\n  ["d", 1, "c"]\n```',
]


@pytest.mark.parametrize("text", PLACES)
def test_every_character_keeps_its_source(page: Page, text: str) -> None:
    """Here the source of a character is the letter that it is."""
    drafted, counted, shown = page.driver.execute_async_script(KINDS, text)
    assert set(drafted) == {"d"}
    assert set(counted) == {"c"}
    assert shown.count("d") == len(drafted)
    assert shown.count("c") == len(counted)


@pytest.mark.parametrize("apart", [True, False])
def test_a_thought_is_folded(page: Page, fake: FakeServer, apart: bool) -> None:
    thought, answer = "Is it so? No: **never**.", "It is the sun."
    fake.thought = traced(thought) if apart else ()
    fake.rounds = traced(answer if apart else f"<think>\n{thought}\n</think>\n\n{answer}")
    fake.held = 2
    page.send("Why?")
    page.wait(lambda: page.text("summary").startswith("Thinking … "))
    assert page.text("article.answer > div") == ""
    assert not page.one(".thought > div").is_displayed()
    fake.go.set()
    page.wait_for_answers(1)
    assert page.text("article.answer > div") == answer
    assert page.text(".thought summary") == "Thought in 5 words"
    page.one(".thought summary").click()
    page.wait(lambda: page.text(".thought > div") == "Is it so? No: never.")
    assert page.texts(".thought strong") == ["never"]
    assert page.all(".thought .drafted, .thought .counted") != []
    page.send("And?")
    page.wait_for_answers(2)
    said = fake.chats[1]["messages"][1]
    assert said["content"].endswith(answer)
    assert said.get("reasoning_content") == (thought if apart else None)


def test_an_answer_is_shown_as_text_whatever_it_holds(page: Page, fake: FakeServer) -> None:
    fake.rounds = [[(piece, "drafted")] for piece in re.findall(r".{1,7}", INJECTION, re.DOTALL)]
    page.send("<img src=x onerror='window.pwned = 0'>")
    page.wait_for_answers(1)
    shown = page.text("article.answer > div")
    for line in (
        "<script>window.pwned = 1</script>",
        '<img src=x onerror="window.pwned = 2">',
        "<b>bold?</b> &lt;i&gt;",
    ):
        assert line in shown
    assert page.text("article.own .text") == "<img src=x onerror='window.pwned = 0'>"
    assert page.all("#log script, #log img, #log b, #log [onclick], #log [onerror]") == []
    assert [a.get_attribute("href") for a in page.all("#log a")] == ["https://ok.example/%22onclick=window.pwned=4"]
    assert page.driver.execute_script("return window.pwned") is None


SHOW = """
const [text, done] = arguments;
import(new URL("page/markdown.js", location)).then(({ show }) => {
  const element = document.createElement("div");
  show(element, text, "d".repeat(text.length));
  const tags = new Set([...element.querySelectorAll("*")].map((e) => e.localName));
  done([element.textContent, [...tags]]);
}).catch((error) => done(String(error)));
"""
LONG = [
    "x" + " " * 80_000 + "x",
    *("- " * 9000 + "x", "**a " * 5000, "*a _b" * 4000, "`" * 20000, "a`" * 9000, "[" * 20000, "[a](" * 5000),
    *("https://" * 2500, "1. x\n" * 4000, "   - x\n" * 3000, "```\n" * 4000, "__" * 9000, "<b>" * 5000, "#\n" * 5000),
]
TAGS = {"p", "h3", "ul", "ol", "li", "div", "pre", "code", "button", "span", "strong", "em", "a", "hr"}


@pytest.mark.parametrize("text", LONG)
def test_every_answer_is_shown_in_the_end(page: Page, text: str) -> None:
    """Also where a pattern could be matched in very many ways."""
    page.driver.set_script_timeout(WAIT_S)
    shown, tags = page.driver.execute_async_script(SHOW, text)
    assert set(tags) <= TAGS
    words = re.findall(r"[a-z]", text)
    assert len(re.findall(r"[a-z]", shown)) >= len(words)
