"""Small data sets for tests of streams."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engram.data.dataset import Data


def toy(classes: int = 6, rows: int = 20, *, seed: int = 0, **options: object) -> Data:
    """Interleaved classes in a random order, a fifth of each held out as test rows."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(classes), rows))
    x = rng.random((len(y), 3), dtype=np.float32)
    names = [f"class {chr(97 + c)}" for c in range(classes)]
    return Data.from_arrays(x, y, classes=names, **options)  # type: ignore[arg-type]


def renamed(data: Data, ids: list[int]) -> Data:
    """The same data with class c called ids[c]."""
    table = torch.tensor(ids)
    names = [""] * data.n_classes
    for c, name in enumerate(data.classes):
        names[ids[c]] = name
    return Data(x=data.x, y=table[data.y], train=data.train, test=data.test, classes=tuple(names))


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a == b).all())
