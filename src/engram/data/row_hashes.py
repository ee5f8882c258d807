"""Hashes of rows, by which equal ones are found."""

from __future__ import annotations

from functools import cache

import numpy as np

from engram.data.arrays import Array

_MIX = np.uint64(0x9E3779B97F4A7C15)


def hash_rows(rows: Array) -> Array:
    """[n] a 64-bit hash of each row's bytes.

    Examples
    --------
    >>> found = hash_rows(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
    >>> (found == found[0]).tolist()
    [True, False, True]
    """
    raw = np.ascontiguousarray(rows.reshape(len(rows), -1)).view(np.uint8).reshape(len(rows), -1)
    weights = _weights(max(1, -(-raw.shape[1] // 8)))
    if raw.shape[1] % 8:
        raw = np.pad(raw, ((0, 0), (0, -raw.shape[1] % 8)))
    words = np.ascontiguousarray(raw).view(np.uint64)
    # high bits must reach low ones: a product alone would lose the signs of pairs of numbers
    words = (words ^ (words >> np.uint64(29))) * _MIX
    words ^= words >> np.uint64(32)
    total: Array = (words * weights).sum(1, dtype=np.uint64)
    return total


@cache
def _weights(count: int) -> Array:
    return np.random.Generator(np.random.PCG64(0)).integers(0, 1 << 64, count, dtype=np.uint64)
