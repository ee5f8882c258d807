"""Checks of every request before the service (host, token, size, time), and the server that runs
both.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from engram.errors import EngramError, check_float, check_int
from engram.renamed import accept_old_names
from engram.serve.service_metrics import ServiceMetrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = (
    "/live",
    "/ready",
    "/",
    "/docs",
    "/openapi.json",
)  # allowed without a token, as they reveal nothing about the model
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


@accept_old_names
@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Limits on the size and time of requests.

    Parameters
    ----------
    max_request_bytes
        Largest body of a request; else status 413.
    read_seconds
        Time for a request to arrive, headers and body; else status 408.
    answer_seconds
        Time to answer; else status 503.
    connections
        Connections at once; else status 503.
    """

    max_request_bytes: int = 16 << 20
    read_seconds: float = 10.0
    answer_seconds: float = 60.0
    connections: int = 512

    def __post_init__(self) -> None:
        check_int("max_request_bytes", self.max_request_bytes, 1)
        check_int("connections", self.connections, 1)
        check_float("read_seconds", self.read_seconds, open_low=True)
        check_float("answer_seconds", self.answer_seconds, open_low=True)


class RequestRefused(Exception):
    """A request that is refused, with an HTTP status."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class RequestGate:
    """Outermost ASGI layer: checks host, token, size and time of every request, and counts them."""

    def __init__(
        self, app: App, *, limits: RequestLimits, metrics: ServiceMetrics, token: str = "",
        hosts: Collection[str] = (), paths: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.app, self.limits, self.metrics = app, limits, metrics
        self.token, self.hosts, self.paths = token, tuple(hosts), tuple(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), [500]

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            await send(message)

        try:
            self._admit(scope)
            body = await self._body(scope, receive)
            await self._answer(scope, body, receive, counted)
        except RequestRefused as problem:
            await _refuse(counted, problem)
        finally:
            path = next(
                (one for one in self.paths if _matches_template(scope["path"], one)), "other"
            )
            self.metrics.request(path, status[0], time.perf_counter() - began)

    def _admit(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self.hosts and name not in self.hosts:
            raise RequestRefused(421, f"this service answers to {', '.join(self.hosts)}")
        if not self.token or scope["path"] in OPEN_PATHS:
            return
        given = headers.get(b"authorization", b"")
        if not hmac.compare_digest(given, b"Bearer " + self.token.encode()):
            raise RequestRefused(401, "a token is required: Authorization: Bearer TOKEN")

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        most, parts, size = self.limits.max_request_bytes, [], 0
        said = dict(scope["headers"]).get(b"content-length", b"0")
        if said.isdigit() and int(said) > most:
            raise RequestRefused(413, f"at most {most} bytes in a request")
        try:
            async with asyncio.timeout(self.limits.read_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestRefused(400, "the request ended before its body did")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise RequestRefused(413, f"at most {most} bytes in a request")
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            words = f"the request took more than {self.limits.read_seconds:g} seconds to arrive"
            raise RequestRefused(408, words) from None

    async def _answer(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        try:
            async with asyncio.timeout(self.limits.answer_seconds):
                await self.app(scope, replay, send)
        except TimeoutError:
            raise RequestRefused(503, "the answer took too long") from None


async def _refuse(send: Send, problem: RequestRefused) -> None:
    body = json.dumps({"error": str(problem)}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close"),
               (b"content-length", str(len(body)).encode())]  # fmt: skip
    if problem.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _matches_template(path: str, template: str) -> bool:
    """Return whether a path matches a template such as ``/jobs/{number}``.

    Examples
    --------
    >>> (
    ...     _matches_template("/jobs/3", "/jobs/{number}"),
    ...     _matches_template("/jobs", "/jobs/{number}"),
    ... )
    (True, False)
    """
    own, wanted = path.split("/"), template.split("/")
    pairs = zip(own, wanted, strict=False)
    return len(own) == len(wanted) and all(b.startswith("{") or a == b for a, b in pairs)


# The uvicorn server, which closes connections that send headers too slowly.


def make_protocol(seconds: float) -> type[H11Protocol]:
    """Make a protocol that gives the headers of a request so many seconds to arrive."""

    class Impatient(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            self._wait()
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._rest()  # headers are complete; the body has its own time limit

        def connection_lost(self, exc: Exception | None) -> None:
            self._rest()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            self._rest()  # idle from here on, which uvicorn limits
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


def open_socket(host: str, port: int) -> socket.socket:
    """Open a socket at the address; raises before anything is loaded if the port is in use.

    Examples
    --------
    >>> with open_socket("127.0.0.1", 0) as one:
    ...     open_socket("127.0.0.1", one.getsockname()[1])
    Traceback (most recent call last):
    ...
    engram.errors.EngramError: 127.0.0.1:...: cannot be listened on (Address already in use)
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return socket.create_server(found[0][4][:2], family=found[0][0])
    except OSError as problem:
        number = problem.errno or 0  # below 0 for an unknown host name
        why = os.strerror(number) if number > 0 else problem.strerror
        raise EngramError(f"{host}:{port}: cannot be listened on ({why})") from problem


def make_server(app: Any, *, host: str, port: int, limits: RequestLimits) -> uvicorn.Server:
    """Make a server that is ready to run."""
    config = uvicorn.Config(
        app, host=host, port=port, http=make_protocol(limits.read_seconds), log_level="warning",
        access_log=False, limit_concurrency=limits.connections, lifespan="on",
        timeout_graceful_shutdown=5, server_header=False, ws="none",
    )  # fmt: skip
    return uvicorn.Server(config)
