"""Energy guided by the nearest training rows (Park and others, 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import bad, check_int
from engram.learner.batch import Batch
from engram.models.forward_pass import Output
from engram.novelty.class_bank import PER_CLASS, add_to_class_bank, make_class_bank
from engram.novelty.detector import Facts, OutputDetector, State, mask_logits


@dataclass(frozen=True)
class NNGuide(OutputDetector):
    """Energy times the mean likeness to the nearest training rows, weighted by their energies.

    The likeness is the cosine of the features. Rows of classes that the head does not have are left
    out. Park, Jung and Teoh, Nearest neighbor guidance for out-of-distribution detection, ICCV
    2023.

    Parameters
    ----------
    k
        Number of nearest rows.
    per_class
        Rows kept of every class, drawn at random.

    Examples
    --------
    >>> output = Output(torch.tensor([[3.0, 4.0]]), torch.tensor([[5.0]]))
    >>> bank = {
    ...     "rows": {"features": torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])},
    ...     "rank": torch.ones(1, 2),
    ... }
    >>> guide = NNGuide(k=1, per_class=2)  # 0.6 of an energy of 2 is more than 0.8 of 1
    >>> round(guide.familiarity(output, torch.zeros(1, 2), torch.tensor([True]), bank).item(), 6)
    6.0
    """

    fits: ClassVar[bool] = True
    for_label_sets: ClassVar[bool] = True
    k: int = 10
    per_class: int = PER_CLASS

    def __post_init__(self) -> None:
        check_int("k", self.k, 1)
        check_int("per_class", self.per_class, 1)
        if self.k > self.per_class:
            raise bad("k", f"at most {self.per_class}, the rows kept of a class", self.k)

    @property
    def only_scores(self) -> tuple[str, ...]:
        return ("k",)

    def start(self, facts: Facts) -> State:
        return make_class_bank(facts.like, facts.columns, self.per_class, features=facts.features)

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        energy = mask_logits(output.logits, batch.open).logsumexp(-1, keepdim=True)
        rows = {"features": F.normalize(output.features, dim=-1) * energy}
        return add_to_class_bank(state, rows, batch, "nnguide")

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        there = ((state["rank"] > 0) & columns[:, None]).flatten()
        bank = state["rows"]["features"].to(output.features).flatten(0, 1)
        like = F.normalize(output.features, dim=-1) @ bank.mT
        near = like.masked_fill(~there, -torch.inf).topk(self.k).values
        real = near > -torch.inf
        guide: Tensor = torch.where(real, near, 0.0).sum(-1) / real.sum(-1).clamp(min=1)
        return guide * mask_logits(output.logits, columns).logsumexp(-1)
