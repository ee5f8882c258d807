"""Nearest typical probabilities (Hendrycks and others, 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.learner.batch import Batch
from engram.models.forward_pass import Output
from engram.novelty.detector import Facts, OutputDetector, State, mask_logits


@dataclass(frozen=True)
class KLMatching(OutputDetector):
    """Minus the divergence of the probabilities from those typical of a class, for the nearest one.

    Typical is the mean over training rows that are predicted as the class; a probability of 0
    counts as the smallest positive number. Hendrycks and others, Scaling out-of-distribution
    detection for real-world settings, ICML 2022, where the rows are validation rows.

    Examples
    --------
    >>> output = Output(torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]).log())
    >>> state = {"sums": torch.tensor([[1.8, 0.2], [0.0, 0.0]]), "counts": torch.tensor([2.0, 0.0])}
    >>> both = torch.tensor([True, True])
    >>> round(KLMatching().familiarity(output, torch.zeros(2, 2), both, state).item(), 6)
    -0.510826
    """

    fits: ClassVar[bool] = True

    def start(self, facts: Facts) -> State:
        like = facts.like.double()
        return {
            "sums": like.new_zeros(facts.columns, facts.columns),
            "counts": like.new_zeros(facts.columns),
        }

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        likely = mask_logits(output.logits, batch.open).softmax(-1).double()
        w = (batch.w > 0).double()
        which = F.one_hot(likely.argmax(-1), len(state["counts"])) * w[:, None]
        return {
            "sums": state["sums"] + which.mT @ likely, "counts": state["counts"] + which.sum(0)
        }  # fmt: skip

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        known = (state["counts"] > 0) & columns
        typical = (state["sums"] / state["counts"].clamp(min=1)[:, None]).to(output.logits)
        typical = typical.clamp(min=torch.finfo(typical.dtype).tiny).log()  # [k, C]
        likely = mask_logits(output.logits, columns).softmax(-1)
        own = torch.special.entr(likely).sum(-1, keepdim=True)
        nearest: Tensor = (own + likely @ typical.mT).masked_fill(~known, -torch.inf).amax(-1)
        return nearest.nan_to_num(neginf=0.0)  # nothing is known yet
