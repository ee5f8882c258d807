"""Data for a search of hyper-parameters: validation rows take the place of test rows."""

from __future__ import annotations

from dataclasses import replace

import torch

from engram import keys
from engram.data.core import Data
from engram.errors import bad, choose, number, whole
from engram.shares import part_of
from engram.streams._rows import hold_out


def for_tuning(data: Data, *, share: float = 0.0, by: str | None = None, seed: int = 0) -> Data:
    """The data with its test rows out of reach and validation rows in their place.

    Parameters
    ----------
    share
        Share of the training rows of each class that become test rows. 0: the data's own
        validation rows.
    by
        An attribute such as ``subject``: that share of its values is held out, with all rows.
    seed
        Draws them.

    Examples
    --------
    >>> data = Data.from_arrays([[float(i)] for i in range(40)], [0, 1] * 20)
    >>> data
    Data('data': 32 train, 8 test rows of (1,), 2 classes)
    >>> tuning = for_tuning(data, share=0.25)
    >>> tuning, {*tuning.test.tolist()} <= {*data.train.tolist()}
    (Data('data': 24 train, 8 test rows of (1,), 2 classes), True)
    """
    number("share", share, 0.0, 1.0)
    whole("seed", seed)
    if share == 0:
        if by is not None:
            raise bad("share", f"a share of the values of {by!r}", share)
        if not len(data.valid):
            raise bad("share", f"a share to hold out: {data.name!r} has no validation rows", share)
        return replace(data, test=data.valid, valid=data.valid[:0])
    if by is None:
        kept, held = hold_out(data, data.train, share, seed)
    else:
        kept, held = _apart(data, share, by, seed)
    if not len(kept) or not len(held):
        raise bad("share", "one that leaves rows on both sides", share)
    return replace(data, train=kept, test=held)


def _apart(data: Data, share: float, by: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Training rows (kept, held out) such that no value of an attribute is on both sides."""
    choose("by", by, list(data.attributes))
    value = data.attributes[by][data.train]
    values = value.unique()
    drawn = keys.order(keys.fold(seed, "tuning"), len(values), len(values))
    held = torch.isin(value, values[drawn[: part_of(share, len(values))]])
    return data.train[~held], data.train[held]
