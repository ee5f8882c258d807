"""`TrainingProcess`: the process that learns tasks, started when needed, and again if it dies."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LearningOutcome:
    """What came of a task: an error, a refusal of the gate with its reason, or a new version.

    A model file has neither gate nor versions.
    """

    error: str = ""
    refused: str = ""
    version: int | None = None


class TrainingProcess:
    """Process that learns one task after the other.

    Parameters
    ----------
    seconds
        Time limit of a task, after which the process is killed.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._process: subprocess.Popen[str] | None = None
        self._late = threading.Event()
        self._said: Any = None

    def learn(self, **order: Any) -> LearningOutcome:
        """Learn a task, as `training_worker.learn_task` is told, and wait for it."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018
        self._late.clear()
        alarm = threading.Timer(self.seconds, self._end)
        alarm.start()
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:  # it died before reading
            line = ""
        finally:
            alarm.cancel()
        if line:
            return LearningOutcome(**json.loads(line))
        code, words = process.wait(), self._read_last_line()
        self.close()
        if self._late.is_set():
            return LearningOutcome(
                f"learning took more than {self.seconds:g} seconds, and was ended"
            )
        how = f"signal {-code}" if code < 0 else f"code {code}"
        return LearningOutcome(f"the training process ended with {how}: {words or 'no message'}")

    def stop(self) -> None:
        """End the process, which makes a waiting `learn` return an error."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the process and release it; no `learn` may be waiting."""
        self.stop()
        process, self._process = self._process, None
        for end in () if process is None else (process.stdin, process.stdout, self._said):
            if end is not None:
                with suppress(OSError):  # unsent data for a dead process
                    end.close()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engram.serve.training_worker"], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self._said, text=True,
            )  # fmt: skip
        return self._process

    def _end(self) -> None:
        self._late.set()
        self.stop()

    def _read_last_line(self) -> str:
        self._said.seek(0)
        lines: list[str] = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
