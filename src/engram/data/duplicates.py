"""Samples that occur twice: in training and test, or more than once in one of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engram.data.dataset import Data
from engram.data.fingerprint import hash_rows
from engram.data.lazy_rows import LazyRows

_CHUNK = 1 << 24  # bytes hashed at a time, so that a memory map is never read whole


def find_repeats(data: Data, train: Tensor | None = None, test: Tensor | None = None) -> Tensor:
    """Those of the `test` rows that have the very input of some `train` row.

    By default the rows of the official split. One pass over the data, kept for the next call;
    equal hashes are compared byte by byte. Images that are decoded as needed are compared by the
    sums of their files, and not at all where no index has those.

    Examples
    --------
    >>> x = torch.arange(12.0).reshape(6, 2)
    >>> data = Data.from_arrays(x, [0, 1] * 3, test=(x[:2], [0, 1]))
    >>> find_repeats(data).tolist()
    [6, 7]
    """
    train = data.train if train is None else train
    train = train[train < len(data.x)]  # copies are not stored, and their sources are here
    test = data.test if test is None else test
    hashes, learnt = _hash_inputs(data), train.unique().cpu().numpy()
    if hashes is None:
        return torch.empty(0, dtype=torch.long)
    unique = test.unique().cpu().numpy()
    twice = unique[_is_among(hashes[unique], hashes[learnt])] if len(learnt) else unique[:0]
    if not len(twice):
        return torch.empty(0, dtype=torch.long)
    alike = learnt[_is_among(hashes[learnt], hashes[twice])]
    seen = {data.stored(torch.tensor([row])).numpy().tobytes() for row in alike.tolist()}
    found = [
        row for row in twice.tolist() if data.stored(torch.tensor([row])).numpy().tobytes() in seen
    ]
    return torch.tensor(found, dtype=torch.long)


def count_shared(data: Data, other: Data) -> int:
    """How many rows of a set have the hash, and so nearly always the input, of one in another set.

    Examples
    --------
    >>> x = torch.arange(12.0).reshape(6, 2)
    >>> one, two = (Data.from_arrays(part, [0] * len(part)) for part in (x, x[:5] + 2))
    >>> count_shared(one, two)
    5
    """
    if data.x.dtype != other.x.dtype or data.sample_shape != other.sample_shape:
        return 0
    mine, others = _hash_inputs(data), _hash_inputs(other)
    same = isinstance(data.x, LazyRows) == isinstance(other.x, LazyRows)  # hashes of files, or rows
    if mine is None or others is None or not same:
        return 0
    return int(_is_among(mine, others).sum())


def count_duplicates(data: Data, rows: Tensor) -> int:
    """How many of some rows have the very input of an earlier one among them.

    Examples
    --------
    >>> x = torch.tensor([[1.0], [2.0], [1.0], [1.0]])
    >>> data = Data.from_arrays(x, [0, 1, 0, 0], test=(x[:2], [0, 1]))
    >>> count_duplicates(data, data.train), count_duplicates(data, data.test)
    (2, 0)
    """
    unique = rows[rows < len(data.x)].unique().cpu().numpy()  # generated copies are not stored
    hashes = _hash_inputs(data)
    if hashes is None:
        return 0
    _, group, size = np.unique(hashes[unique], return_inverse=True, return_counts=True)
    alike = unique[size[group] > 1]
    seen = {data.stored(torch.tensor([row])).numpy().tobytes() for row in alike.tolist()}
    return len(alike) - len(seen)


def _is_among(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """[n] whether each value is one of `others`; ten times as fast as ``np.isin`` here."""
    ordered = np.sort(others)
    place = np.searchsorted(ordered, values).clip(max=len(ordered) - 1)
    found: np.ndarray = ordered[place] == values
    return found


def describe_count(count: int, tests: int) -> str:
    """A count of repeated samples in words.

    Examples
    --------
    >>> describe_count(120, 1000)
    '120 of 1,000 test rows have the same input as a training row'
    """
    return f"{count:,} of {tests:,} test rows have the same input as a training row"


def _hash_inputs(data: Data) -> np.ndarray | None:
    """[N] a 64-bit hash of each row; made once for a Data. None where that would read every file.

    Of its bytes; of rows that are files, of the file, where an index knows it.
    """
    if "_row_hashes" not in data.__dict__:
        known: np.ndarray | None = getattr(data.x, "hashes", None)
        if known is None and not isinstance(data.x, LazyRows):
            step = max(1, _CHUNK // max(1, data.sample_bytes))
            parts = []
            for start in range(0, len(data.x), step):
                rows = data.x[start : start + step]
                array = rows.cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
                parts.append(hash_rows(array))
            known = np.concatenate(parts)
        data.__dict__["_row_hashes"] = known
    found: np.ndarray | None = data.__dict__["_row_hashes"]
    return found
