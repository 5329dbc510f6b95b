"""`python -m experiments.serve`: a server under load, with drafts and without.

Some clients ask one prompt after the other for some time, streamed and greedy; each answer is compared with that of the
same prompt alone.  Then one is answered while the long prompt of another is read: how long it waits at most for a
piece, and how long the server goes on with the prompt once its client has left.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any, ClassVar

import httpx
import psutil
from rich.console import Console

from experiments.results import Results, Row, page_of, table
from experiments.runner import EXACT, Experiment, Size, shown
from experiments.tasks import PROMPTS
from omnidraft import zoo
from omnidraft.cli import flags, prompts
from omnidraft.errors import OmniDraftError
from omnidraft.models.loading import load_tokenizer
from omnidraft.server.running.served_model import name_of

METHODS: dict[str, tuple[str, ...]] = {"drafts": (), "no drafts": ("--draft-length", "0")}  # with flags of the server
COLUMNS = (
    *("target", "method", "clients", "answers", "identical", "lost", "tokens_per_s", "of_one"),
    *("first_p50_s", "first_p95_s", "rss_settled_mb", "rss_end_mb"),
)
BESIDE = ("target", "method", "prompt", "read_s", "alone_gap_s", "gap_s", "left_s")
SETTLED_S = 60.0  # after which memory is to stay as it is
LONGEST_S = 600.0  # for a server to be ready, and for an answer
# of requests: httpx would read the system's certificates for each, on the processor that the server is measured on
PLAIN: dict[str, Any] = {"timeout": LONGEST_S, "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}
LONG_ANSWER = 640  # tokens at most of an answer that waits for others
LOOK_S = 0.01  # between looks at whether a request is over


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer as a client got it; None for one that did not come whole."""

    prompt: int
    text: str | None
    tokens: int = 0
    first_s: float = 0.0


