"""Generalised entropy of the probabilities (Liu and others, 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from engram.errors import check_float, check_int
from engram.models.forward_pass import Output
from engram.novelty.detector import OutputDetector, State, mask_logits

SMALLEST = 1e-7  # probabilities are kept as far from 0 and 1


@dataclass(frozen=True)
class GEN(OutputDetector):
    """Minus the mean of p^g (1 - p)^g over the largest probabilities p of the head.

    A small g makes it sensitive to small probabilities far from the largest. Liu and others, GEN:
    pushing the limits of softmax-based out-of-distribution detection, CVPR 2023; there the sum, of
    the same order.

    Parameters
    ----------
    gamma
        g above.
    largest
        Number of probabilities that count; 0: all. The paper: 100 of 1000.

    Examples
    --------
    >>> output = Output(torch.zeros(1, 2), torch.tensor([[0.25, 0.75]]).log())
    >>> seen = torch.ones(2, dtype=torch.bool)
    >>> round(GEN(gamma=0.5).familiarity(output, torch.zeros(2, 2), seen, {}).item(), 6)
    -0.433013
    """

    searched: ClassVar[Mapping[str, Sequence[Any]]] = {"gamma": (0.01, 0.1, 0.5, 1.0, 2.0)}
    gamma: float = 0.1
    largest: int = 0

    def __post_init__(self) -> None:
        check_float("gamma", self.gamma, 0.0, float("inf"), open_low=True)
        check_int("largest", self.largest)

    @property
    def only_scores(self) -> tuple[str, ...]:
        return ("gamma", "largest")

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        likely = mask_logits(output.logits, columns).softmax(-1)
        # those of other heads behind
        likely = torch.where(columns, likely, -1.0).sort(-1, descending=True).values
        if self.largest:
            likely = likely[:, : self.largest]
        counts, p = likely >= 0, likely.clamp(SMALLEST, 1 - SMALLEST)
        terms = torch.where(counts, p**self.gamma * (1 - p) ** self.gamma, 0.0)
        return -terms.sum(-1) / counts.sum(-1).clamp(min=1)
