"""Where the numbers of one run go in another tool, at once or while it trains."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Protocol

from engram.records.export.logs import RunLog


class Sink(Protocol):
    """One run in another tool; `name` is what the tool calls it."""

    name: str

    def stage(self, stage: int, values: Mapping[str, float]) -> None:
        """Numbers after a stage."""

    def steps(self, rows: Sequence[tuple[int, str, float]]) -> None:
        """Numbers inside stages: step over all stages, name, value."""

    def close(self) -> None:
        """Nothing more will come."""


def pour(log: RunLog, sink: Sink) -> None:
    """A whole log at once; the sink is closed whatever happens."""
    try:
        sink.steps(log.steps)
        for stage, values in log.stages:
            sink.stage(stage, values)
    finally:
        sink.close()


def file_name(text: str, longest: int = 120) -> str:
    """A name for a folder: no separators, not too long, still different from others.

    Examples
    --------
    >>> file_name("A/B seed0")
    'A_B seed0'
    >>> len(file_name("x" * 500)), file_name("x" * 500) == file_name("x" * 501)
    (120, False)
    """
    safe = re.sub(r"[/\\:*?\"<>|\x00-\x1f]", "_", text).strip(" .") or "run"
    if len(safe) <= longest and safe.isascii():
        return safe
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{safe.encode('ascii', 'replace').decode().replace('?', '_')[: longest - 9]}-{mark}"