class ServerProcess:
    """A server as a process; `command` makes its words from a port."""

    def __init__(self, command: Callable[[int], Sequence[str]]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = int(listening.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        self._said = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  for the message where it ends
        self._process = subprocess.Popen(command(port), stderr=self._said)  # noqa: S603  what the user names
        self._wait()

    def rss(self) -> float:
        """Resident memory of the server in MB."""
        return float(psutil.Process(self._process.pid).memory_info().rss) / 2**20

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait(LONGEST_S)
        self._said.close()

    def _wait(self) -> None:
        """Wait until the models are loaded; raises OmniDraftError where the server ends."""
        while True:
            with suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health", **PLAIN).status_code == httpx.codes.OK:
                    return
            if self._process.poll() is not None:
                self._said.seek(0)
                raise OmniDraftError(f"the server ended: {self._said.read().strip().rpartition(chr(10))[2]}")
            time.sleep(0.05)


class Server(ServerProcess):
    """`omnidraft serve` as a process, asked over HTTP."""

    def __init__(self, options: argparse.Namespace, target: str, *more: str) -> None:
        given = {"target": target, "drafter": options.drafter or "none", "dtype": options.dtype}
        given |= {"lanes": options.lanes, "max-queue": max(options.clients), "threads": options.threads}
        words = itertools.chain.from_iterable((f"--{name}", str(value)) for name, value in given.items())
        ours = [sys.executable, "-m", "omnidraft", "serve", *words, *more]
        super().__init__(lambda port: [*ours, "--port", str(port)])
        self._users = itertools.count()
        self._model, self._tokens = name_of(target), options.new_tokens
        self._path = f"{self.url}/v1/chat/completions"
        self.tokenizer: Any = load_tokenizer(zoo.resolve(target))

    def pieces(self, prompt: str, tokens: int) -> Iterator[tuple[str, int]]:
        """Pieces of the streamed answer to a prompt, with the last one how many tokens there are.

        Raises httpx.TransportError where it does not come whole.
        """
        with httpx.stream("POST", self._path, json=self._body(prompt, tokens), **PLAIN) as answer:
            if answer.status_code != httpx.codes.OK:
                raise OmniDraftError(f"the server refuses a prompt: {answer.read().decode()}")
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    return
                if not line.startswith("data: "):  # comments keep a stream alive while a long prompt is read
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                text = "".join(each["delta"].get("content", "") for each in chunk.get("choices", ()))
                yield text, (chunk.get("usage") or {}).get("completion_tokens", 0)
        raise httpx.ReadError("the stream ended early")

    def ask(self, place: int, prompt: str) -> Reply:
        """The answer to a prompt, streamed."""
        began, first, text, tokens = time.perf_counter(), 0.0, "", 0
        try:
            for piece, count in self.pieces(prompt, self._tokens):
                text, tokens = text + piece, tokens + count
                first = first or (time.perf_counter() - began if text else 0.0)
        except httpx.TransportError:
            return Reply(prompt=place, text=None)
        return Reply(prompt=place, text=text, tokens=tokens, first_s=first)

    def leave(self, prompt: str, seconds: float) -> None:
        """Ask, and leave without an answer after so long."""
        with suppress(httpx.ReadTimeout):
            httpx.post(self._path, json=self._body(prompt, 1), **PLAIN | {"timeout": seconds})

    def active(self) -> int:
        """Requests that have a lane."""
        return sum(each["active"] for each in httpx.get(f"{self.url}/stats", **PLAIN).json()["models"])

    def _body(self, prompt: str, tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model, "temperature": 0, "max_tokens": tokens, "stream": True}
        body |= {"messages": [{"role": "user", "content": prompt}], "stream_options": {"include_usage": True}}
        # each request is another user's: none is drafted from an earlier answer to the same prompt
        return body | {"user": str(next(self._users))}


def load_run(server: Server, texts: Sequence[str], alone: Sequence[str | None], clients: int, seconds: int) -> Row:
    """The figures of some clients that ask for some seconds; `alone` are the answers of each text alone."""
    replies: list[Reply] = []
    began = time.perf_counter()

    def client(number: int) -> None:
        for place in itertools.count(number):
            if time.perf_counter() - began >= seconds:
                return
            replies.append(server.ask(place % len(texts), texts[place % len(texts)]))

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(client, number) for number in range(clients)]
        time.sleep(min(SETTLED_S, seconds / 3))
        settled = server.rss()
        for each in running:
            each.result()
    took_s = time.perf_counter() - began
    whole = [reply for reply in replies if reply.text is not None]
    first = sorted(reply.first_s for reply in whole)
    return {
        "answers": len(replies),
        "identical": sum(reply.text == alone[reply.prompt] for reply in whole),
        "lost": len(replies) - len(whole),
        "tokens_per_s": sum(reply.tokens for reply in whole) / took_s,
        "first_p50_s": statistics.median(first) if first else None,
        "first_p95_s": first[min(len(first) - 1, int(0.95 * len(first)))] if first else None,
        "rss_settled_mb": settled,
        "rss_end_mb": server.rss(),
    }


def longest_gap(server: Server, prompt: str, over: Callable[[], bool]) -> float:
    """The longest wait for a piece of answers to a prompt, but for the first ones, until that is so; in seconds."""
    longest = 0.0
    while not over():
        last: float | None = None
        for piece, _ in server.pieces(prompt, LONG_ANSWER):
            if piece:
                now = time.perf_counter()
                longest, last = max(longest, now - (last or now)), now
            if over():
                break
    return longest


def beside_run(server: Server, texts: Sequence[str], count: int) -> Row:
    """The longest wait for a token of an answer beside a prompt of `count` tokens, and without it."""
    text = " ".join(itertools.islice(itertools.cycle(texts), count))
    prompt = server.tokenizer.decode(server.tokenizer(text, add_special_tokens=False)["input_ids"][:count])
    pieces = itertools.count()
    alone = longest_gap(server, texts[0], lambda: next(pieces) > LONG_ANSWER)
    with ThreadPoolExecutor(1) as pool:
        began = time.perf_counter()
        reading = pool.submit(server.ask, 0, prompt)
        gap = longest_gap(server, texts[0], reading.done)
        read_s = reading.result().first_s or time.perf_counter() - began
    server.leave(f"Read this. {prompt}", read_s / 4)  # another beginning, so that nothing of it is held
    began = time.perf_counter()
    while server.active():
        time.sleep(LOOK_S)
    taken = time.perf_counter() - began
    return {"prompt": count, "read_s": read_s, "alone_gap_s": alone, "gap_s": gap, "left_s": taken}


class Serve(Experiment):
    """Servers under load."""

    name = "serve"
    about = "A server under load: answers, times and memory, with drafts and without."
    examples = (
        "--target HuggingFaceTB/SmolLM2-135M-Instruct --quick",
        "--target MODEL --dtype int8 --clients 1 --clients 8 --seconds 20 --out results/serve",
    )
    sizes: ClassVar = {
        "clients": Size((1, 4, 8, 16), (1, 2), "clients at once, repeatable"),
        "seconds": Size(20, 4, "seconds of load, of each number of clients"),
        "prompts": Size(16, 2, "prompts, in turns"),
        "new_tokens": Size(64, 12, "maximum tokens of an answer"),
        "long": Size(4000, 100, "tokens of the prompt that is read beside an answer"),
    }

    def add_options(self, to: flags.CommandParser) -> None:
        flags.add(to, "--target", action="append", help="a chat model: a folder, a GGUF file or a hub id; repeatable")
        flags.add(to, "--drafter", "--dtype")
        to.add_argument("--lanes", type=flags.at_least(1), default=8, metavar="N", help="of the server (default: 8)")
        to.add_argument("--method", action="append", choices=METHODS, help="repeatable (default: all of them)")

    def measure(self, options: argparse.Namespace, results: Results, console: Console) -> None:
        texts = prompts.read(PROMPTS / "instructions.jsonl", None, options.prompts)
        for target, method in itertools.product(options.target, options.method or METHODS):
            place = f"{shown(target)}|{method}"
            left = [count for count in options.clients if f"{place}|{count}" not in results.of("rows")]
            long = place not in results.of("beside")
            if not left and not long:
                continue
            named = {"target": shown(target), "method": method, "dtype": options.dtype}
            with closing(Server(options, target, *METHODS[method])) as server:
                alone = [server.ask(number, text).text for number, text in enumerate(texts)] if left else []
                for count in left:
                    console.print(f"{place.replace('|', ', ')}: {count} clients for {options.seconds} s")
                    row = named | {"clients": count} | load_run(server, texts, alone, count, options.seconds)
                    results.add("rows", f"{place}|{count}", row)
                if long:
                    console.print(f"{place.replace('|', ', ')}: beside a prompt of {options.long} tokens")
                    results.add("beside", place, named | beside_run(server, texts, options.long))

    def page(self, results: Results) -> str:
        """A row for each target, method and number of clients, and one for what an answer waits for."""
        rows = list(results.of("rows").values())
        one = {(row["target"], row["method"]): row["tokens_per_s"] for row in rows if row["clients"] == 1}
        for row in rows:
            first = one.get((row["target"], row["method"]))
            row["of_one"] = row["tokens_per_s"] / first if first else None
        beside = table(results.of("beside").values(), BESIDE, "prompt", 3, nearest=BESIDE)
        return page_of("A server under load", results, table(rows, COLUMNS, "clients"), beside)

    def wrong(self, results: Results) -> bool:
        """Whether an answer was lost, or one in float32 or int8 depends on the load."""
        rows = results.of("rows").values()
        return any(row["lost"] or (row["dtype"] in EXACT and row["identical"] < row["answers"]) for row in rows)


main = Serve().main

if __name__ == "__main__":
    sys.exit(main())
