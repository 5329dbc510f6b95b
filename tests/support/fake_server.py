"""A server that speaks as `omnidraft serve` does to its page, and answers with canned rounds."""

from __future__ import annotations

import json
import mimetypes
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import omnidraft
from omnidraft.server.access import POLICY

PAGE = Path(omnidraft.__file__).parent / "server" / "page"
Token = tuple[str, str]  # text and source
MODELS = ("target-a", "target-b")
PLAIN: tuple[tuple[Token, ...], ...] = (
    (("The", "drafted"), (" moon", "drafted"), (" shows", "target")),
    ((" the", "counted"), (" same", "counted"), (" face", "target")),
    ((".", "target"),),
)


@dataclass
class FakeServer:
    """Answers with `rounds`; each round from `held` on waits for `go`."""

    rounds: Sequence[Sequence[Token]] = PLAIN
    thought: Sequence[Sequence[Token]] = ()  # rounds before them, of reasoning
    finish: str = "stop"
    acceptance: float | None = 0.75
    key: str | None = None
    held: int | None = None
    read: tuple[int, ...] = ()  # tokens of a prompt of 1000 that are read, one event each, before the first round
    refusals: list[tuple[int, str, dict[str, str]]] = field(default_factory=list)  # answers to the next chats
    loads: int = 0  # that many requests come too early
    breaks_off: str | None = None  # with this error, or an empty one without a word, before the end of the stream
    go: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)  # the client, before the end
    chats: list[dict[str, Any]] = field(default_factory=list)  # what was asked
    tokenized: list[str] = field(default_factory=list)
    answered: int = 0

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def chunks(self) -> list[dict[str, Any]]:
        """What is streamed: a chunk a round, then the figures."""
        progress = {"total": 1000, "cache": 0, "time_ms": 2000}
        found: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {}}], "prompt_progress": progress | {"processed": done}}
            for done in self.read
        ]
        rounds = [*(("reasoning_content", one) for one in self.thought), *(("content", one) for one in self.rounds)]
        for name, tokens in rounds:
            trace = [{"text": text, "source": source} for text, source in tokens]
            piece = "".join(text for text, _ in tokens)
            accepted = sum(source != "target" for _, source in tokens)
            extra = {"tokens": trace, "draft": accepted + 1, "accepted": accepted}
            found.append({"choices": [{"index": 0, "delta": {name: piece}}], "omnidraft": extra})
        count = sum(len(tokens) for _, tokens in rounds)
        figures: dict[str, Any] = {
            "seconds": 0.5, "tokens": count, "tokens_per_s": 2.0 * count, "acceptance_rate": self.acceptance,
            "tokens_per_pass": count / len(rounds), "estimated_speedup": 1.5, "learned": {},
        }  # fmt: skip
        return [*found, {"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}], "omnidraft": figures}]

    def stats(self) -> dict[str, Any]:
        """The figures of both models, whose series grow with the answers."""
        n = self.answered
        series = {
            "t": [float(i) for i in range(n)],
            "acceptance": [None if i % 7 == 6 else 0.4 + 0.5 * i / (i + 3) for i in range(n)],  # None: no draft
            "tokens_per_pass": [1.5 + i / (i + 4) for i in range(n)],
            "draft_length": [float(2 + i % 3) for i in range(n)],
            "updates": [i // 2 for i in range(n)],
        }
        learned = {"updates": n // 2, "tokens_seen": 96 * n}
        one = {
            "drafter": "drafter", "requests": n, "active": 0, "queued": 0, "precision": "float32",
            "profile": "profiles/drafter/target-0123456789ab.safetensors", "learned": learned, "series": series,
        }  # fmt: skip
        return {"models": [{"id": name, **one} for name in MODELS], "uptime_s": 12.5}


def report(model: str) -> dict[str, Any]:
    """The pair's report, short."""
    vocabulary = {"kind": "byte-level BPE", "size": 6144}
    memory = {"parameters": 12_599_552, "weight_bytes": 50_398_208, "context": 1024}
    return {
        "works": True, "reason": None,
        "target": {"name": model, "vocabulary": vocabulary, "memory": memory},
        "drafter": {"name": "drafter", "vocabulary": vocabulary, "memory": None},
        "spellings": {"byte_matches": 3458, "spelled": 6112, "unspelled": 0, "ngrams": 2746, "mean_length": 1.52},
    }  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    fake: FakeServer

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/" or path.startswith("/page/"):
            self._file(PAGE / (path.removeprefix("/page/").lstrip("/") or "index.html"))
        elif self._refused():
            self._json(HTTPStatus.UNAUTHORIZED, {"error": {"message": "no key"}})
        elif self.fake.loads:
            self.fake.loads -= 1
            self._json(HTTPStatus.SERVICE_UNAVAILABLE, {"error": {"message": "the models are being loaded"}})
        elif path == "/v1/models":
            self._json(HTTPStatus.OK, {"object": "list", "data": [{"id": name} for name in MODELS]})
        elif path == "/stats":
            self._json(HTTPStatus.OK, self.fake.stats())
        elif path == "/report":
            self._json(HTTPStatus.OK, report(query.removeprefix("model=")))
        else:
            self._json(HTTPStatus.NOT_FOUND, {"error": {"message": "no such page"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            self._json(HTTPStatus.UNAUTHORIZED, {"error": {"message": "no key"}})
        elif self.path == "/tokenize":
            self.fake.tokenized.append(body["content"])
            self._json(HTTPStatus.OK, {"tokens": list(range(len(body["content"].split())))})
        elif self.fake.refusals:
            status, message, headers = self.fake.refusals.pop(0)
            self._json(status, {"error": {"message": message}}, **headers)
        else:
            self.fake.chats.append(body)
            self._stream()

    def _refused(self) -> bool:
        return self.fake.key is not None and self.headers["Authorization"] != f"Bearer {self.fake.key}"

    def _stream(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for i, chunk in enumerate(self.fake.chunks()):
                while self.fake.held is not None and i >= self.fake.held and not self.fake.go.wait(0.05):
                    self.wfile.write(b": waiting\n\n")  # a comment, to see whether the client is still there
                if self.fake.breaks_off is not None and i == len(self.fake.thought) + len(self.fake.rounds):
                    error = json.dumps({"error": {"message": self.fake.breaks_off}})
                    self.wfile.write(f"data: {error}\n\n".encode() if self.fake.breaks_off else b"")
                    return
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                time.sleep(0.01)
            self.fake.answered += 1
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.fake.left.set()

    def _file(self, path: Path) -> None:
        if not path.is_file():
            self._json(HTTPStatus.NOT_FOUND, {"error": {"message": f"no {path.name}"}})
            return
        kind = "text/javascript" if path.suffix == ".js" else mimetypes.guess_type(path.name)[0] or "text/plain"
        self._send(HTTPStatus.OK, kind, path.read_bytes(), {})

    def _json(self, status: int, content: object, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._send(status, "application/json", json.dumps(content).encode(), named)

    def _send(self, status: int, kind: str, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY.decode())
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
