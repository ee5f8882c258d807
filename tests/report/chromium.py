"""A headless Chromium on the PATH, driven over a pipe: tests click and type in pages."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip


class NoChromium(RuntimeError):
    """There is no Chromium on the PATH, or it does not answer."""


def find() -> str | None:
    """Path of the first Chromium on the PATH, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of a running browser; use `launch`."""

    def __init__(self, reads: int, writes: int, *, seconds: float) -> None:
        self._reads, self._writes, self._seconds = reads, writes, seconds
        self._rest = b""
        self._last = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, its answer."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        try:
            os.write(self._writes, json.dumps(message).encode() + b"\0")
        except BrokenPipeError as problem:
            raise NoChromium("Chromium ended before it answered") from problem
        deadline = time.monotonic() + self._seconds
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"Chromium: {method}: {answer['error'].get('message')}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._reads], [], [], left)[0]:
                raise NoChromium(f"Chromium did not answer within {self._seconds:g} seconds")
            piece = os.read(self._reads, 1 << 20)
            if not piece:
                raise NoChromium("Chromium ended before it answered")
            self._rest += piece
        line, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, path: str | os.PathLike[str]) -> None:
        """Open a file, with the network off, and wait until it is loaded."""
        self.call("Network.emulateNetworkConditions", offline=True, latency=0,
                  downloadThroughput=-1, uploadThroughput=-1)  # fmt: skip
        self.call("Page.navigate", url=Path(path).resolve().as_uri())
        script = (
            "new Promise(done => document.readyState === 'complete' ? done(1)"
            " : addEventListener('load', () => done(1)))"
        )
        deadline = time.monotonic() + self._seconds
        while self.evaluate("location.href") == "about:blank" and time.monotonic() < deadline:
            time.sleep(0.02)
        self.evaluate(script)

    def evaluate(self, script: str) -> Any:
        """Value of a JavaScript expression; a promise is waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            fault = answer["exceptionDetails"]
            text = fault.get("exception", {}).get("description") or fault.get("text")
            raise RuntimeError(f"Chromium: the page failed: {text}")
        return answer["result"].get("value")

    def size(self, width: int, height: int, *, phone: bool = False) -> None:
        """Size of the window in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=2 if phone else 1, mobile=phone)  # fmt: skip
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def screenshot(self, path: str | os.PathLike[str], *, whole: bool = False) -> None:
        """PNG of the window, or of the whole page."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(answer["data"]))

    def pdf(self, width: float, height: float) -> bytes:
        """The first page of what is shown, printed on paper of that size in inches."""
        answer = self.call(
            "Page.printToPDF", paperWidth=width, paperHeight=height, printBackground=True,
            marginTop=0, marginBottom=0, marginLeft=0, marginRight=0, pageRanges="1",
        )  # fmt: skip
        return base64.b64decode(answer["data"])


@contextlib.contextmanager
def launch(program: str | None = None, *, seconds: float = 120.0) -> Iterator[Browser]:
    """A fresh browser with a profile of its own; it is gone when the block ends.

    Parameters
    ----------
    program
        Path of the browser; by default the first of `NAMES` on the PATH.
    seconds
        How long one command may take.
    """
    program = program or find()
    if program is None:
        names = ", ".join(NAMES)
        raise NoChromium(f"Pictures need a Chromium: expected one of {names} on the PATH")
    with tempfile.TemporaryDirectory(prefix="engram-", ignore_cleanup_errors=True) as profile:
        process, reads, writes = _start(program, profile)
        try:
            yield Browser(reads, writes, seconds=seconds)
        finally:
            os.close(writes)  # the browser ends when its pipe does
            os.close(reads)
            _stop(process)


def _start(program: str, profile: str) -> tuple[int, int, int]:
    """Process id and our ends of the two pipes; the browser expects its ends as 3 and 4."""
    its_reads, our_writes = os.pipe()
    our_reads, its_writes = os.pipe()
    # Out of the way of 3 and 4, which the child fills one after the other.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in (its_reads, its_writes)]
    os.close(its_reads)
    os.close(its_writes)
    try:
        process = os.posix_spawn(
            program,
            [program, *FLAGS, f"--user-data-dir={profile}"],
            {**os.environ, "HOME": profile},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, high[0], 3),
                (os.POSIX_SPAWN_DUP2, high[1], 4),
            ],
            setpgroup=0,
        )
    except OSError as problem:
        os.close(our_reads)
        os.close(our_writes)
        raise NoChromium(f"Chromium does not start: {problem}") from problem
    finally:
        for fd in high:
            os.close(fd)
    return process, our_reads, our_writes


def _stop(process: int) -> None:
    """Wait a moment for the browser to end by itself, then end it and its children."""
    for _ in range(100):
        if os.waitpid(process, os.WNOHANG)[0]:
            return
        time.sleep(0.03)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
