"""The process that learns, seen from the service: started when needed, and again if it dies."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import Any


class Learning:
    """One process for one task after the other.

    Parameters
    ----------
    seconds
        How long a task may take; then the process is ended.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._process: subprocess.Popen[str] | None = None
        self._late = threading.Event()
        self._said: Any = None

    def learn(self, **order: Any) -> str:
        """Let it learn a task, and wait; why it could not, in words."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018
        self._late.clear()
        alarm = threading.Timer(self.seconds, self._end)
        alarm.start()
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # it died before it could listen
            line = ""
        finally:
            alarm.cancel()
        if line:
            return str(json.loads(line)["error"])
        code, words = process.wait(), self._last_words()
        self.close()
        if self._late.is_set():
            return f"learning took more than {self.seconds:g} seconds and was ended"
        how = f"signal {-code}" if code < 0 else f"code {code}"
        return f"the process that learns ended with {how}: {words or 'no word'}"

    def stop(self) -> None:
        """End the process, whatever it does; who waits for it in `learn` is told so."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the process, and let go of it; nobody may be waiting for it."""
        self.stop()
        process, self._process = self._process, None
        for end in () if process is None else (process.stdin, process.stdout, self._said):
            if end is not None:
                with suppress(OSError):  # what was on its way to a dead process
                    end.close()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engram.serve.worker"], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self._said, text=True,
            )  # fmt: skip
        return self._process

    def _end(self) -> None:
        self._late.set()
        self.stop()

    def _last_words(self) -> str:
        self._said.seek(0)
        lines: list[str] = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
