"""A coding agent's requests: what the prefix cache saves, and a run that is told where it saves nothing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

from experiments import agents
from experiments.agents import Traffic
from experiments.serve import ServerProcess
from omnidraft.cli import main as cli
from omnidraft.server import run
from support.compilers import needs_the_8_bit_step
from support.serving import healthy
from support.waiting import WAIT_S, until


def test_turns_begin_alike_but_for_the_line_that_changes() -> None:
    traffic = Traffic(2000, 50)
    bodies = [traffic.request(messages) for messages in traffic.turns("Why?", 3)]
    assert len({body["system"][0]["text"] for body in bodies}) == 3
    assert len({json.dumps([body["tools"], body["system"][1:]]) for body in bodies}) == 1
    assert [len(body["messages"]) for body in bodies] == [1, 3, 5]
    assert bodies[2]["messages"][:3] == bodies[1]["messages"]
    assert 0.7 * 8000 < len(json.dumps(bodies[0])) < 1.6 * 8000


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six processes would take most of the time, and those of other experiments are tested there."""
    begun = SimpleQueue[run.Running]()

    class Noted(run.Running):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            begun.put(self)

    def begin(server: Any, command: Callable[[int], Sequence[str]]) -> None:
        thread = Thread(target=cli.main, args=(command(0)[3:],))  # without `python -m omnidraft`
        thread.start()
        running = begun.get(timeout=WAIT_S)

        def close() -> None:
            running.end()
            thread.join(WAIT_S)

        server.url, server.close = running.address, close
        until(lambda: healthy(server.url))

    monkeypatch.setattr(run, "Running", Noted)
    monkeypatch.setattr(ServerProcess, "__init__", begin)


@pytest.mark.slow
@pytest.mark.usefixtures("in_threads")
def test_a_quick_run(target: Path, drafter: Path, tmp_path: Path) -> None:
    needs_the_8_bit_step()
    chat = shutil.copytree(target, tmp_path / "chat")
    (chat / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}", encoding="utf-8")
    words = ["--target", str(chat), "--drafter", str(drafter), "--dtype", "int8", "--threads", "1", "--quick"]
    assert agents.main([*words, "--turns", "3", "--out", str(tmp_path / "agents")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "agents.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = {(row["way"], row["turn"]): row for row in lines if row["kind"] == "rows"}
    disk, memory, none, _ = agents.WAYS
    for way in (disk, memory):
        assert rows[way, "turn 1"]["read"] == rows[way, "turn 1"]["prompt"]
        assert rows[way, "turn 3"]["read"] < rows[way, "turn 3"]["prompt"] / 2
    assert rows[disk, "after a restart"]["read"] < rows[memory, "after a restart"]["read"]
    assert rows[none, "a second session"]["read"] == rows[none, "a second session"]["prompt"]
    assert "| chat | none | turn 1 |" in (tmp_path / "agents.md").read_text(encoding="utf-8")


SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): ...
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with open("{record}", "a") as file:
            print(json.dumps([sys.argv[1:-1], body]), file=file)
        self.send_response(200)
        self.end_headers()
        usage = {{"input_tokens": 7, "cache_read_input_tokens": 93, "output_tokens": 0}}
        for event in (
            {{"type": "message_start", "message": {{"usage": usage}}}},
            {{"type": "content_block_delta", "delta": {{"type": "text_delta", "text": "x"}}}},
            {{"type": "message_delta", "usage": {{"output_tokens": 1}}}},
        ):
            self.wfile.write(f"data: {{json.dumps(event)}}\\n\\n".encode())

HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""


@pytest.mark.medium
def test_llama_cpps_server_is_asked_the_same(tmp_path: Path) -> None:
    program, record = tmp_path / "llama-server", tmp_path / "asked"
    program.write_text(SERVER.format(python=sys.executable, record=record), encoding="utf-8")
    program.chmod(0o755)
    words = ["--target", "model.gguf", "--threads", "1", "--quick", "--way", "llama.cpp's server"]
    assert agents.main([*words, "--llama-server", str(program), "--out", str(tmp_path / "agents")]) == 0
    asked = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    assert {tuple(given) for given, _ in asked} == {("--model", "model.gguf", "--threads", "1", "--port")}
    traffic = Traffic(100, 20)
    assert asked[0][1]["tools"] == traffic.request([])["tools"]
    assert [len(body["messages"]) for _, body in asked] == [1, 3, 1, 1, 1]
    lines = [json.loads(line) for line in (tmp_path / "agents.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = {row["turn"]: (row["prompt"], row["read"]) for row in lines if row["kind"] == "rows"}
    assert set(rows) == {"turn 1", "turn 2", "a second session", "a subagent", "after a restart"}
    assert set(rows.values()) == {(100, 7)}


def test_llama_cpps_server_needs_its_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert agents.main(["--target", "model.gguf", "--quick", "--way", "llama.cpp's server"]) != 0
    assert "give --llama-server FILE" in capsys.readouterr().err
