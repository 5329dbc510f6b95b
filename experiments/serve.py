"""`python -m experiments.serve`: a server under load, with drafts and without, beside `generate` of transformers.

Clients ask one prompt after the other for some time, streamed and greedy; each answer is compared with that of the same
prompt alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import torch
from rich.console import Console

from experiments.command import parser, run
from experiments.real import shown
from experiments.results import Results, Row, page_of
from experiments.tasks import PROMPTS
from omnidraft import zoo
from omnidraft.api import OmniDraft, load
from omnidraft.bench import prompts
from omnidraft.bench.environment import command
from omnidraft.bench.output import writing
from omnidraft.cli import flags
from omnidraft.errors import OmniDraftError
from omnidraft.models.loading import choose_device, choose_dtype, load_skeleton, load_tokenizer
from omnidraft.prompting import has_template
from omnidraft.server.served import name_of

LONGEST_S = 600.0  # for a server to be ready, and for an answer
SETTLED_S = 60.0  # after which memory is to stay as it is
METHODS = ("drafts", "no drafts", "generate")
COLUMNS = (
    *("target", "method", "clients", "answers", "identical", "lost", "tokens_per_s"),
    *("first_p50_s", "first_p95_s", "rss_settled_mb", "rss_end_mb"),
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Clients at once, seconds of load, prompts, and tokens of an answer."""

    clients: int
    seconds: int
    prompts: int
    new_tokens: int


