"""`python -m experiments.agents`: a coding agent's requests, turn by turn, and what of each prompt is read anew.

The requests have the shape of Claude Code's: tools and a system text, whose first line changes with each request, then
turns in which the model calls a tool and is given a file.  A second session begins with the same tools and system text,
a subagent with another system text, and at last the server is started anew.  Answers are those of the model; what the
agent is said to have answered is written here, so that all ways read the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import httpx
from rich.console import Console

import omnidraft
from experiments.results import Results, Row
from experiments.runner import Experiment, Size, shown
from experiments.serve import PLAIN, Server, ServerProcess
from omnidraft.cli import flags
from omnidraft.errors import InputError

DISK, MEMORY, NONE, LLAMA = "prefix cache, on disk too", "prefix cache", "none", "llama.cpp's server"
WAYS = (DISK, MEMORY, NONE, LLAMA)
TURNED_OFF = ("--set", "max_cache_mb=0")
LONGEST_S = 3600.0  # for an answer
FILES = sorted(Path(omnidraft.__file__).parent.rglob("*.py"))  # that the agent reads
TOOLS = ("Read", "Write", "Edit", "Bash", "Grep", "Glob", "Task", "WebFetch", "TodoWrite", "NotebookEdit")
COUNT = 4  # characters of a token, about


class Traffic:
    """The bodies of `/v1/messages` of an agent; `tokens` are those of tools and system text, about."""

    def __init__(self, tokens: int, file_tokens: int) -> None:
        self._file = COUNT * file_tokens
        text = "\n".join(path.read_text(encoding="utf-8") for path in FILES)
        share = COUNT * tokens // (len(TOOLS) + 4)
        self._tools = [
            {
                "name": name,
                "description": text[at * share : (at + 1) * share],
                "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
            }
            for at, name in enumerate(TOOLS)
        ]
        self._system = text[len(TOOLS) * share : (len(TOOLS) + 4) * share]
        self._number = 0

    def request(self, messages: Sequence[dict[str, Any]], system: str = "") -> dict[str, Any]:
        """A request, whose first line is another one each time."""
        self._number += 1
        line = f"x-anthropic-billing-header: cc_version=2.1.36; cch={self._number:05x};"
        blocks = [line, "You are a coding agent." + system, self._system]
        return {
            "model": "",
            "system": [{"type": "text", "text": block} for block in blocks],
            "tools": self._tools,
            "messages": list(messages),
        }

    def turns(self, question: str, count: int) -> Iterator[list[dict[str, Any]]]:
        """The messages of each turn of a session: a question, then calls that read a file each."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
        for turn in range(count):
            yield list(messages)
            path = FILES[turn % len(FILES)]
            call = {"type": "tool_use", "id": f"toolu_{turn}", "name": "Read", "input": {"path": path.name}}
            result = {"type": "tool_result", "tool_use_id": call["id"]}
            text = path.read_text(encoding="utf-8")[: self._file]
            messages += [
                {"role": "assistant", "content": [{"type": "text", "text": f"I read {path.name}."}, call]},
                {"role": "user", "content": [result | {"content": text}]},
            ]


