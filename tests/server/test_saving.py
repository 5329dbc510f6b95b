"""Learning beside requests, the profile that is kept of it, and how a server ends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from omnidraft.defaults import SMALL
from omnidraft.errors import ModelError
from omnidraft.models.language_model import Read
from omnidraft.models.transformers_model import TransformersModel
from omnidraft.server.run import Running
from omnidraft.server.server_settings import Serving
from support import faulty_disk
from support.homes import with_native
from support.reads import watch
from support.serving import PATIENT, QUESTION, At, events, healthy, serving, user
from support.waiting import WAIT_S, until

pytestmark = pytest.mark.medium

# without a form, some answers end by themselves after some tens of tokens
ENDLESS: dict[str, Any] = {
    "messages": user(QUESTION),
    "temperature": 2.0,
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "string", "minLength": 20000}},
    },
}
LEARNS: dict[str, Any] = {"adapt": "inline", "update_every": 1, "draft_length": 4}


def complete(at: At, **body: Any) -> httpx.Response:
    return at.post("/v1/completions", {"prompt": QUESTION, "max_tokens": 12, "temperature": 0} | body)


@pytest.mark.slow
def test_what_is_learned_is_saved_while_requests_come(target: Path, drafter: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    with serving([target], drafter, LEARNS | {"profile": profile}, save_every_s=0.1) as at:
        expected = complete(at).json()["choices"]
        until(lambda: at.figures()["learned"].get("updates"))
        until(profile.exists)
        assert complete(at).json()["choices"] == expected
        assert at.figures()["profile"] == str(profile)
        assert at.figures()["series"]["updates"][0] >= 1
        assert at.counter("omnidraft_warnings_total") == 0
    with serving([target], drafter, {"profile": profile}) as at:
        assert at.figures()["learned"]["updates"] >= 1
        assert complete(at).json()["choices"] == expected


def test_what_is_learned_is_saved_at_the_end(target: Path, drafter: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    with serving([target], drafter, LEARNS | {"profile": profile}) as at:
        assert complete(at).status_code == 200
        assert not profile.exists()
    assert profile.exists()


@pytest.mark.slow
def test_a_full_disk_ends_no_answer(
    target: Path, drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "profile"
    with serving([target], drafter, LEARNS | {"profile": profile}, save_every_s=0.1) as at:
        faulty_disk.install(faulty_disk.RefusingDisk(0, errno.ENOSPC), monkeypatch)
        expected = complete(at).json()["choices"]
        until(lambda: at.counter("omnidraft_warnings_total"))
        assert any("not saved" in line and "No space left" in line for line in at.lines)
        assert complete(at).json()["choices"] == expected
        assert not profile.exists()
        faulty_disk.install(None, monkeypatch)
        complete(at)
        until(profile.exists)


@pytest.mark.slow
def test_targets_share_one_drafter_and_have_a_profile_each(target: Path, chat: Path, drafter: Path, home: Path) -> None:
    with serving([target, chat], drafter, LEARNS | {"profile": "auto"}, save_every_s=0.1) as at:
        for name in ("target", "chat", "target"):
            assert complete(at, model=name).status_code == 200
        until(lambda: len({at.figures(place)["profile"] for place in (0, 1)} - {None}) == 2)
        until(lambda: all(Path(at.figures(place)["profile"]).exists() for place in (0, 1)))
        assert home in Path(at.figures()["profile"]).parents
        assert at.figures(0)["drafter"] == at.figures(1)["drafter"] == "drafter"


def test_models_that_cannot_be_loaded_end_the_server(tmp_path: Path) -> None:
    running = Running(Serving(port=0), [str(tmp_path)], SMALL, {}, say=lambda _: None)
    with pytest.raises(ModelError):
        running.run()
    assert not healthy(running.address)


def test_a_server_that_loads_can_be_ended(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    def load(*_: Any, **__: Any) -> list[Any]:
        begun.set()
        assert go.wait(2 * WAIT_S)
        return []

    monkeypatch.setattr("omnidraft.server.run.load_all", load)
    running = Running(Serving(port=0), [str(target)], None, {}, say=lambda _: None)
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        assert begun.wait(WAIT_S)
        at = At(running.address, running.end)
        for refused in (at.get("/health"), at.chat()):
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "loading"
            assert int(refused.headers["Retry-After"]) >= 1
        running.end()
        thread.join(WAIT_S)
        assert not thread.is_alive()
    finally:
        go.set()


# ---------------------------------------------------------------- signals

signal_here = partial(os.kill, os.getpid())


def run_here(target: Path, drafter: Path | None, options: Any, ask: Callable[[At], object], **settings: Any) -> bool:
    """Run a server in the thread that receives signals, beside a client; True where Ctrl-C ended it."""
    helper, models = str(drafter) if drafter else None, {"profile": None, "dtype": "float32", **options}
    running = Running(Serving(port=0, **settings), [str(target)], helper, models, say=lambda _: None)

    def client() -> None:
        try:
            until(lambda: healthy(running.address))
            ask(At(running.address, running.end))
        finally:
            running.end()

    with ThreadPoolExecutor(1) as pool:
        asked, interrupted = pool.submit(client), False
        try:
            running.run()
        except KeyboardInterrupt:
            interrupted = True
        asked.result(WAIT_S)
    return interrupted


@contextmanager
def streamed(at: At, tokens: int) -> Iterator[Iterator[str]]:
    body = ENDLESS | {"max_tokens": tokens, "stream": True}
    with httpx.stream("POST", at.url + "/v1/chat/completions", json=body, **PATIENT) as answer:
        lines = answer.iter_lines()
        next(lines)
        yield lines


@pytest.mark.slow
def test_a_second_interrupt_ends_answers_and_saves_profiles(chat: Path, drafter: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile"

    def ask(at: At) -> None:
        until(lambda: complete(at).is_success and at.figures()["learned"].get("updates"))
        with ExitStack() as streams:
            lines = [streams.enter_context(streamed(at, 2000)) for _ in range(3)]
            signal_here(signal.SIGINT)
            until(lambda: not healthy(at.url))  # it drains
            assert not profile.exists()
            signal_here(signal.SIGINT)
            last = [[line for line in each if line.startswith("data: {")][-1] for each in lines]
        assert all("shutting down" in each for each in last)

    options = LEARNS | {"profile": profile}
    assert run_here(chat, drafter, options, ask, save_every_s=600, drain_timeout_s=300, max_tokens=2000)
    assert profile.exists()


@pytest.mark.slow
@pytest.mark.parametrize("signals", [2, 1])
def test_an_end_waits_for_no_prompt_to_be_read(chat: Path, monkeypatch: pytest.MonkeyPatch, signals: int) -> None:
    """At a second interrupt, and after the time that open answers get."""
    parts = 0

    def slow(read: Read) -> None:
        nonlocal parts
        if read.keep == 0:
            parts += 1
            time.sleep(0.1)

    monkeypatch.setattr(TransformersModel, "chunk", 4)
    watch(monkeypatch, TransformersModel, slow)
    messages = user(f"{QUESTION} And one more. " * 20)  # read in about 100 parts

    def ask(at: At) -> None:
        with ThreadPoolExecutor(2) as pool:
            waits = [pool.submit(at.chat, messages=messages, max_tokens=4) for _ in range(2)]
            until(lambda: parts and at.figures()["active"] + at.figures()["queued"] == 2)
            signal_here(signal.SIGINT if signals == 2 else signal.SIGTERM)
            if signals == 2:
                until(lambda: not healthy(at.url))  # it drains
                assert not any(each.done() for each in waits)
                signal_here(signal.SIGINT)
            assert [each.result().status_code for each in waits] == [503, 503]
            assert "shutting down" in waits[0].result().json()["error"]["message"]

    drain = 300 if signals == 2 else 1
    assert run_here(chat, None, {"draft_length": 0}, ask, drain_timeout_s=drain) == (signals == 2)
    assert parts < 80


def test_a_console_that_is_closed_ends_the_server(chat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the signal that Windows has for it, in place of which another comes here."""
    monkeypatch.setattr(signal, "SIGBREAK", signal.SIGUSR1, raising=False)

    def ask(at: At) -> None:
        signal_here(signal.SIGUSR1)
        until(lambda: not healthy(at.url))

    assert not run_here(chat, None, {"draft_length": 0}, ask)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


