"""Results handed on to other tools: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

from engram.records.export.live import TOOLS, opener
from engram.records.export.mlflow import to_mlflow
from engram.records.export.tensorboard import to_tensorboard
from engram.records.export.wandb import to_wandb

__all__ = ["TOOLS", "opener", "to_mlflow", "to_tensorboard", "to_wandb"]
