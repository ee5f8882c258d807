"""Distance to the nearest training features (Sun and others, 2022), and the bank of rows drawn
at random that detectors keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from engram import keys
from engram.errors import bad, check_int
from engram.learner.batch import Batch
from engram.models.forward_pass import Output
from engram.novelty.detector import Facts, OutputDetector, State


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
    for_label_sets: ClassVar[bool] = True
    by_head: ClassVar[bool] = False
    k: int = 10
    keep: int = 500

    def __post_init__(self) -> None:
        check_int("k", self.k, 1)
        check_int("keep", self.keep, 1)
        if self.k > self.keep:
            raise bad("k", f"at most {self.keep}, the rows kept of a task", self.k)

    @property
    def only_scores(self) -> tuple[str, ...]:
        return ("k",)

    def refuse(self, facts: Facts) -> None:
        if self.k > facts.rows:
            raise bad("k", f"at most {facts.rows}, the training rows of the first task", self.k)

    def start(self, facts: Facts) -> State:
        return make_empty_bank(facts.like, features=facts.features)

    def begin(self, state: State, stage: int) -> State:
        return open_bank(state, self.keep)

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        rows = {"features": F.normalize(output.features, dim=-1)}
        return add_to_bank(state, rows, batch, keep=self.keep, word="knn")

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        # in double precision: a matrix product in single loses distances below 3e-4
        seen = F.normalize(output.features.double(), dim=-1)
        far = torch.cdist(seen, state["rows"]["features"].double())
        far = far.masked_fill(state["rank"] <= 0, torch.inf)
        return -far.topk(self.k, largest=False).values[..., -1]


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
