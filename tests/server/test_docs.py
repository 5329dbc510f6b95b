"""The snippets of the client in the README and in the page about serving run as they stand; its table is the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from omnidraft.api import OmniDraft
from support.project_files import tool
from support.serving import At

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["README.md", "docs/serve.md"])
def test_the_client_is_shown_as_it_works(
    server: At, model: OmniDraft, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    (snippet,) = [snippet for snippet in snippets if "OpenAI" in snippet]
    page = name.startswith("docs")
    named, tokens = (
        ("zoo:target-b", 64) if page else ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 256)
    )  # the server's most
    assert snippet.count("http://localhost:8080") == snippet.count(named) == 1
    here = snippet.replace("http://localhost:8080", server.url).replace(named, "chat")
    names: dict[str, object] = {}
    exec(compile(here, name, "exec"), names)  # noqa: S102 (our own page)
    answer = model.generate(names["messages"], max_new_tokens=tokens).text  # type: ignore[arg-type]
    assert capsys.readouterr().out == f"{answer}\n"


def test_the_table_of_parameters_is_the_servers() -> None:
    page = tool("write_parameter_docs")
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run python tools/write_parameter_docs.py"
    assert all(name in page.table() for name in ("`messages`", "`service_tier`", "`*.cache_control`"))
