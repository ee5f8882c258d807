"""Distance to the boundaries between classes (Liu and Qin, 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from engram.learner.batch import Batch
from engram.models.forward_pass import Output
from engram.novelty.detector import Facts, State, mask_logits
from engram.novelty.last_layer import LastLayer, LastLayerDetector

SMALLEST = 1e-8  # a distance


@dataclass(frozen=True)
class FDBD(LastLayerDetector):
    """Mean distance to the boundaries of the predicted class, by the distance from the mean.

    The fast decision boundary based detector, fDBD: distances are those of features to the planes
    on which another class is as likely, divided by the distance of features from the mean of
    training rows. Liu and Qin, Fast decision boundary based out-of-distribution detector, ICML
    2024.

    Examples
    --------
    >>> layer = LastLayer(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.zeros(2))
    >>> features = torch.tensor([[3.0, 1.0]])
    >>> output, both = Output(features, layer.logits(features)), torch.tensor([True, True])
    >>> state = {"sums": torch.tensor([3.0, 0.0]), "rows": torch.tensor(1.0)}
    >>> FDBD().rate_features(output, layer, both, state).item()  # (9 - 4) / 5, at a distance of 1
    1.0
    """

    fits: ClassVar[bool] = True

    def start(self, facts: Facts) -> State:
        like = facts.like.double()
        return {"sums": like.new_zeros(facts.features), "rows": like.new_zeros(())}

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        w = (batch.w > 0).double()
        sums = state["sums"] + (output.features.double() * w[:, None]).sum(0)
        return {"sums": sums, "rows": state["rows"] + w.sum()}

    def rate_features(
        self, output: Output, layer: LastLayer, columns: Tensor, state: State
    ) -> Tensor:
        mean = (state["sums"] / state["rows"].clamp(min=1)).to(output.features)
        logits = layer.logits(output.features)
        best, own = mask_logits(logits, columns).max(-1, keepdim=True)
        exact = "donot_use_mm_for_euclid_dist"
        between = torch.cdist(layer.weight, layer.weight, compute_mode=exact)  # [C, C]
        width = between[own[:, 0]].clamp(min=SMALLEST)
        far: Tensor = torch.where(columns, (best - logits) / width, 0.0).sum(-1)
        away = (output.features - mean).norm(dim=-1).clamp(min=SMALLEST)
        found: Tensor = far / (columns.sum() - 1).clamp(min=1) / away
        return found
