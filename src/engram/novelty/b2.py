"""Baseline B2 of the continual novelty detection benchmark: B1 and steps to the next classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from engram.errors import bad, check_choice, check_float, check_int
from engram.models.forward_pass import Output
from engram.models.functional_call import differentiate
from engram.novelty.b1 import cosines, expected_cosine, refuse_bias
from engram.novelty.detector import Facts, OutputDetector, State, mask_logits


@dataclass(frozen=True)
class B2(OutputDetector):
    """B1, plus how well features keep their class after a step towards a neighbouring one.

    The defaults are the text of the paper; its authors' code is
    ``B2(logits="cosine", own="nearest", neighbours=n)``, with `step` and n tuned outside.

    Parameters
    ----------
    step
        Length of the gradient step.
    rank
        Which class is the (first) neighbour: 2 is the second nearest by cosine.
    neighbours
        Number of neighbours, from `rank` on; each has a step of its own, and the mean is added.
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
    neighbours: int = 1
    logits: str = "dot"
    own: str = "predicted"

    searched: ClassVar[Mapping[str, Sequence[Any]]] = {
        "step": (0.01, 0.1, 1.0, 10.0), "neighbours": (1, 3),
    }  # fmt: skip

    def __post_init__(self) -> None:
        check_float("step", self.step, 0.0, float("inf"))
        check_int("rank", self.rank, 2)
        check_int("neighbours", self.neighbours, 1)
        check_choice("logits", self.logits, ("dot", "cosine"))
        check_choice("own", self.own, ("predicted", "nearest"))

    def refuse(self, facts: Facts) -> None:
        refuse_bias(type(self).__name__, facts)
        if self._last > facts.columns:
            most = f"at most {facts.columns}, the number of classes, for the last neighbour"
            raise bad("rank + neighbours - 1", most, self._last)

    @property
    def _last(self) -> int:
        """The rank of the last neighbour."""
        return self.rank + self.neighbours - 1

    @property
    def only_scores(self) -> tuple[str, ...]:
        return ("step", "rank", "neighbours", "logits", "own")

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        near = mask_logits(cosines(output.features, rows), columns).topk(self._last, -1).indices
        own, others = near[..., :1], near[..., self.rank - 1 :]
        if self.own == "predicted":
            own = mask_logits(output.logits, columns).argmax(-1, keepdim=True)
        # a head of fewer classes lacks some of these neighbours
        there = columns.to(others)[others] > 0
        kept = [
            torch.where(seen, self._margin(output, rows, columns, own, other), 0.0)
            for other, seen in zip(others.split(1, -1), there.split(1, -1), strict=True)
        ]
        stays = torch.cat(kept, -1).sum(-1) / there.sum(-1).clamp(min=1)
        return expected_cosine(output, rows, columns) + stays

    def _margin(
        self, output: Output, rows: Tensor, columns: Tensor, own: Tensor, other: Tensor
    ) -> Tensor:
        """By how much [B, 1] the own class is nearer than another one after a step towards it."""

        def away(features: Tensor) -> Tensor:
            dot = self.logits == "dot"
            z = features @ rows.mT if dot else cosines(features, rows)
            likely = mask_logits(z, columns).log_softmax(-1)
            return -likely.gather(-1, other).sum()

        moved = output.features - self.step * differentiate(away)(output.features)
        after = cosines(moved, rows)
        return after.gather(-1, own) - after.gather(-1, other)
