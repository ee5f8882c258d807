"""Export to Weights & Biases."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from engram.errors import choose
from engram.records.export.logs import logs, need

if TYPE_CHECKING:
    from engram.records.result import Result


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
    choose("mode", mode, ["offline", "online"])
    wandb = need("wandb")
    names = []
    for log in logs(result):
        folder = None if path is None else str(path)
        run = wandb.init(
            project=project, name=log.name, group=log.group, config=log.settings, mode=mode,
            dir=folder, reinit="finish_previous",
        )  # fmt: skip
        # Stage and step curves have clocks of their own; wandb's counter only orders the calls.
        run.define_metric("stage")
        run.define_metric("stage/*", step_metric="stage")
        run.define_metric("step")
        run.define_metric("step/*", step_metric="step")
        for step, name, value in log.steps:
            run.log({"step": step, f"step/{name}": value})
        for stage, values in log.stages:
            run.log({"stage": stage, **{f"stage/{name}": v for name, v in values.items()}})
        for name, value in (log.stages[-1][1] if log.stages else {}).items():
            run.summary[name] = value
        run.finish()
        names.append(log.name)
    return names
