"""Hashes of data: one over all arrays and facts, and one for each row."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from engram.data.conversion import Array, Inputs

_CHUNK = 4096  # rows hashed at a time, so that a memory map is never read whole


def hash_content(facts: Any, parts: Sequence[Inputs]) -> str:
    """16 hexadecimal digits over plain values and the contents of arrays.

    Examples
    --------
    >>> import torch
    >>> hash_content("a", [torch.zeros(3)]) == hash_content("a", [np.zeros(3, np.float32)])
    True
    """
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=8)
    for part in parts:
        array: Any = part.cpu().numpy() if isinstance(part, Tensor) else part
        digest.update(str((array.shape, array.dtype)).encode())
        if known := getattr(array, "identity", ""):  # what stays on disk is not read for this
            digest.update(known.encode())
            continue
        # rows that are one and the same in memory, as those of an index, are read once
        length = len(array) if len(array) and array.strides[0] else min(len(array), 1)
        for start in range(0, length, _CHUNK):
            end = min(start + _CHUNK, length)
            digest.update(np.ascontiguousarray(array[start:end]).data)
    return digest.hexdigest()


class ContentSums(NamedTuple):
    """What is written beside inputs, so that they need not be read to be known."""

    inputs: str  # of the inputs alone
    rest: str  # of everything else
    whole: str  # of all of it: the fingerprint that the same data has in memory


class RunningSums:
    """Works out `ContentSums` while inputs pass by, before the rest is known.

    Examples
    --------
    >>> x, y = np.arange(6, dtype=np.uint8).reshape(3, 2), np.zeros(3)
    >>> summing = RunningSums("facts", x.shape, x.dtype)
    >>> for row in x:
    ...     summing.add(row)
    >>> summing.sums("facts", [y]).whole == hash_content("facts", [x, y])
    True
    """

    def __init__(self, facts: Any, shape: tuple[int, ...], dtype: Any) -> None:
        self._whole = hashlib.blake2b(repr(facts).encode(), digest_size=8)
        self._whole.update(str((shape, np.dtype(dtype))).encode())
        self._inputs = hashlib.blake2b(digest_size=16)
        self._facts = repr(facts)

    def add(self, chunk: Any) -> None:
        """The next rows."""
        raw = np.ascontiguousarray(chunk).data
        self._whole.update(raw)
        self._inputs.update(raw)

    def sums(self, facts: Any, parts: Sequence[Inputs]) -> ContentSums:
        """After the last row: with all other parts of the data, and facts as they turned out."""
        whole = self._whole.copy() if repr(facts) == self._facts else None
        for part in parts:
            array: Any = part.cpu().numpy() if isinstance(part, Tensor) else part
            if whole is not None:
                whole.update(str((array.shape, array.dtype)).encode())
                whole.update(np.ascontiguousarray(array).data)
        found = "" if whole is None else whole.hexdigest()
        return ContentSums(self._inputs.hexdigest(), hash_content(facts, parts), found)


def data_fingerprint(facts: Any, parts: Sequence[Inputs]) -> str:
    """`hash_content`, or what was worked out as the inputs, the first part, were written."""
    sums: ContentSums | None = getattr(parts[0], "sums", None)
    if sums is not None and sums.whole and sums.rest == hash_content(facts, parts[1:]):
        return sums.whole
    return hash_content(facts, parts)


# ------------------------------------------------------------------------------------------------
# Hashes of rows, by which equal ones are found

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
