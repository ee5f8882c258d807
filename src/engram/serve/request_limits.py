"""What every request meets before the service (its id; checks of host, token, size, time and
number; the log), and the server that runs both.
"""

from __future__ import annotations

import asyncio
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
from engram.serve.access_tokens import AccessTokens
from engram.serve.log_lines import RequestFacts, choose_request_id, log_request
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
)  # allowed without a token, as they reveal nothing about the model without one
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
RETRY_SECONDS = 1  # what a client is asked to wait when too many requests are in hand
NAMED = "/models/{name}"  # before the paths of a model that is named


@accept_old_names
@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Limits on the size, number and time of requests.

    Parameters
    ----------
    max_request_bytes
        Largest body of a request; else status 413.
    max_pending
        Requests with a body in hand at once, read, waiting or answered; else status 503.
    max_pending_bytes
        Bytes of their bodies; else status 503.
    read_seconds
        Time for a request to arrive, headers and body; else status 408.
    answer_seconds
        Time to answer; else status 503.
    connections
        Connections at once; else status 503.
    """

    max_request_bytes: int = 16 << 20
    max_pending: int = 128
    max_pending_bytes: int = 64 << 20  # read from JSON they take ten times as much
    read_seconds: float = 10.0
    answer_seconds: float = 60.0
    connections: int = 512

    def __post_init__(self) -> None:
        for name in ("max_request_bytes", "max_pending", "max_pending_bytes", "connections"):
            check_int(name, getattr(self, name), 1)
        check_float("read_seconds", self.read_seconds, open_low=True)
        check_float("answer_seconds", self.answer_seconds, open_low=True)


class RequestRefused(Exception):
    """A request that is refused, with an HTTP status and headers."""

    def __init__(self, status: int, words: str, **headers: str) -> None:
        super().__init__(words)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def _refuse_busy() -> RequestRefused:
    return RequestRefused(
        503, "too many requests are in hand; try again", retry_after=str(RETRY_SECONDS)
    )


class RequestGate:
    """Outermost ASGI layer: checks host, token, size and time of every request, gives it an id,
    counts and logs it.
    """

    def __init__(
        self, app: App, *, limits: RequestLimits, metrics: ServiceMetrics,
        tokens: AccessTokens | None = None, hosts: Collection[str] = (),
        paths: Collection[str] = (), models: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.app, self.limits, self.metrics = app, limits, metrics
        self.tokens, self.hosts = tokens or AccessTokens(), tuple(hosts)
        self.paths, self.models = tuple(paths), tuple(models)
        self._pending = self._pending_bytes = 0  # only the event loop changes them

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        began, status, headers = time.perf_counter(), [500], dict(scope["headers"])
        facts = RequestFacts(choose_request_id(headers.get(b"x-request-id")), scope["method"])
        facts.route, facts.model = self._name_route(scope["path"])
        scope["facts"] = facts

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                own = (b"x-request-id", facts.id.encode())
                message = {**message, "headers": [*message.get("headers", ()), own]}
            await send(message)

        try:
            self._admit(scope, headers, facts)
            await self._take_in(scope, headers, receive, counted)
        except RequestRefused as problem:
            await _refuse(counted, problem)
        finally:
            seconds = time.perf_counter() - began
            self.metrics.request(facts.route, facts.model, status[0], seconds)
            log_request(facts, status[0], seconds)

    def _name_route(self, path: str) -> tuple[str, str]:
        """Return the template of a path without the part that names a model, and the model.

        Only for logs and counts: which role a path needs is decided where it is routed.
        """
        route = next((one for one in self.paths if _matches_template(path, one)), "other")
        if not route.startswith(NAMED):
            about = self.models and NAMED + route in self.paths
            return route, self.models[0] if about else ""
        name = path.split("/")[2]
        return (route.removeprefix(NAMED), name) if name in self.models else ("other", "")

    def _admit(self, scope: Scope, headers: dict[bytes, bytes], facts: RequestFacts) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if self.hosts and name not in self.hosts:
            raise RequestRefused(421, f"this service answers to {', '.join(self.hosts)}")
        facts.role = self.tokens.find_role(headers.get(b"authorization", b""))
        if not facts.role and scope["path"] not in OPEN_PATHS:
            words = "a token is required: Authorization: Bearer TOKEN"
            raise RequestRefused(401, words, www_authenticate="Bearer")

    async def _take_in(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Answer a request, if there is room for it."""
        counts = scope["method"] not in ("GET", "HEAD")  # supervisors must get through
        if counts and self._pending >= self.limits.max_pending:
            raise _refuse_busy()
        self._pending += counts
        parts: list[bytes] = []
        try:
            await self._read(headers, receive, parts)
            await self._answer(scope, b"".join(parts), receive, send)
        finally:
            self._pending -= counts
            self._pending_bytes -= sum(map(len, parts))

    async def _read(
        self, headers: dict[bytes, bytes], receive: Receive, parts: list[bytes]
    ) -> None:
        """Append the pieces of the body to `parts`, and count their bytes as pending."""
        most, size = self.limits.max_request_bytes, 0
        said = headers.get(b"content-length", b"0")
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
                    self._pending_bytes += len(parts[-1])
                    if size > most:
                        raise RequestRefused(413, f"at most {most} bytes in a request")
                    if self._pending_bytes > self.limits.max_pending_bytes:
                        raise _refuse_busy()
                    if not message.get("more_body", False):
                        return
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
    headers = {"content-type": "application/json", "connection": "close",
               "content-length": str(len(body)), **problem.headers}  # fmt: skip
    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": lines})
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
        log_config=None, access_log=False, limit_concurrency=limits.connections, lifespan="on",
        timeout_graceful_shutdown=5, server_header=False, ws="none",
    )  # fmt: skip
    return uvicorn.Server(config)
