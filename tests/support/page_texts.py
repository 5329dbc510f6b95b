"""Texts of answers for the tests of the page."""

from __future__ import annotations

import re

from support.fake_server import FakeServer, Token

MARKDOWN = """# Phases

The **moon** has *phases*, `code` and snake_case_names; 2 * 3 * 4.
See [NASA](https://science.nasa.gov/moon) or http://example.com/x.

3. first
   - inner
4. second

```python
if 1 < 2:
    print("**no bold**")
```
"""


def text_of(fake: FakeServer) -> str:
    return "".join(text for tokens in fake.rounds for text, _ in tokens)


def traced(text: str) -> list[list[Token]]:
    """A text in rounds of a word or two, of all sources."""
    words = re.findall(r"\s*\S+", text)
    rounds = [words[i : i + 3] for i in range(0, len(words), 3)]
    return [
        [*((word, ("drafted", "counted")[len(some[0]) % 3 == 0]) for word in some[:-1]), (some[-1], "target")]
        for some in rounds
    ]
