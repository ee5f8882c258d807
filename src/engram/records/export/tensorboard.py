"""Export to TensorBoard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from engram.records.export.logs import logs, need

if TYPE_CHECKING:
    from engram.records.result import Result


def to_tensorboard(result: Result, path: str | os.PathLike[str]) -> list[Path]:
    """Write one TensorBoard log per run below `path`; the directories written.

    Numbers per stage are drawn over stages, numbers inside stages over steps.
    """
    need("tensorboard")
    writer_class = need("torch.utils.tensorboard").SummaryWriter
    folders = []
    for log in logs(result):
        folder = Path(path) / log.name.replace(os.sep, "_")
        writer = writer_class(log_dir=str(folder))
        try:
            for stage, values in log.stages:
                for name, value in values.items():
                    writer.add_scalar(f"stage/{name}", value, stage)
            for step, name, value in log.steps:
                writer.add_scalar(f"step/{name}", value, step)
            text = "\n".join(f"    {key}: {value}" for key, value in log.settings.items())
            writer.add_text("recipe", text, 0)
        finally:
            writer.close()
        folders.append(folder)
    return folders
