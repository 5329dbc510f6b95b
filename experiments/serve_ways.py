"""Ways to answer the clients of `experiments.serve`: a server of our own, and `generate` of transformers."""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import torch

from omnidraft import zoo
from omnidraft.api import OmniDraft, load
from omnidraft.errors import OmniDraftError
from omnidraft.models.loading import choose_device, choose_dtype, load_skeleton, load_tokenizer
from omnidraft.prompting import has_template
from omnidraft.server.served import name_of

LONGEST_S = 600.0  # for a server to be ready, and for an answer


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer as a client got it; None for one that did not come whole."""

    prompt: int
    text: str | None
    tokens: int = 0
    first_s: float = 0.0


class ServerWay:
    """`omnidraft serve` as a process, asked over HTTP."""

    def __init__(self, options: argparse.Namespace, target: str, tokens: int, clients: int, *more: str) -> None:
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
        words += ["--lanes", str(options.lanes), "--max-queue", str(clients), *more]
        if options.threads is not None:
            words += ["--threads", str(options.threads)]
        self._process = subprocess.Popen(  # noqa: S603  our own command
            [sys.executable, "-m", "omnidraft", "serve", *words], stderr=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self._users = itertools.count()
        self._said: list[str] = []  # for the message where it ends
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()
        self._url, self._model, self._tokens = f"http://127.0.0.1:{port}", name_of(target), tokens
        self._wait()
        self.tokenizer: Any = load_tokenizer(zoo.resolve(target))
        self._chats = has_template(self.tokenizer)  # a target without a template takes text alone
        self._path = f"/v1/{'chat/' if self._chats else ''}completions"

    def pieces(self, prompt: str, tokens: int) -> Iterator[tuple[str, int]]:
        """Pieces of the streamed answer to a prompt, with the last one how many tokens there are.

        Raises httpx.TransportError where it does not come whole.
        """
        body = self._body(prompt, tokens)
        with httpx.stream("POST", self._url + self._path, json=body, timeout=LONGEST_S) as answer:
            if answer.status_code != httpx.codes.OK:
                raise OmniDraftError(f"the server refuses a prompt: {answer.read().decode()}")
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    return
                chunk = json.loads(line.removeprefix("data: ") or "{}")
                choices = chunk.get("choices", ())
                text = "".join(each["delta"].get("content", "") if self._chats else each["text"] for each in choices)
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

    def begin(self, prompt: str, leaving: threading.Event) -> None:
        """Ask, and leave without an answer as soon as that is set."""
        address = ("127.0.0.1", int(self._url.rpartition(":")[2]))
        data = json.dumps(self._body(prompt, 1)).encode()
        head = f"POST {self._path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
        with socket.create_connection(address) as connection:
            connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
            leaving.wait(LONGEST_S)

    def _body(self, prompt: str, tokens: int) -> dict[str, Any]:
        body = {"model": self._model, "temperature": 0, "max_tokens": tokens, "stream": True}
        # each request is another user's: none is drafted from an earlier answer to the same prompt
        body |= {"user": str(next(self._users)), "stream_options": {"include_usage": True}}
        return body | ({"messages": [{"role": "user", "content": prompt}]} if self._chats else {"prompt": prompt})

    def active(self) -> int:
        """Requests that have a lane."""
        return sum(each["active"] for each in httpx.get(f"{self._url}/stats", timeout=LONGEST_S).json()["models"])

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

    def __init__(self, model: OmniDraft, tokens: int) -> None:
        self._model, self._tokens = model, tokens
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
def way_of(
    method: str, options: argparse.Namespace, target: str, tokens: int, clients: int
) -> Iterator[ServerWay | GenerateWay]:
    """A way to answer prompts, for as long as it is used."""
    if method == "generate":
        way: ServerWay | GenerateWay = GenerateWay(load(target, None, dtype=runnable(target, options.dtype)), tokens)
    else:
        more = ("--draft-length", "0") if method == "no drafts" else ()
        way = ServerWay(options, target, tokens, clients, *more)
    try:
        yield way
    finally:
        way.close()
