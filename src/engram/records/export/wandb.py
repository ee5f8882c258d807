"""Export to Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from engram.errors import choose
from engram.records.export.logs import RunLog, logs, need
from engram.records.export.sink import pour

if TYPE_CHECKING:
    from engram.records.result import Result

MODES = ("offline", "online", "shared", "disabled")


class WandbRun:
    """One W&B run; several may be open at a time."""

    def __init__(
        self, log: RunLog, *, project: str, mode: str, path: str | os.PathLike[str] | None
    ) -> None:
        self.name = log.name
        self._run = need("wandb").init(
            project=project, name=log.name, group=log.group, config=log.settings, mode=mode,
            dir=None if path is None else str(path), reinit="create_new",
            settings={"silent": True, "console": "off"},
        )  # fmt: skip
        # Stage and step curves have clocks of their own; wandb's counter only orders the calls.
        for clock in ("stage", "step"):
            self._run.define_metric(clock)
            self._run.define_metric(f"{clock}/*", step_metric=clock)

    def stage(self, stage: int, values: Mapping[str, float]) -> None:
        self._run.log({"stage": stage, **{f"stage/{name}": v for name, v in values.items()}})
        for name, value in values.items():
            self._run.summary[name] = value

    def steps(self, rows: Sequence[tuple[int, str, float]]) -> None:
        for step, name, value in rows:
            self._run.log({"step": step, f"step/{name}": value})

    def close(self) -> None:
        self._run.finish()


def to_wandb(
    result: Result,
    *,
    project: str = "engram",
    mode: str = "offline",
    path: str | os.PathLike[str] | None = None,
) -> list[str]:
    """Log every run as one W&B run, grouped by label; the names of the runs.

    Parameters
    ----------
    mode
        ``offline`` writes files only (`wandb sync` uploads them later), ``online`` sends them.
    path
        Directory of the offline files; default: wandb's own.
    """
    choose("mode", mode, MODES)
    names = []
    for log in logs(result):
        run = WandbRun(log, project=project, mode=mode, path=path)
        pour(log, run)
        names.append(run.name)
    return names
