"""uvicorn with one thing more: who sends headers too slowly is cut off."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from engram.errors import EngramError
from engram.serve.limits import Limits


def protocol(seconds: float) -> type[H11Protocol]:
    """A protocol that gives every request's headers so many seconds to arrive."""

    class Impatient(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            self._wait()
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._rest()  # headers are there; the body has a time limit of its own

        def connection_lost(self, exc: Exception | None) -> None:
            self._rest()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            self._rest()  # from here on it is idle, which uvicorn limits
            super().on_response_complete()

        def _wait(self) -> None:
            busy = self.cycle is not None and not self.cycle.response_complete
            if self._timer is None and not busy:
                self._timer = self.loop.call_later(seconds, self._cut)

        def _rest(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _cut(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                self.transport.abort()

    return Impatient


def listening(host: str, port: int) -> socket.socket:
    """A socket at the address, or an error in words: nothing is loaded for a port in use.

    Examples
    --------
    >>> with listening("127.0.0.1", 0) as one:
    ...     listening("127.0.0.1", one.getsockname()[1])
    Traceback (most recent call last):
    ...
    engram.errors.EngramError: 127.0.0.1:...: cannot be listened on (Address already in use)
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return socket.create_server(found[0][4][:2], family=found[0][0])
    except OSError as problem:
        number = problem.errno or 0  # below 0 for a name that nobody knows
        why = os.strerror(number) if number > 0 else problem.strerror
        raise EngramError(f"{host}:{port}: cannot be listened on ({why})") from problem


def server(app: Any, *, host: str, port: int, limits: Limits) -> uvicorn.Server:
    """A server that is ready to run."""
    config = uvicorn.Config(
        app, host=host, port=port, http=protocol(limits.read_seconds), log_level="warning",
        access_log=False, limit_concurrency=limits.connections, lifespan="on",
        timeout_graceful_shutdown=5, server_header=False, ws="none",
    )  # fmt: skip
    return uvicorn.Server(config)
