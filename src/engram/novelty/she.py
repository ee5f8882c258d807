"""Likeness to the mean features of the predicted class (Zhang and others, 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from engram.learner.batch import Batch
from engram.models.forward_pass import Output
from engram.novelty.detector import Facts, OutputDetector, State, mask_logits


@dataclass(frozen=True)
class SHE(OutputDetector):
    """Inner product of features and the mean features of the predicted class.

    Means run over training rows that the network classifies correctly; a class without any has
    product 0. Zhang and others, Out-of-distribution detection based on in-distribution data
    patterns memorization with modern Hopfield energy, ICLR 2023.

    Examples
    --------
    >>> import torch
    >>> output = Output(torch.tensor([[3.0, 1.0]]), torch.tensor([[0.0, 7.0]]))
    >>> state = {"sums": torch.tensor([[9.0, 9.0], [2.0, 4.0]]), "counts": torch.tensor([1, 2])}
    >>> SHE().familiarity(output, torch.zeros(2, 2), torch.tensor([True, True]), state).item()
    5.0
    """

    fits: ClassVar[bool] = True

    def start(self, facts: Facts) -> State:
        like = facts.like.double()
        return {
            "sums": like.new_zeros(facts.columns, facts.features),
            "counts": like.new_zeros(facts.columns),
        }

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        right = mask_logits(output.logits, batch.open).argmax(-1) == batch.target
        w = (right & (batch.w > 0)).double()
        which = F.one_hot(batch.target, len(state["counts"])) * w[:, None]
        sums = state["sums"] + which.mT @ output.features.double()
        return {"sums": sums, "counts": state["counts"] + which.sum(0)}

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        means = state["sums"] / state["counts"].clamp(min=1)[:, None]
        predicted = mask_logits(output.logits, columns).argmax(-1)
        found: Tensor = (output.features * means.to(output.features)[predicted]).sum(-1)
        return found
