"""Some rows of every task, drawn at random as they come by: what detectors keep of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engram import keys
from engram.learner.batch import Batch

State = Mapping[str, Any]


def empty(like: Tensor, **widths: int) -> dict[str, Any]:
    """A bank of no rows; what it will keep of each, and how wide."""
    rows = {name: like.new_zeros(0, width) for name, width in widths.items()}
    return {"rows": rows, "rank": like.new_zeros(0), "count": like.new_zeros(())}


def opened(bank: State, keep: int) -> dict[str, Any]:
    """Room for the rows of another task; rank 0 is an empty place."""
    rows, rank = bank["rows"], bank["rank"]
    more = {k: torch.cat([v, v.new_zeros(keep, v.shape[1])]) for k, v in rows.items()}
    rank = torch.cat([rank, rank.new_zeros(keep)])
    return {"rows": more, "rank": rank, "count": torch.zeros_like(bank["count"])}


def added(
    bank: State, rows: Mapping[str, Tensor], batch: Batch, *, keep: int, word: str
) -> dict[str, Any]:
    """With rows [B, ...] of a batch: those drawn highest by a key of task and place are kept."""
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
