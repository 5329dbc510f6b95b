"""A coding agent edits a file through Anthropic's Messages: the loop of the official client, and Claude Code itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic

from support.scripted_target import serving_script
from support.serving import PATIENT, At, with_tools
from support.waiting import WAIT_S

WRONG, RIGHT = "def add(a, b):\n    return a - b\n", "def add(a, b):\n    return a + b\n"
DONE = "The bug is fixed."
CLAUDE = shutil.which("claude")
READ: dict[str, Any] = {
    "name": "Read",
    "input_schema": {"type": "object", "properties": {"file_path": {"type": "string"}}, "required": ["file_path"]},
}
EDITED = {name: {"type": "string"} for name in ("file_path", "old_string", "new_string")}
EDIT: dict[str, Any] = {
    "name": "Edit",
    "input_schema": {"type": "object", "properties": EDITED, "required": list(EDITED)},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "sums.py"
    path.parent.mkdir()
    path.write_text(WRONG, encoding="utf-8")
    return path


@pytest.fixture
def agent(file: Path, tmp_path: Path) -> Iterator[At]:
    """A target that reads a file, edits it and says that it is done, as the results of its calls come back."""

    def script(prompt: str) -> str:
        if '"name": "Edit"' not in prompt:  # what an agent asks beside the work: a title, say
            return "A title."
        calls: list[dict[str, Any]] = [
            {"name": "Read", "arguments": {"file_path": str(file)}},
            {"name": "Edit", "arguments": {"file_path": str(file), "old_string": "a - b", "new_string": "a + b"}},
        ]
        results = prompt.count("<|im_start|>tool")
        return f"<tool_call>{json.dumps(calls[results])}</tool_call>" if results < len(calls) else DONE

    with serving_script(with_tools(tmp_path / "chat"), script) as at:
        yield at


def run(name: str, given: dict[str, str]) -> str:
    """What a tool of the agent returns."""
    path = Path(given["file_path"])
    text = path.read_text(encoding="utf-8")
    if name == "Edit":
        path.write_text(text.replace(given["old_string"], given["new_string"]), encoding="utf-8")
        return "The file was changed."
    return text


@pytest.mark.medium
@pytest.mark.parametrize("streamed", [False, True])
def test_the_official_client_edits_a_file(agent: At, file: Path, streamed: bool) -> None:
    turns: list[Any] = [{"role": "user", "content": "Fix the bug."}]
    options: Any = {"base_url": agent.url, "api_key": "none", "max_retries": 0, "timeout": WAIT_S}
    said: list[Any] = []
    with httpx2.Client(**PATIENT) as http:
        client = Anthropic(http_client=http, **options)
        while not said or said[-1].stop_reason == "tool_use":
            asked: dict[str, Any] = {"model": "chat", "max_tokens": 200, "messages": turns, "tools": [READ, EDIT]}
            if streamed:
                with client.messages.stream(**asked) as stream:
                    said.append(stream.get_final_message())
            else:
                said.append(client.messages.create(**asked))
            turns.append({"role": "assistant", "content": [each.model_dump() for each in said[-1].content]})
            calls = [each for each in said[-1].content if each.type == "tool_use"]
            results = [(each.id, run(each.name, each.input)) for each in calls]
            content = [{"type": "tool_result", "tool_use_id": id_, "content": text} for id_, text in results]
            turns.append({"role": "user", "content": content})
    assert file.read_text(encoding="utf-8") == RIGHT
    assert [each.stop_reason for each in said] == ["tool_use", "tool_use", "end_turn"]
    assert said[-1].content[0].text == DONE


@pytest.mark.skipif(CLAUDE is None, reason="no Claude Code on the path: npm install -g @anthropic-ai/claude-code")
def test_claude_code_edits_a_file(agent: At, file: Path, tmp_path: Path) -> None:
    names = ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL")
    environment = {
        **os.environ,
        **dict.fromkeys(names, "chat"),
        "ANTHROPIC_BASE_URL": agent.url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
        "HOME": str(tmp_path),
    }
    command = [str(CLAUDE), "-p", "Fix the bug in sums.py", "--permission-mode", "acceptEdits"]
    done = subprocess.run(
        command, cwd=file.parent, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, DONE)
    assert file.read_text(encoding="utf-8") == RIGHT