# ---------------------------------------------------------------- as a process


MAIN = "from omnidraft.cli.main import main; raise SystemExit(main())"


class Process:
    """`omnidraft serve` with a drafter that learns."""

    def __init__(self, target: Path, drafter: Path, home: Path) -> None:
        command = [sys.executable, "-c", MAIN, "serve", "--target", str(target), "--drafter", str(drafter)]
        command += ["--port", "0", "--adapt", "background", "--draft-length", "4", "--threads", "1"]
        command += ["--set", "update_every=1", "--set", "save_every_s=0.2"]
        environment = os.environ | {"OMNIDRAFT_HOME": str(with_native(home))}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, encoding="utf-8")
        assert self.process.stderr is not None
        self.lines: list[str] = []
        self._stderr = self.process.stderr
        self._reader = threading.Thread(target=lambda: self.lines.extend(self._stderr))
        self._reader.start()
        until(lambda: self.address or self.process.poll() is not None)
        self.at = At(self.address, self.process.terminate)

    @property
    def address(self) -> str:
        return next((line.split()[-1] for line in list(self.lines) if "serving" in line), "")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        self._reader.join()
        self._stderr.close()
        return code


@contextmanager
def served(target: Path, drafter: Path, home: Path) -> Iterator[Process]:
    process = Process(target, drafter, home)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.end(signal.SIGKILL)


@pytest.mark.slow
def test_a_kill_under_load_tears_nothing_and_a_signal_drains(chat: Path, drafter: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    asked = ENDLESS | {"model": "chat", "max_tokens": 2000}
    with served(chat, drafter, home) as process, ThreadPoolExecutor(3) as pool:
        expected = complete(process.at).json()["choices"]
        profile = Path(str(process.at.figures()["profile"]))
        until(profile.exists)
        client = process.at.client
        waits: list[Future[Any]] = [pool.submit(lambda: client.chat.completions.create(**asked)) for _ in range(2)]
        waits += [pool.submit(lambda: list(client.chat.completions.create(**asked, stream=True)))]
        with streamed(process.at, 2000) as lines:
            until(lambda: process.at.figures()["active"] == 4)
            process.end(signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                list(lines)
        errors = [each.exception(WAIT_S) for each in waits]
        client.close()
    assert all(isinstance(each, openai.APIConnectionError | httpx.TransportError) for each in errors), errors
    with served(chat, drafter, home) as process:
        assert not any("damaged" in line for line in process.lines)
        assert process.at.figures()["learned"]["updates"] >= 1
        assert complete(process.at).json()["choices"] == expected
        with streamed(process.at, 60) as lines:
            process.process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert [line for line in rest if line][-1] == "data: [DONE]"
        *found, last = events(rest)
        assert len(found) > 3
        assert last["choices"][0]["finish_reason"] in ("length", "stop")
        assert process.end(signal.SIGTERM) == 0
        assert not any("Traceback" in line for line in process.lines)
