"""Distance to the nearest training features (Sun and others, 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engram import keys
from engram.errors import bad, whole
from engram.learner.batch import Batch
from engram.models.output import Output
from engram.novelty.base import OutputDetector, State
from engram.novelty.facts import Facts


@dataclass(frozen=True)
class KNN(OutputDetector):
    """Minus the distance of normalised features to the k-th nearest kept training row.

    Features of earlier tasks stay as they were when their task was learnt.

    Parameters
    ----------
    k
        Which neighbour counts.
    keep
        Rows kept of every task, drawn at random.
    """

    fits: ClassVar[bool] = True
    by_head: ClassVar[bool] = False
    k: int = 10
    keep: int = 500

    def __post_init__(self) -> None:
        whole("k", self.k, 1)
        whole("keep", self.keep, 1)
        if self.k > self.keep:
            raise bad("k", f"at most {self.keep}, the rows kept of a task", self.k)

    @property
    def only_scores(self) -> tuple[str, ...]:
        return ("k",)

    def refuse(self, facts: Facts) -> None:
        if self.k > facts.rows:
            raise bad("k", f"at most {facts.rows}, the training rows of the first task", self.k)

    def start(self, facts: Facts) -> State:
        empty = facts.like.new_zeros
        return {"bank": empty(0, facts.features), "rank": empty(0), "count": empty(())}

    def begin(self, state: State, stage: int) -> State:
        """Room for the rows of another task; rank 0 is an empty place."""
        bank, rank = state["bank"], state["rank"]
        return {
            "bank": torch.cat([bank, bank.new_zeros(self.keep, bank.shape[1])]),
            "rank": torch.cat([rank, rank.new_zeros(self.keep)]),
            "count": torch.zeros_like(state["count"]),
        }

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        real = batch.w > 0
        features = F.normalize(output.features, dim=-1) * real[:, None]
        # a draw per row, from its place among the task's rows: those drawn highest are kept
        place = state["count"] + torch.arange(len(features), device=features.device)
        key = keys.fold(batch.now, "knn", place.long())
        drawn = keys.uniform(key, 1)[..., 0].to(features).clamp(min=1e-6) * real
        rank = torch.cat([state["rank"][-self.keep :], drawn])
        order = rank.topk(self.keep).indices
        fresh = torch.cat([state["bank"][-self.keep :], features]).index_select(0, order)
        return {
            "bank": torch.cat([state["bank"][: -self.keep], fresh]),
            "rank": torch.cat([state["rank"][: -self.keep], rank.index_select(0, order)]),
            "count": state["count"] + real.sum().to(state["count"]),
        }

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        # in double precision: a matrix product in single loses distances below 3e-4
        seen = F.normalize(output.features.double(), dim=-1)
        far = torch.cdist(seen, state["bank"].double())
        far = far.masked_fill(state["rank"] <= 0, torch.inf)
        return -far.topk(self.k, largest=False).values[..., -1]
