"""Baseline B1 of the continual novelty detection benchmark: expected cosine."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from engram.errors import bad
from engram.models.forward_pass import Output
from engram.novelty.detector import Facts, OutputDetector, State, mask_logits


@dataclass(frozen=True)
class B1(OutputDetector):
    """Mean cosine between features and class vectors, weighted by the softmax probabilities.

    Norms of features shrink when a network forgets; the angle stays. Needs a last layer without
    bias (``model={"name": ..., "head": {"name": "linear", "bias": False}}``).

    Examples
    --------
    >>> import torch
    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> features = torch.tensor([[3.0, 4.0]])
    >>> output, seen = Output(features, features @ rows.T), torch.ones(3, dtype=torch.bool)
    >>> round(B1().familiarity(output, rows, seen, {}).item(), 6)
    0.745315
    """

    def refuse(self, facts: Facts) -> None:
        refuse_bias(type(self).__name__, facts)

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        return expected_cosine(output, rows, columns)


def refuse_bias(detector: str, facts: Facts) -> None:
    """The angle decides only where nothing is added to it."""
    if facts.bias:
        wanted = "a head without bias, as in model.head={'name': 'linear', 'bias': False},"
        raise bad("model", f"{wanted} for {detector}", "a head with bias")


def expected_cosine(output: Output, rows: Tensor, columns: Tensor) -> Tensor:
    """Compute the sum [B] over classes of probability times cosine."""
    likely = mask_logits(output.logits, columns).softmax(-1)
    return (likely * cosines(output.features, rows)).sum(-1)


def cosines(features: Tensor, rows: Tensor) -> Tensor:
    """Compute cosines [B, C] between features [B, F] and class rows [C, F]."""
    return F.normalize(features, dim=-1) @ F.normalize(rows, dim=-1).mT
