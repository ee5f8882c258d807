"""What to look at before training on a data set: classes, columns, scales."""

from __future__ import annotations

import torch
from torch import Tensor

from engram.data.dataset import Data
from engram.data.standardization import compute_moments

MAX_IMBALANCE = 10  # times as many training rows in the largest class as in the smallest
LARGE_VALUE = 1000.0  # root mean square of a feature that networks have a hard time with
LARGE_PIXEL = 20.0  # the same of pixels: 0 to 255 that were not scaled
MAX_SCALE_RATIO = 1000.0  # times as wide a spread in one feature as in another
_SHOWN = 6
_ROWS = 4096  # enough to judge by
STANDARDIZE_HINT = "standardize=True, on the command line --set standardize=true"


def find_problems(data: Data) -> tuple[str, ...]:
    """Imbalance, constant columns and wild scales of the training rows, in words.

    Examples
    --------
    >>> data = Data.from_arrays([[1.0, i * 1e6] for i in range(36)], [0] * 34 + [1] * 2)
    >>> for line in find_problems(data):
    ...     print(line)
    classes are imbalanced: 28 training rows of '0', 2 of '1'
    1 of 2 features never changes in training rows: 0
    features with extreme scales: 1 (root mean square 2...e+07); standardize=True, ...
    """
    found = [
        describe_imbalance(data),
        describe_constant_columns(data),
        describe_wild_scales(data, data.train),
    ]
    return tuple(one for one in found if one)


def describe_imbalance(data: Data) -> str:
    """How uneven the classes are; nothing where they are not."""
    counts = data.y[data.train].flatten()
    counts = counts[counts >= 0].bincount(minlength=data.n_classes)
    there = counts[counts > 0]
    if not len(there) or int(there.max()) < MAX_IMBALANCE * int(there.min()):
        return ""
    most, least = int(counts.argmax()), int(torch.where(counts > 0, counts, counts.max()).argmin())
    return (
        f"classes are imbalanced: {int(counts[most]):,} training rows of {data.classes[most]!r}, "
        f"{int(counts[least]):,} of {data.classes[least]!r}"
    )


def describe_constant_columns(data: Data) -> str:
    """Which features of vectors are the same in all training rows."""
    if len(data.stored_shape) != 1 or len(data.train) < 2 or data.tokenizer is not None:
        return ""
    first = data.stored(data.train[:1])
    still = torch.ones(data.stored_shape, dtype=torch.bool)
    for rows in data.train.split(_ROWS):
        x = data.stored(rows).cpu()
        same = (x == first.cpu()) | (x.isnan() & first.cpu().isnan())
        still &= same.all(0)
    names = _name_features(data, still)
    if not names:
        return ""
    count = int(still.sum())
    return (f"{count} of {len(still)} features never change{'s' if count == 1 else ''} in training "
            f"rows: {names}")  # fmt: skip


def describe_wild_scales(data: Data, rows: Tensor) -> str:
    """Which features lie on scales that networks do not learn from; nothing where all is well.

    Examples
    --------
    >>> calm = Data.from_arrays([[1.0, 0.5]] * 5, [0] * 5)
    >>> describe_wild_scales(calm, calm.train)
    ''
    """
    if data.mean or data.standardize or str(data.x.dtype).endswith("uint8") or not len(rows):
        return ""
    if data.tokenizer is not None:
        return ""
    step = max(1, len(rows) // _ROWS)
    mean, std = compute_moments(data, data.sources(rows[::step].cpu()))
    size = (mean**2 + std**2).sqrt()
    pixels = len(data.stored_shape) > 2
    if pixels:
        top = float(size.max())
        if top <= LARGE_PIXEL:
            return ""
        remedy = f"uint8 is scaled by 1/255, or {STANDARDIZE_HINT}"
        return f"pixels on a wild scale (root mean square {top:.3g}); {remedy}"
    wide = (std > 0) & (std != 1)  # 1 stands for what does not vary
    narrow = float(std[wide].min()) if bool(wide.any()) else 0.0
    wild = size > LARGE_VALUE
    if narrow:
        wild |= wide & (std > MAX_SCALE_RATIO * narrow)
    names = _name_features(data, wild)
    if not names:
        return ""
    largest = float(size[wild].max())
    return (
        f"features with extreme scales: {names} (root mean square {largest:.3g}); "
        f"{STANDARDIZE_HINT}"
    )


def _name_features(data: Data, which: Tensor) -> str:
    """Features by the names of their columns, or their numbers."""
    places = which.nonzero()[:, 0].tolist()
    known = len(data.columns) == len(which)
    shown = ", ".join(data.columns[i] if known else str(i) for i in places[:_SHOWN])
    return shown + (", ..." if len(places) > _SHOWN else "")
