"""A bank of rows for detectors: at most so many of every class, a uniform sample of all rows of the
class that were offered, drawn by keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engram import keys
from engram.learner.batch import Batch

PER_CLASS = 50  # rows of every class that a detector keeps


def make_class_bank(like: Tensor, columns: int, size: int, **widths: int) -> dict[str, Any]:
    """Make an empty bank of `size` rows for every class, with values of the given widths."""
    rows = {name: like.new_zeros(columns, size, width) for name, width in widths.items()}
    return {
        "rows": rows, "rank": like.new_zeros(columns, size),  # 0 marks an empty place
        "offered": like.new_zeros((), dtype=torch.long),
    }  # fmt: skip


def add_to_class_bank(
    bank: Mapping[str, Any], rows: Mapping[str, Tensor], batch: Batch, word: str
) -> dict[str, Any]:
    """Offer the rows [B, ...] of a batch; of every class, those of the highest random ranks stay.

    Examples
    --------
    >>> bank, some = make_class_bank(torch.zeros(1), 3, 2, x=1), torch.arange(5.0)
    >>> none = torch.zeros(5)
    >>> batch = Batch(none, torch.tensor([0, 0, 2, 0, 2])[:, None], none + 1, *[none] * 7)
    >>> bank = add_to_class_bank(bank, {"x": some[:, None]}, batch._replace(now=none[0]), "some")
    >>> (bank["rank"] > 0).sum(-1).tolist(), bank["rows"]["x"][2, :, 0].sort().values.tolist()
    ([2, 0, 2], [2.0, 4.0])
    """
    real, (columns, size) = batch.w > 0, bank["rank"].shape
    place = bank["offered"] + torch.arange(len(real), device=real.device)
    key = keys.fold(batch.now.long(), word, place)
    drawn = keys.uniform(key, 1)[..., 0].to(bank["rank"]).clamp(min=1e-6) * real
    classes = torch.arange(columns, device=real.device)
    of = torch.cat([classes.repeat_interleave(size), batch.target])
    rank = torch.cat([bank["rank"].flatten(), drawn])
    order = rank.argsort(descending=True, stable=True)
    order = order[of[order].argsort(stable=True)]  # by class, then from the highest rank
    counts = F.one_hot(of, columns).sum(0)  # at least `size`: the places of the bank are among them
    first = counts.cumsum(0) - counts
    stay = order[(first[:, None] + torch.arange(size, device=real.device)).flatten()]
    kept = {}
    for name, old in bank["rows"].items():
        new = rows[name].to(old) * real[:, None]
        kept[name] = torch.cat([old.flatten(0, 1), new])[stay].reshape(old.shape)
    return {
        "rows": kept, "rank": rank[stay].reshape(columns, size),
        "offered": bank["offered"] + real.sum(),
    }  # fmt: skip


def masked_quantile(values: Tensor, counts: Tensor, share: float) -> Tensor:
    """Compute the quantile [] of those values that count, by linear interpolation; else infinity.

    Examples
    --------
    >>> values, counts = torch.tensor([3.0, 9.0, 1.0, 2.0]), torch.tensor([True, False, True, True])
    >>> masked_quantile(values, counts, 0.75).item()
    2.5
    """
    values, counts = values.flatten(), counts.flatten()
    ordered = values.masked_fill(~counts, torch.inf).sort().values
    place = share * (counts.sum() - 1).clamp(min=0).double()
    low, high = place.floor().long(), place.ceil().long()
    ends = ordered.gather(0, torch.stack([low, high])).double()
    part = torch.where(low == high, 0.0, (place - low) * (ends[1] - ends[0]))
    return (ends[0] + part).to(values)