FULL = Sizes(clients=16, seconds=180, prompts=16, new_tokens=64)
QUICK = Sizes(clients=2, seconds=4, prompts=2, new_tokens=12)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer as a client got it; None for one that did not come whole."""

    prompt: int
    text: str | None
    tokens: int = 0
    first_s: float = 0.0


class ServerWay:
    """`omnidraft serve` as a process, asked over HTTP."""

    def __init__(self, options: argparse.Namespace, target: str, sizes: Sizes, *more: str) -> None:
        words = [
            "--target",
            target,
            "--drafter",
            str(options.drafter or "none"),
            "--port",
            str(port := _free_port()),
            "--dtype",
            options.dtype,
        ]
        words += ["--lanes", str(options.lanes), "--max-queue", str(sizes.clients), *more]
        if options.threads is not None:
            words += ["--threads", str(options.threads)]
        self._process = subprocess.Popen(  # noqa: S603  our own command
            [sys.executable, "-m", "omnidraft", "serve", *words], stderr=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self._users = itertools.count()
        self._said: list[str] = []  # for the message where it ends
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()
        self._url, self._model, self._tokens = f"http://127.0.0.1:{port}", name_of(target), sizes.new_tokens
        self._wait()
        self._chats = has_template(load_tokenizer(zoo.resolve(target)))  # a target without a template takes text alone

    def ask(self, place: int, prompt: str) -> Reply:
        """The answer to a prompt, streamed."""
        body = {"model": self._model, "temperature": 0, "max_tokens": self._tokens, "stream": True}
        # each request is another user's: none is drafted from an earlier answer to the same prompt
        body |= {"user": str(next(self._users))}
        body |= {"messages": [{"role": "user", "content": prompt}]} if self._chats else {"prompt": prompt}
        body |= {"stream_options": {"include_usage": True}}
        began, first, text, tokens = time.perf_counter(), 0.0, "", 0
        try:
            where = f"{self._url}/v1/{'chat/' if self._chats else ''}completions"
            with httpx.stream("POST", where, json=body, timeout=LONGEST_S) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise OmniDraftError(f"the server refuses a prompt: {answer.read().decode()}")
                for line in answer.iter_lines():
                    if line == "data: [DONE]":
                        return Reply(prompt=place, text=text, tokens=tokens, first_s=first)
                    chunk = json.loads(line.removeprefix("data: ") or "{}")
                    for choice in chunk.get("choices", ()):
                        text += choice["delta"].get("content", "") if self._chats else choice["text"]
                        first = first or (time.perf_counter() - began if text else 0.0)
                    tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
        except httpx.TransportError:
            pass
        return Reply(prompt=place, text=None)

    def rss(self) -> float:
        """Resident memory of the server in MB."""
        return float(psutil.Process(self._process.pid).memory_info().rss) / 2**20

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait(LONGEST_S)
        self._listener.join()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _listen(self) -> None:
        self._said.extend(self._process.stderr or ())

    def _wait(self) -> None:
        """Wait until the models are loaded; raises OmniDraftError where the server ends."""
        while True:
            with suppress(httpx.TransportError):
                if httpx.get(f"{self._url}/health", timeout=LONGEST_S).status_code == httpx.codes.OK:
                    return
            if self._process.poll() is not None:
                self._listener.join()
                raise OmniDraftError(f"the server ended: {' '.join(self._said[-1:]).strip()}")
            time.sleep(0.05)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class GenerateWay:
    """`generate` of transformers, which answers one prompt after the other."""

    def __init__(self, model: OmniDraft, sizes: Sizes) -> None:
        self._model, self._tokens = model, sizes.new_tokens
        self._lock = threading.Lock()

    def ask(self, place: int, prompt: str) -> Reply:
        """The answer to a prompt; its time begins with the wait for those before."""
        began = time.perf_counter()
        seen: list[float] = []

        class Noted:
            def put(self, _: object) -> None:
                seen.append(time.perf_counter() - began)

            def end(self) -> None:
                """Nothing is left."""

        lm: Any = self._model.target.lm
        with self._lock, torch.inference_mode():
            ids = torch.tensor([self._model.encode_message(prompt)], device=lm.device)
            limits = {"max_new_tokens": self._tokens, "do_sample": False, "eos_token_id": sorted(lm.eos) or None}
            found = lm.model.generate(ids, attention_mask=torch.ones_like(ids), streamer=Noted(), **limits)
        new = found[0, ids.shape[1] :].tolist()
        detokenizer = self._model.text_after(ids[0].tolist())
        text = detokenizer.feed(new) + detokenizer.end()
        return Reply(prompt=place, text=text, tokens=len(new), first_s=seen[1])  # the prompt comes first

    def rss(self) -> float:
        """Resident memory of this process in MB."""
        return float(psutil.Process().memory_info().rss) / 2**20

    def close(self) -> None:
        """Nothing is to be ended."""


def runnable(target: str, dtype: str) -> str:
    """The dtype asked for, or in place of 8 bits the one that transformers computes fastest in."""
    if dtype not in ("auto", "int8"):
        return dtype
    parameters = load_skeleton(zoo.resolve(target)).num_parameters()
    return choose_dtype(choose_device("auto"), None, parameters)[0]


@contextmanager
def way_of(method: str, options: argparse.Namespace, target: str, sizes: Sizes) -> Iterator[ServerWay | GenerateWay]:
    """A way to answer prompts, for as long as it is used."""
    if method == "generate":
        way: ServerWay | GenerateWay = GenerateWay(load(target, None, dtype=runnable(target, options.dtype)), sizes)
    else:
        way = ServerWay(options, target, sizes, *(("--draft-length", "0") if method == "no drafts" else ()))
    try:
        yield way
    finally:
        way.close()


def load_run(way: ServerWay | GenerateWay, texts: Sequence[str], sizes: Sizes) -> Row:
    """The figures of some clients that ask for some time."""
    alone = [way.ask(place, text).text for place, text in enumerate(texts)]
    replies: list[Reply] = []
    began = time.perf_counter()

    def client(number: int) -> None:
        for place in itertools.count(number):
            if time.perf_counter() - began >= sizes.seconds:
                return
            replies.append(way.ask(place % len(texts), texts[place % len(texts)]))

    with ThreadPoolExecutor(sizes.clients) as pool:
        running = [pool.submit(client, number) for number in range(sizes.clients)]
        time.sleep(min(SETTLED_S, sizes.seconds / 3))
        settled = way.rss()
        for each in running:
            each.result()
    seconds = time.perf_counter() - began
    whole = [reply for reply in replies if reply.text is not None]
    first = sorted(reply.first_s for reply in whole)
    return {
        "answers": len(replies),
        "identical": sum(reply.text == alone[reply.prompt] for reply in whole),
        "lost": len(replies) - len(whole),
        "tokens_per_s": sum(reply.tokens for reply in whole) / seconds,
        "first_p50_s": statistics.median(first) if first else None,
        "first_p95_s": first[min(len(first) - 1, int(0.95 * len(first)))] if first else None,
        "rss_settled_mb": settled,
        "rss_end_mb": way.rss(),
    }


def measure(options: argparse.Namespace, console: Console) -> int:
    """Measure what the file lacks; 1 where an answer was lost, or one in float32 or int8 depends on the load."""
    given = {name: value for name in asdict(FULL) if (value := getattr(options, name)) is not None}
    sizes = replace(QUICK if options.quick else FULL, **given)
    texts = prompts.read(PROMPTS / "instructions.jsonl", None, sizes.prompts)
    results = Results(options.out and options.out.with_name(options.out.name + ".jsonl"), "serve")
    results.begin(
        command(options.words), asdict(sizes) | {"drafter": shown(str(options.drafter)), "dtype": options.dtype}
    )
    for target, method in itertools.product(options.target, METHODS):
        key = f"{shown(target)}|{method}|{sizes.clients}"
        if key not in results.of("rows"):
            console.print(f"{shown(target)}, {method}: {sizes.clients} clients for {sizes.seconds} s")
            with way_of(method, options, target, sizes) as way:
                row = load_run(way, texts, sizes)
            named = {"target": shown(target), "method": method, "clients": sizes.clients, "dtype": options.dtype}
            results.add("rows", key, named | row)
    page = page_of("A server under load", results, COLUMNS, "clients", 2)
    if options.out is not None:
        with writing(options.out):
            options.out.with_name(options.out.name + ".md").write_text(page, encoding="utf-8")
    print(page, end="")
    rows = results.of("rows").values()
    wrong = [
        row for row in rows if row["dtype"] in ("float32", "int8") and row["identical"] < row["answers"] - row["lost"]
    ]
    return 1 if wrong or any(row["lost"] for row in rows) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Put servers under load, and return the exit code."""
    options = parser(
        "serve",
        "A server under load: answers, times and memory, with drafts, without, and by generate of transformers.",
        "--target HuggingFaceTB/SmolLM2-135M-Instruct --quick",
        "--target MODEL --dtype float32 --clients 16 --seconds 180 --out results/serve",
    )
    flags.add(options, "--target", action="append", help="a folder, a GGUF file, a hub id or zoo:NAME; repeatable")
    flags.add(options, "--drafter", "--dtype")
    options.add_argument("--lanes", type=flags.at_least(1), default=8, metavar="N", help="of the server (default: 8)")
    for name, about in (
        ("clients", "clients at once"),
        ("seconds", "seconds of load, of each way"),
        ("prompts", "prompts, in turns"),
        ("new_tokens", "maximum tokens of an answer"),
    ):
        default = f"{about} (default: {getattr(FULL, name)}, {getattr(QUICK, name)} with --quick)"
        options.add_argument(flags.flag(name), type=flags.at_least(1), metavar="N", help=default)
    options.add_argument("--out", type=Path, metavar="STEM", help="write STEM.jsonl, and go on with it, and STEM.md")
    return run(options, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
