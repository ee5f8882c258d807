"""The tools that can be told of runs while they train, by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from engram.errors import choose
from engram.records.export.logs import RunLog, need
from engram.records.export.mlflow import MLflowRun, mlflow_client
from engram.records.export.sink import Sink
from engram.records.export.tensorboard import TensorBoardRun
from engram.records.export.wandb import WandbRun

Opener = Callable[[RunLog], Sink]
TOOLS = ("tensorboard", "wandb", "mlflow")


def opener(tool: str, folder: str | os.PathLike[str]) -> Opener:
    """What opens a run in a tool; files of the tool lie in `folder`.

    Refused at once where its package is missing. The tools' own variables count: ``WANDB_MODE``
    (offline unless it says otherwise) and ``WANDB_PROJECT``, ``MLFLOW_TRACKING_URI`` (a file
    ``mlflow.db`` in `folder` unless it says otherwise) and ``MLFLOW_EXPERIMENT_NAME``.
    """
    choose("log", tool, TOOLS)
    place = Path(folder)
    if tool == "tensorboard":
        need("tensorboard")
        return lambda log: TensorBoardRun(log, place / "tensorboard")
    place.mkdir(parents=True, exist_ok=True)
    if tool == "wandb":
        need("wandb")
        project, mode = os.environ.get("WANDB_PROJECT"), os.environ.get("WANDB_MODE")
        return lambda log: WandbRun(
            log, project=project or "engram", mode=mode or "offline", path=place
        )
    need("mlflow")
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{place.absolute() / 'mlflow.db'}"
    client, known = mlflow_client(os.environ.get("MLFLOW_EXPERIMENT_NAME") or "engram", uri)
    return lambda log: MLflowRun(log, client=client, experiment_id=known)
