"""Distance to the nearest training features (Sun and others, 2022), and the bank of rows drawn
at random that detectors keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engram import keys
from engram.errors import bad, check_int
from engram.learner.batch import Batch
from engram.models.forward_pass import Output
from engram.novelty.class_bank import PER_CLASS, add_to_class_bank, make_class_bank
from engram.novelty.detector import Detector, Facts, OutputDetector, State


@dataclass(frozen=True)
class KNN(OutputDetector):
    """Minus the distance of normalised features to the k-th nearest stored training row.

    Features of earlier tasks stay as they were when their task was learnt, unless ``refit`` is
    ``memory``.

    Parameters
    ----------
    k
        Which neighbour counts; of fewer rows, the farthest.
    keep
        Rows kept of every task, drawn at random.
    per_class
        Rows kept of every class in place of those of every task, whatever the number of tasks: a
        random sample of all rows of the class. 0: none, as in `keep`.

    Examples
    --------
    >>> KNN(k=1, per_class=20, refit="memory").name
    'knn refit=memory k=1 per_class=20'
    """

    fits: ClassVar[bool] = True
    for_label_sets: ClassVar[bool] = True
    by_head: ClassVar[bool] = False
    k: int = 10
    keep: int = 500
    per_class: int = 0

    def __post_init__(self) -> None:
        check_int("k", self.k, 1)
        check_int("keep", self.keep, 1)
        check_int("per_class", self.per_class)
        most = self.per_class or self.keep
        if self.k > most:
            what = "class" if self.per_class else "task"
            raise bad("k", f"at most {most}, the rows kept of a {what}", self.k)

    @property
    def only_scores(self) -> tuple[str, ...]:
        return ("k",)

    def refuse(self, facts: Facts) -> None:
        if self.k > facts.rows:
            raise bad("k", f"at most {facts.rows}, the training rows of the first task", self.k)

    def limit_rows(self) -> Detector:
        return self if self.per_class else replace(self, per_class=max(self.k, PER_CLASS))

    def start(self, facts: Facts) -> State:
        if self.per_class:
            return make_class_bank(
                facts.like, facts.columns, self.per_class, features=facts.features
            )
        return make_empty_bank(facts.like, features=facts.features)

    def begin(self, state: State, stage: int) -> State:
        return state if self.per_class else open_bank(state, self.keep)

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        rows = {"features": F.normalize(output.features, dim=-1)}
        if self.per_class:
            return add_to_class_bank(state, rows, batch, "knn")
        return add_to_bank(state, rows, batch, keep=self.keep, word="knn")

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        # in double precision: a matrix product in single loses distances below 3e-4
        seen = F.normalize(output.features.double(), dim=-1)
        bank, there = state["rows"]["features"].double(), state["rank"].flatten() > 0
        far = torch.cdist(seen, bank.flatten(0, -2)).masked_fill(~there, torch.inf)
        place = there.sum().clamp(1, self.k) - 1
        nearest = far.topk(self.k, largest=False).values
        return -nearest.index_select(-1, place[None])[..., 0]


# -- A bank of rows drawn at random from every task ------------------------------------------------

BankState = Mapping[str, Any]


def make_empty_bank(like: Tensor, **widths: int) -> dict[str, Any]:
    """Make an empty bank for values of the given widths."""
    rows = {name: like.new_zeros(0, width) for name, width in widths.items()}
    return {"rows": rows, "rank": like.new_zeros(0), "count": like.new_zeros(())}


def open_bank(bank: BankState, keep: int) -> dict[str, Any]:
    """Add room for the rows of another task; rank 0 marks an empty slot."""
    rows, rank = bank["rows"], bank["rank"]
    more = {k: torch.cat([v, v.new_zeros(keep, v.shape[1])]) for k, v in rows.items()}
    rank = torch.cat([rank, rank.new_zeros(keep)])
    return {"rows": more, "rank": rank, "count": torch.zeros_like(bank["count"])}


def add_to_bank(
    bank: BankState, rows: Mapping[str, Tensor], batch: Batch, *, keep: int, word: str
) -> dict[str, Any]:
    """Add rows [B, ...] of a batch; those with the highest keyed random ranks are kept."""
    real, size = batch.w > 0, keep
    place = bank["count"] + torch.arange(len(real), device=real.device)
    key = keys.fold(batch.now, word, place.long())
    drawn = keys.uniform(key, 1)[..., 0].to(bank["rank"]).clamp(min=1e-6) * real
    rank = torch.cat([bank["rank"][-size:], drawn])
    order = rank.topk(size).indices
    kept = {}
    for name, old in bank["rows"].items():
        new = rows[name].to(old) * real[:, None]
        fresh = torch.cat([old[-size:], new]).index_select(0, order)
        kept[name] = torch.cat([old[:-size], fresh])
    rank = torch.cat([bank["rank"][:-size], rank.index_select(0, order)])
    return {"rows": kept, "rank": rank, "count": bank["count"] + real.sum().to(bank["count"])}