class Agents(Experiment):
    """A coding agent's turns."""

    name = "agents"
    title = "A coding agent"
    about = "Time to the first text and tokens read anew, turn by turn of a coding agent."
    examples = ("--target zoo:target-b --quick", "--target MODEL.gguf --dtype int8 --threads 2 --out results/agents")
    columns = ("target", "way", "turn", "prompt", "read", "first_s", "total_s")
    first = "prompt"
    sizes: ClassVar = {
        "tokens": Size(14000, 100, "tokens of tools and system text, about"),
        "file_tokens": Size(700, 20, "tokens of a file that a turn adds, about"),
        "turns": Size(12, 2, "turns of the first session"),
        "turns_without": Size(3, 1, "of them where nothing is kept, as each takes as long as the first"),
        "new_tokens": Size(16, 4, "tokens of an answer, at most"),
        "clients": Size(1, 1, "requests at once"),
    }

    def add_options(self, to: flags.CommandParser) -> None:
        flags.add(to, "--target", "--drafter", "--dtype")
        to.add_argument("--lanes", type=flags.at_least(1), default=4, metavar="N", help="of the server (default: 4)")
        to.add_argument("--way", action="append", choices=WAYS, help="repeatable (default: all that there are)")
        to.add_argument("--llama-server", metavar="FILE", help="llama.cpp's server, to compare with")

    def measure(self, options: argparse.Namespace, results: Results, console: Console) -> None:
        options.clients = [options.clients]
        if LLAMA in (options.way or ()) and not options.llama_server:
            raise InputError(f"--way {LLAMA!r} takes its program: give --llama-server FILE")
        for way in options.way or (WAYS if options.llama_server else WAYS[:-1]):
            place = f"{shown(options.target)}|{way}"
            if any(key.startswith(f"{place}|") for key in results.of("rows")):
                continue
            with TemporaryDirectory() as folder:
                for name, row in self._replay(options, way, folder):
                    console.print(f"{place.replace('|', ', ')}, {name}: {row['read']} read, {row['first_s']:.2f} s")
                    results.add(
                        "rows", f"{place}|{name}", {"target": shown(options.target), "way": way, "turn": name} | row
                    )

    def _replay(self, options: argparse.Namespace, way: str, folder: str) -> Iterator[tuple[str, Row]]:
        """The rows of all requests, by their names."""
        traffic = Traffic(options.tokens, options.file_tokens)
        count = options.turns_without if way == NONE else options.turns
        with closing(_server(options, way, folder)) as server:
            for turn, messages in enumerate(traffic.turns("What does this package do?", count), 1):
                yield f"turn {turn}", _ask(server, traffic.request(messages), options.new_tokens)
            (messages,) = traffic.turns("Where is the cache?", 1)
            yield "a second session", _ask(server, traffic.request(messages), options.new_tokens)
            yield "a subagent", _ask(server, traffic.request(messages, " You search alone."), options.new_tokens)
        with closing(_server(options, way, folder)) as server:
            yield "after a restart", _ask(server, traffic.request(messages), options.new_tokens)

    def wrong(self, results: Results) -> bool:
        """Whether a turn read much more than what was new, where it need not."""
        rows = [row for row in results.of("rows").values() if row["way"] in (DISK, MEMORY) and row["turn"] != "turn 1"]
        return any(row["read"] > row["prompt"] // 2 for row in rows if row["turn"].startswith("turn"))


def _server(options: argparse.Namespace, way: str, folder: str) -> ServerProcess:
    """A new server, which keeps what it keeps on disk in the folder."""
    if way == LLAMA:  # all settings but threads are its own defaults
        words = [options.llama_server, "--model", options.target, "--threads", str(options.threads)]
        return ServerProcess(lambda port: [*words, "--port", str(port)])
    more = {DISK: ("--cache-dir", folder), NONE: TURNED_OFF}.get(way, ())
    return Server(options, options.target, *more)


def _ask(server: ServerProcess, body: dict[str, Any], tokens: int) -> Row:
    """The figures of a request, streamed."""
    body |= {"max_tokens": tokens, "temperature": 0, "stream": True}
    began, first, usage = time.perf_counter(), 0.0, dict[str, int]()
    with httpx.stream("POST", f"{server.url}/v1/messages", json=body, **PLAIN | {"timeout": LONGEST_S}) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                if event["type"] == "content_block_delta":
                    first = first or time.perf_counter() - began
                # llama.cpp has them in the message that begins
                usage |= event.get("message", {}).get("usage") or event.get("usage") or {}
    total, cached = time.perf_counter() - began, usage.get("cache_read_input_tokens", 0)
    prompt = usage["input_tokens"] + cached
    return {"prompt": prompt, "read": usage["input_tokens"], "first_s": first or total, "total_s": total}


main = Agents().main

if __name__ == "__main__":
    sys.exit(main())
