"""Connections that wait for their client: they are no requests yet, and are closed in time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_WAITING = 256  # connections; a new one beyond these ends the one that waited longest
_Uvicorns: Any = H11Protocol


class Connection(_Uvicorns):  # type: ignore[misc]
    """uvicorn's connection, closed where its client says nothing, or too little at a time.

    Not httptools', where that is installed: a request that offers HTTP/2, as Java's clients do, loses its body there.
    """

    seconds: float  # in which the next request must begin
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._wait()
        waiting = [each for each in self.connections if each.waits]
        if len(waiting) > MAX_WAITING:
            min(waiting, key=lambda each: each.since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    @property
    def waits(self) -> bool:
        """True where it is open, and has no complete request that waits for its answer."""
        cycle: Any = self.cycle
        if self.transport.is_closing():
            return False
        return bool(cycle is None or cycle.response_complete or cycle.more_body)

    def _wait(self) -> None:
        """Give the client its time for the next request, from now on."""
        self.since = self.loop.time()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self.seconds, self._late)

    def _late(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # a body that comes has a limit of its own
            self.transport.abort()


def protocol(seconds: float) -> type[asyncio.Protocol]:
    """The class of connections whose next request must begin within this time."""
    return type("Connection", (Connection,), {"seconds": seconds})
