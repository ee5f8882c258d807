"""A service on a port of this machine, and ways to ask it."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time

from engram.serve.access_tokens import AccessTokens
from engram.serve.app import create_app
from engram.serve.request_limits import LOOPBACK, RequestLimits, make_server
from engram.serve.service import Service


@contextlib.contextmanager
def serving(models, *, tokens=(), limits=None, **options):
    """The port and the service while it runs in a thread."""
    limits = limits or RequestLimits()
    service = Service(models, device="cpu", **options)
    app = create_app(service, limits=limits, tokens=AccessTokens(tokens), hosts=LOOPBACK)
    running = make_server(app, host="127.0.0.1", port=0, limits=limits)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    until(lambda: running.started)
    try:
        yield running.servers[0].sockets[0].getsockname()[1], service
    finally:
        running.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()


def until(ready, seconds=60.0):
    """Wait for something, not for ever."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def ask(
    port, path, body=None, *, token="", raw=None, method=None, headers=None, answer_headers=None
):
    """Status and answer of one request; the headers of the answer go into a dictionary."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    content = json.dumps(body).encode() if body is not None else raw
    more = {"content-type": "application/json", **(headers or {})}
    if token:
        more["authorization"] = f"Bearer {token}"
    try:
        verb = method or ("GET" if content is None else "POST")
        connection.request(verb, path, body=content, headers=more)
        answer = connection.getresponse()
        text = answer.read()
        if answer_headers is not None:
            answer_headers.update({name.lower(): one for name, one in answer.getheaders()})
        kind = answer.getheader("content-type", "")
        return answer.status, json.loads(text) if kind == "application/json" else text.decode()
    finally:
        connection.close()
