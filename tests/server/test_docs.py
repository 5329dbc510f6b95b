"""The snippets of the client in the README and in the page about serving run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from omnidraft.api import OmniDraft
from support.serving import At

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["README.md", "docs/serve.md"])
def test_the_client_is_shown_as_it_works(
    server: At, model: OmniDraft, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    (snippet,) = [snippet for snippet in snippets if "OpenAI" in snippet]
    assert snippet.count("http://localhost:8080") == snippet.count("zoo:target-b") == 1
    here = snippet.replace("http://localhost:8080", server.url).replace("zoo:target-b", "chat")
    names: dict[str, object] = {}
    exec(compile(here, name, "exec"), names)  # noqa: S102 (our own page)
    answer = model.generate(names["messages"], max_new_tokens=64).text  # type: ignore[arg-type]
    assert capsys.readouterr().out == f"{answer}\n"
