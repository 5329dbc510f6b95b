"""Servers on a free port of this machine, each in a thread of the test's process, and the pace of their rounds."""

from __future__ import annotations

import json
import math
import shutil
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from safetensors.torch import load_file, save_file

from omnidraft import zoo
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.round import verify
from omnidraft.defaults import SMALL
from omnidraft.models.int8_format import FILE, INT8_FORMAT
from omnidraft.server.run import Running
from omnidraft.server.server_settings import Serving
from support.waiting import WAIT_S, until

# of requests; httpx makes a context of its own for each, which takes longer than all the rest
PATIENT: dict[str, Any] = {"timeout": WAIT_S, "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}
QUESTION = "Question: Tim has 4 boxes of 6 pens. How many pens has he?\nAnswer:"
# that of the zoo's target-b, and its tools as Qwen writes them
TOOL_TEMPLATE = """\
{% if tools %}<|im_start|>system
Tools: {% for t in tools %}{{ t | tojson }}{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] | trim }}{% for c in m['tool_calls'] or [] %}<tool_call>{{ c['function'] | tojson }}</tool_call>\
{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@dataclass
class At:
    """A server under test: its address, and the lines that it wrote."""

    url: str
    end: Callable[[], None]
    lines: list[str] = field(default_factory=list)
    clients: list[OpenAI] = field(default_factory=list)  # closed with the server: an open socket fails a later test

    @property
    def client(self) -> OpenAI:
        http = httpx.Client(**PATIENT)
        own: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": WAIT_S, "http_client": http}
        self.clients.append(OpenAI(base_url=f"{self.url}/v1", **own))
        return self.clients[-1]

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, **PATIENT, **options)

    def raw(self, path: str, content: bytes, **headers: str) -> httpx.Response:
        """The answer to a body of bytes."""
        return httpx.post(self.url + path, content=content, headers=headers, **PATIENT)

    def chat(self, **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", {"messages": user(QUESTION), "max_tokens": 4} | body)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, **PATIENT, **options)

    def counter(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = [line for line in self.get("/metrics").text.splitlines() if line.startswith(name)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line[len(name)] in " {,}")

    def figures(self, place: int = 0) -> Mapping[str, Any]:
        """What /stats says of a target."""
        found: Mapping[str, Any] = self.get("/stats").json()["models"][place]
        return found


class Rounds:
    """The rounds of all requests in this process: how many have begun, and how many may."""

    def __init__(self) -> None:
        self.begun = 0
        self._allowed = math.inf
        self._change = threading.Condition()

    def let(self, count: float = math.inf) -> None:
        """Let so many more begin; the one after them waits at its beginning, and the models with it."""
        with self._change:
            self._allowed = self.begun + count
            self._change.notify_all()

    def wait(self, count: int) -> None:
        """Let so many more begin, and wait for them and for the one that is held."""
        with self._change:
            self.let(count)
            wanted = self.begun + count + 1
            assert self._change.wait_for(lambda: self.begun >= wanted, WAIT_S), "no more rounds begin"

    def begin(self) -> None:
        with self._change:
            self.begun += 1
            self._change.notify_all()
            assert self._change.wait_for(lambda: self.begun <= self._allowed, WAIT_S), "nobody lets it begin"


@contextmanager
def rounds_of_requests(patch: pytest.MonkeyPatch) -> Iterator[Rounds]:
    """Rounds that are counted, and held where that is asked for."""
    rounds = Rounds()

    def counted(lane: Lane, request: Any) -> Any:
        rounds.begin()
        return verify(lane, request)

    patch.setattr("omnidraft.decoding.stream.verify", counted)
    try:
        yield rounds
    finally:
        rounds.let()


@contextmanager
def serving(
    targets: Sequence[str | Path],
    drafter: str | Path | None = SMALL,
    options: Any = None,
    *,
    log_prompts: bool = False,
    **settings: Any,
) -> Iterator[At]:
    """A server that is ready, on these targets and settings; `options` are those of `omnidraft.load`."""
    lines: list[str] = []
    given = {"profile": None, "dtype": "float32", **(options or {})}
    names = [str(target) for target in targets]
    helper = None if drafter is None else str(drafter)
    running = Running(Serving(port=0, **settings), names, helper, given, say=lines.append, log_prompts=log_prompts)
    thread = threading.Thread(target=running.run)
    thread.start()
    at = At(running.address, running.end, lines)
    try:
        until(lambda: healthy(at.url) or not thread.is_alive())
        yield at
    finally:
        for client in at.clients:
            client.close()
        running.end()
        thread.join(WAIT_S)
        assert not thread.is_alive()


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", **PATIENT).status_code == 200
    except httpx.TransportError:
        return False


def events(answer: httpx.Response | Iterable[str]) -> list[Any]:
    """The events of a stream, or of its lines; the one body of an answer that is none."""
    lines = answer.text.splitlines() if isinstance(answer, httpx.Response) else answer
    found = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return found or ([answer.json()] if isinstance(answer, httpx.Response) else [])


def user(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


def with_tools(folder: Path) -> Path:
    """The zoo's target-b with every third of its layers and a chat template that has a place for tools.

    What it says still depends on what it is asked, and takes a third of the time.
    """
    shutil.copytree(zoo.path("target-b"), folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kept = range(0, config["num_hidden_layers"], 3)
    config |= {"num_hidden_layers": len(kept), "layer_types": [config["layer_types"][at] for at in kept]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = load_file(folder / FILE)
    own = {name: each for name, each in weights.items() if ".layers." not in name}
    for place, layer in enumerate(kept):
        old, new = f".layers.{layer}.", f".layers.{place}."
        own |= {name.replace(old, new): each for name, each in weights.items() if old in name}
    save_file(own, folder / FILE, {"format": INT8_FORMAT})
    (folder / "chat_template.jinja").write_text(TOOL_TEMPLATE, encoding="utf-8")
    return folder
