"""A target with several chat templates: that for tools writes conversations with tools, the default all others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.gguf_models import model_of, write_model
from support.serving import TOOL_TEMPLATE, At, serving, user, with_tools

pytestmark = pytest.mark.medium

PLAIN = "{% for m in messages %}({{ m.role }}){{ m.content }}{% endfor %}(assistant)"
TOOLS = [{"type": "function", "function": {"name": "pens", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[At]:
    """A GGUF file and a folder with the same two templates."""
    root = tmp_path_factory.mktemp("named")
    named = {"tokenizer.chat_template": PLAIN, "tokenizer.chat_template.tool_use": TOOL_TEMPLATE}
    path, _ = write_model(root / "file.gguf", "qwen2", others=named, model=model_of("qwen2", num_hidden_layers=2))
    folder = with_tools(root / "folder")
    (folder / "chat_template.jinja").write_text(PLAIN, encoding="utf-8")
    more = Path(folder / "additional_chat_templates")
    more.mkdir()
    (more / "tool_use.jinja").write_text(TOOL_TEMPLATE, encoding="utf-8")
    with serving([path, folder], None, {"draft_length": 0}) as at:
        yield at


@pytest.mark.parametrize("model", ["file.gguf", "folder"])
def test_tools_go_through_the_template_that_is_for_them(server: At, model: str) -> None:
    def written(**more: Any) -> str:
        found = server.post("/apply-template", {"model": model, "messages": user("A"), **more})
        assert found.status_code == 200, found.text
        return str(found.json()["prompt"])

    assert written() == "(user)A(assistant)"
    told = written(tools=TOOLS)
    assert '"pens"' in told
    assert "(user)" not in told
    assert "You may call functions" not in told
    assert server.chat(model=model, messages=user("A"), tools=TOOLS, max_tokens=2).status_code == 200


def test_the_default_is_told(server: At) -> None:
    assert server.get("/props").json()["chat_template"] == PLAIN
    for model in ("file.gguf", "folder"):
        assert server.get(f"/tokenizer_info?model={model}").json()["chat_template"] == PLAIN
        shown = server.post("/api/show", {"model": model}).json()
        assert shown["template"] == PLAIN
        assert "tools" in shown["capabilities"]
