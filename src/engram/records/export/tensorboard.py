"""Export to TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engram.records.export.logs import RunLog, logs, need
from engram.records.export.sink import file_name, pour

if TYPE_CHECKING:
    from engram.records.result import Result


class TensorBoardRun:
    """One run as a directory of events below `path`."""

    def __init__(self, log: RunLog, path: str | os.PathLike[str]) -> None:
        need("tensorboard")
        writer_class = need("torch.utils.tensorboard").SummaryWriter
        self.folder = Path(path) / file_name(log.name)
        self.name = str(self.folder)
        self._writer = writer_class(log_dir=self.name)
        text = "\n".join(f"    {key}: {value}" for key, value in log.settings.items())
        self._writer.add_text("recipe", text, 0)

    def stage(self, stage: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"stage/{name}", value, stage)
        self._writer.flush()  # a run may take hours: what is known is shown

    def steps(self, rows: Sequence[tuple[int, str, float]]) -> None:
        for step, name, value in rows:
            self._writer.add_scalar(f"step/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


def to_tensorboard(result: Result, path: str | os.PathLike[str]) -> list[Path]:
    """Write one TensorBoard log per run below `path`; the directories written.

    Numbers per stage are drawn over stages, numbers inside stages over steps.
    """
    folders = []
    for log in logs(result):
        run = TensorBoardRun(log, path)
        pour(log, run)
        folders.append(run.folder)
    return folders
