"""Relative Mahalanobis distance (Ren and others, 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import check_float
from engram.learner.batch import Batch
from engram.models.forward_pass import Output
from engram.novelty.detector import Facts, OutputDetector, State
from engram.novelty.mahalanobis import (
    add_to_sums,
    invert_covariance,
    make_empty_statistics,
    nearest_distance,
    update_gaussians,
)


@dataclass(frozen=True)
class RMD(OutputDetector):
    """Squared distance from all training rows, less that from the nearest class.

    Both are Mahalanobis distances of features: with the covariance within classes from the class
    mean, as in `Mahalanobis`, and with that of all rows from their mean, in which directions count
    little that tell no classes apart. All classes compete, whatever the head. Ren and others, A
    simple fix to Mahalanobis distance for improving near-OOD detection, 2021.

    Parameters
    ----------
    shrink
        As in `Mahalanobis`, for both covariances.
    """

    fits: ClassVar[bool] = True
    by_head: ClassVar[bool] = False
    shrink: float = 0.0

    def __post_init__(self) -> None:
        check_float("shrink", self.shrink, 0.0, float("inf"))

    def start(self, facts: Facts) -> State:
        like, f = facts.like.double(), facts.features
        empty = like.new_zeros
        whole = {"sum": empty(f), "squares": empty(f, f), "rows": empty(()),
                 "precision": empty(f, f)}  # fmt: skip
        return {"classes": make_empty_statistics(like, facts.columns, f), "whole": whole}

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        features, whole = output.features.double(), state["whole"]
        w = (batch.w > 0).to(features)
        which = F.one_hot(batch.target, len(state["classes"]["counts"])).to(features) * w[:, None]
        weighted = features * w[:, None]
        return {
            "classes": add_to_sums(state["classes"], features, which, w),
            "whole": {
                **whole, "sum": whole["sum"] + weighted.sum(0), "rows": whole["rows"] + w.sum(),
                "squares": whole["squares"] + weighted.mT @ features,
            },
        }  # fmt: skip

    def finish(self, state: State) -> State:
        whole = state["whole"]
        rows = whole["rows"].clamp(min=1)
        mean = whole["sum"] / rows
        covariance = whole["squares"] / rows - torch.outer(mean, mean)
        precision = invert_covariance(covariance, self.shrink)
        return {
            "classes": update_gaussians(state["classes"], self.shrink),
            "whole": {**whole, "precision": precision},
        }

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        whole = state["whole"]
        away = output.features.double() - whole["sum"] / whole["rows"].clamp(min=1)
        from_all: Tensor = ((away @ whole["precision"]) * away).sum(-1)
        return 2 * nearest_distance(output.features, state["classes"]) + from_all
