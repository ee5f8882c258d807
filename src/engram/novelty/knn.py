"""Distance to the nearest training features (Sun and others, 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import bad, whole
from engram.learner.batch import Batch
from engram.models.output import Output
from engram.novelty import bank
from engram.novelty.base import State
from engram.novelty.facts import Facts
from engram.novelty.outputs import OutputDetector


@dataclass(frozen=True)
class KNN(OutputDetector):
    """Minus the distance of normalised features to the k-th nearest stored training row.

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
        return bank.empty(facts.like, features=facts.features)

    def begin(self, state: State, stage: int) -> State:
        return bank.opened(state, self.keep)

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        rows = {"features": F.normalize(output.features, dim=-1)}
        return bank.added(state, rows, batch, keep=self.keep, word="knn")

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        # in double precision: a matrix product in single loses distances below 3e-4
        seen = F.normalize(output.features.double(), dim=-1)
        far = torch.cdist(seen, state["rows"]["features"].double())
        far = far.masked_fill(state["rank"] <= 0, torch.inf)
        return -far.topk(self.k, largest=False).values[..., -1]
