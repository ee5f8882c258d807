"""A hash over arrays and plain facts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from engram.data.arrays import Inputs

_CHUNK = 4096  # rows hashed at a time, so that a memory map is never read whole


def hashed(facts: Any, parts: Sequence[Inputs]) -> str:
    """16 hexadecimal digits over plain values and the contents of arrays.

    Examples
    --------
    >>> import torch
    >>> hashed("a", [torch.zeros(3)]) == hashed("a", [np.zeros(3, np.float32)])
    True
    """
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=8)
    for part in parts:
        array = part.cpu().numpy() if isinstance(part, Tensor) else part
        digest.update(str((array.shape, array.dtype)).encode())
        # rows that are one and the same in memory, as those of an index, are read once
        length = len(array) if len(array) and array.strides[0] else min(len(array), 1)
        for start in range(0, length, _CHUNK):
            end = min(start + _CHUNK, length)
            digest.update(np.ascontiguousarray(array[start:end]).data)
    return digest.hexdigest()
