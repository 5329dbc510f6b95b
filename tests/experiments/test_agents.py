"""A coding agent's requests: what the prefix cache saves, and a run that is told where it saves nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from experiments import agents
from experiments.agents import Traffic
from support.compilers import needs_the_8_bit_step


def test_turns_begin_alike_but_for_the_line_that_changes() -> None:
    traffic = Traffic(2000, 50)
    bodies = [traffic.request(messages) for messages in traffic.turns("Why?", 3)]
    assert len({body["system"][0]["text"] for body in bodies}) == 3
    assert len({json.dumps([body["tools"], body["system"][1:]]) for body in bodies}) == 1
    assert [len(body["messages"]) for body in bodies] == [1, 3, 5]
    assert bodies[2]["messages"][:3] == bodies[1]["messages"]
    assert 0.7 * 8000 < len(json.dumps(bodies[0])) < 1.6 * 8000


@pytest.mark.slow
def test_a_quick_run(target: Path, drafter: Path, tmp_path: Path) -> None:
    needs_the_8_bit_step()
    chat = shutil.copytree(target, tmp_path / "chat")
    (chat / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}", encoding="utf-8")
    words = ["--target", str(chat), "--drafter", str(drafter), "--dtype", "int8", "--threads", "1", "--quick"]
    assert agents.main([*words, "--turns", "3", "--out", str(tmp_path / "agents")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "agents.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = {(row["way"], row["turn"]): row for row in lines if row["kind"] == "rows"}
    disk, memory, none = agents.WAYS
    for way in (disk, memory):
        assert rows[way, "turn 1"]["read"] == rows[way, "turn 1"]["prompt"]
        assert rows[way, "turn 3"]["read"] < rows[way, "turn 3"]["prompt"] / 2
    assert rows[disk, "after a restart"]["read"] < rows[memory, "after a restart"]["read"]
    assert rows[none, "a second session"]["read"] == rows[none, "a second session"]["prompt"]
    assert "| chat | none | turn 1 |" in (tmp_path / "agents.md").read_text(encoding="utf-8")
