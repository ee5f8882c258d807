"""Baseline B2 of the continual novelty detection benchmark: B1 and a step to the next class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import bad, check_choice, check_float, check_int
from engram.models.forward_pass import Output
from engram.models.functional_call import differentiate
from engram.novelty.b1 import cosines, expected_cosine, refuse_bias
from engram.novelty.detector import Facts, OutputDetector, State, mask_logits


@dataclass(frozen=True)
class B2(OutputDetector):
    """B1, plus how well features keep their class after a step towards the neighbouring one.

    Parameters
    ----------
    step
        Length of the gradient step.
    rank
        Which class is the neighbour: 2 is the second nearest by cosine.
    logits
        What the step's cross-entropy is of: ``dot`` products, or ``cosine``.
    own
        Which class is the row's own: the ``predicted`` one, of the largest logit, or the
        ``nearest`` by cosine. They differ where rows of the last layer differ in length. A
        predicted class that is the neighbour itself leaves B1 alone.

    Examples
    --------
    >>> rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> features = torch.tensor([[3.0, 4.0]])
    >>> output, seen = Output(features, features @ rows.T), torch.ones(3, dtype=torch.bool)
    >>> round(B2().familiarity(output, rows, seen, {}).item(), 6)
    0.652102
    """

    step: float = 1.0
    rank: int = 2
    logits: str = "dot"
    own: str = "predicted"

    def __post_init__(self) -> None:
        check_float("step", self.step, 0.0, float("inf"))
        check_int("rank", self.rank, 2)
        check_choice("logits", self.logits, ("dot", "cosine"))
        check_choice("own", self.own, ("predicted", "nearest"))

    def refuse(self, facts: Facts) -> None:
        refuse_bias(type(self).__name__, facts)
        if self.rank > facts.columns:
            raise bad("rank", f"at most {facts.columns}, the number of classes", self.rank)

    @property
    def only_scores(self) -> tuple[str, ...]:
        return ("step", "rank", "logits", "own")

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        near = mask_logits(cosines(output.features, rows), columns).topk(self.rank, -1).indices
        own, other = near[..., :1], near[..., -1:]
        if self.own == "predicted":
            own = mask_logits(output.logits, columns).argmax(-1, keepdim=True)
        # a head of fewer classes has no such neighbour: the own class stands in for it
        other = torch.where(columns.to(other)[other] > 0, other, own)

        def away(features: Tensor) -> Tensor:
            dot = self.logits == "dot"
            z = features @ rows.mT if dot else cosines(features, rows)
            likely = mask_logits(z, columns).log_softmax(-1)
            return -likely.gather(-1, other).sum()

        moved = output.features - self.step * differentiate(away)(output.features)
        after = F.normalize(moved, dim=-1) @ F.normalize(rows, dim=-1).mT
        stays = after.gather(-1, own) - after.gather(-1, other)
        return expected_cosine(output, rows, columns) + stays[..., 0]
