"""Sets that need no files: scikit-learn's digits and Gaussian blobs."""

from __future__ import annotations

import numpy as np
import torch

from engram import keys
from engram.data.dataset import Data
from engram.errors import check_float, check_int


def digits() -> Data:
    """The 1797 real handwritten digits of scikit-learn, uint8 [1, 8, 8], split 80/20 per class.

    The sixteen grey levels 0..16 are stretched to 0..255.

    Examples
    --------
    >>> digits()
    Data('digits': 1442 train, 355 test rows of (1, 8, 8), 10 classes)
    """
    from sklearn.datasets import load_digits

    source = load_digits()
    x = np.round(source.images * (255 / 16)).astype(np.uint8)[:, None]  # [N, 1, 8, 8]
    return Data.from_arrays(x, source.target.astype(np.int64), name="digits")


def blobs(
    *,
    classes: int = 10,
    per_class: int = 100,
    features: int = 16,
    spread: float = 1.0,
    seed: int = 0,
) -> Data:
    """Gaussian classes around random centres; a fifth of each class is for testing.

    Parameters
    ----------
    spread
        Standard deviation within a class; centres are drawn with a deviation of 3.

    Examples
    --------
    >>> blobs(classes=4, per_class=10, features=3)
    Data('blobs': 32 train, 8 test rows of (3,), 4 classes)
    """
    check_int("classes", classes, low=1)
    check_int("per_class", per_class, low=5)  # four rows to train, one to test
    check_int("features", features, low=1)
    check_float("spread", spread)
    key = keys.fold(check_int("seed", seed), "blobs")
    centres = 3.0 * keys.normal(keys.fold(key, "centres"), classes, 1, features)
    noise = keys.normal(keys.fold(key, "noise"), classes, per_class, features)
    x = (centres + spread * noise).flatten(0, 1).float()
    y = torch.arange(classes).repeat_interleave(per_class)
    return Data.from_arrays(x, y, name="blobs")
