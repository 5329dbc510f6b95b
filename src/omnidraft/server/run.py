"""Run the server: load the models, answer requests, and at a signal end what is open and save what was learned."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import uvicorn

from omnidraft.errors import ConfigError
from omnidraft.server.app import Server, make_app
from omnidraft.server.running.metrics import Metrics
from omnidraft.server.running.request_queue import Scheduler
from omnidraft.server.running.served_model import ServedModel, load_all
from omnidraft.server.server_settings import Serving
from omnidraft.systems import end_signals

SPARE = 128  # requests beside those that have a lane or wait for one: to be sent away with a 429, or not read
LOOK_S = 0.1  # between looks for a signal, as uvicorn has it
LAST_S = 2.0  # for what is still said to clients at the end


class _Uvicorn(uvicorn.Server):
    """It notes an interrupt, as what uvicorn raises of one depends on where it comes, and ends open answers in time."""

    def __init__(self, config: uvicorn.Config, drain_timeout_s: float, scheduler: Scheduler) -> None:
        super().__init__(config)
        self.interrupted = False
        self._drain_timeout_s, self._scheduler = drain_timeout_s, scheduler
        self._hurried = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.interrupted |= sig == signal.SIGINT
        if self.should_exit and sig == signal.SIGINT and not self._hurried:
            self._hurried = True  # uvicorn would cancel its tasks, which clients see as a 500
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_requests())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    async def _end_requests(self) -> None:
        """End open answers once they had their time, or at a second interrupt; then connections, whoever is there."""
        now = asyncio.get_running_loop().time
        end = now() + self._drain_timeout_s
        while not self._hurried and now() < end:
            await asyncio.sleep(LOOK_S)
        self._scheduler.end_requests()
        await asyncio.sleep(LAST_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class Running:
    """A server at its address, for any number of targets behind one drafter.

    `options` are those of `omnidraft.load`, `say` receives what is worth knowing, a line each.  Raises ConfigError
    where answers of several users were to be kept in a profile, and for an address that cannot be listened on.
    """

    def __init__(
        self,
        settings: Serving,
        targets: Sequence[str],
        drafter: str | None,
        options: Mapping[str, Any],
        *,
        say: Callable[[str], None],
        log_prompts: bool = False,
    ) -> None:
        if settings.api_key and options.get("reuse_answers") == "profile":
            why = "and a profile would keep the answers of several users together, on disk"
            fix = "use reuse_answers='memory', or serve one user without keys"
            raise ConfigError(f"reuse_answers is 'profile' with API keys, {why}: {fix}", option="reuse_answers")
        self.settings = settings
        metrics = Metrics()
        self._scheduler, self._say = Scheduler(settings, metrics), say

        def warn(message: str) -> None:
            metrics.warnings.inc()
            say(message)

        def load() -> list[ServedModel]:
            loaded = load_all(targets, drafter, settings, warn=warn, options=options)
            say(f"serving {', '.join(one.name for one in loaded)} at {self.address}")
            return loaded

        server = Server(settings, self._scheduler, metrics, say, prompts=log_prompts)
        most = len(targets) * settings.lanes + settings.max_queue + SPARE
        app = make_app(server, lambda: self._scheduler.start(load, self.end), most)
        # with httptools, a request that offers HTTP/2, as Java's clients do, loses its body
        config = uvicorn.Config(app, http="h11", log_level="warning", access_log=False, server_header=False)
        self._uvicorn = _Uvicorn(config, settings.drain_timeout_s, self._scheduler)
        self._socket = _listen(settings)
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.address = f"http://{host}:{self._socket.getsockname()[1]}"

    def end(self) -> None:
        """Have `run` end, as a signal does; from any thread."""
        self._uvicorn.should_exit = True

    def run(self) -> None:
        """Serve until a signal or `end`; raises what loading the models raises, and KeyboardInterrupt after Ctrl-C."""
        before: dict[signal.Signals, Any] = {each: signal.getsignal(each) for each in end_signals()}
        try:
            _handle(dict.fromkeys(before, self._uvicorn.handle_exit))  # while profiles are saved, too
            self._uvicorn.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._scheduler.stop()
            _handle(before)
        if self._scheduler.failure is not None:
            raise self._scheduler.failure
        if self._uvicorn.interrupted:
            raise KeyboardInterrupt


def _handle(handlers: Mapping[signal.Signals, Any]) -> None:
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    except ValueError:  # not in the main thread, which alone receives signals
        return


def _listen(settings: Serving) -> socket.socket:
    """A socket at the address of the settings; raises ConfigError where that is taken or not of this machine."""
    try:
        family, *_, place = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server((str(place[0]), int(place[1])), family=family, backlog=128)
        # small pieces do not wait for 40 ms: asyncio sees to it where a socket knows its protocol; connections of
        # Windows do not, and take after the one that listens
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listener.detach())
    except OSError as error:
        raise ConfigError(f"cannot listen on {settings.host}:{settings.port} ({error}): use another --port") from error
