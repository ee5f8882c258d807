"""Means and standard deviations of channels: fitted to a stream's first task, or set by the
user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engram.data.dataset import Data
from engram.errors import bad, check_float

_CHUNK = 4096  # rows read at a time, so that a memory map is never read whole


class Moments(NamedTuple):
    """Of each channel: mean, standard deviation."""

    mean: Tensor
    std: Tensor


def fit_standardization(data: Data, rows: Tensor) -> Data:
    """The data as a stream sees it whose first task trains on `rows`.

    With `Data.standardize` every feature has mean 0 and standard deviation 1 over these rows; one
    that does not vary among them is only shifted. With `Data.fill`, means stand in place of nan.
    Padding of series does not count. Streams over equal first tasks share what is made here.

    Examples
    --------
    >>> raw = Data.from_arrays(
    ...     [[1.0], [3.0], [50.0]], [0, 0, 1], test=([[1.0]], [0]), standardize=True
    ... )
    >>> seen = fit_standardization(raw, torch.tensor([0, 1]))
    >>> seen.mean, seen.std, seen.fingerprint() == raw.fingerprint()
    ((2.0,), (1.0,), True)
    """
    if not (data.standardize or data.fill) or "_unfitted" in data.__dict__:
        return data
    found = compute_moments(data, data.sources(rows.cpu()))
    key = (tuple(found.mean.tolist()), tuple(found.std.tolist()))
    known: dict[Any, Data] = data.__dict__.setdefault("_fitted", {})
    if key not in known:
        changes: dict[str, Any] = {"mean": key[0], "std": key[1]} if data.standardize else {}
        if data.fill and isinstance(data.x, Tensor):
            means = found.mean.to(data.x.dtype).reshape(_shape(data))
            changes["x"] = torch.where(data.x.isnan(), means, data.x)
        new = replace(data, **changes)
        object.__setattr__(new, "source", data.source)
        new.__dict__["_unfitted"] = data
        known[key] = new
    return known[key]


def undo_standardization(data: Data) -> Data:
    """The data before a stream fitted anything to its first task."""
    found: Data = data.__dict__.get("_unfitted", data)
    return found


def filled_values(data: Data) -> tuple[float, ...]:
    """What a stream put in place of nan, for each feature; nothing where it filled none.

    Examples
    --------
    >>> raw = Data.from_arrays([[1.0], [3.0]], [0, 0], test=([[1.0]], [0]), fill=True)
    >>> filled_values(fit_standardization(raw, torch.tensor([0, 1]))), filled_values(raw)
    ((2.0,), ())
    """
    if not data.fill:
        return ()
    known: dict[Any, Data] = undo_standardization(data).__dict__.get("_fitted", {})
    return next((key[0] for key, made in known.items() if made is data), ())


def compute_moments(data: Data, rows: Tensor) -> Moments:
    """Mean and standard deviation of each channel over some rows, without nan and padding.

    Examples
    --------
    >>> data = Data.from_series([[1.0], [2.0, 3.0]], [0, 0], test=([[1.0]], [0]))
    >>> compute_moments(data, torch.tensor([0, 1])).mean.tolist()
    [2.0]
    """
    total = square = count = torch.zeros(())
    for some in rows.split(_CHUNK) if len(rows) else (rows,):
        x, there = _values(data, some)
        axes = [axis for axis in range(x.ndim) if axis != 1 + _axis(data)]
        count = count + there.sum(axes)
        total = total + (x * there).sum(axes)
    count = count.clamp(min=1)
    mean = total / count
    for some in rows.split(_CHUNK) if len(rows) else (rows,):
        x, there = _values(data, some)
        axes = [axis for axis in range(x.ndim) if axis != 1 + _axis(data)]
        square = square + (((x - mean.reshape(_shape(data))) * there) ** 2).sum(axes)
    std = (square / count).sqrt()
    # what does not vary, up to rounding of float32, is not to be blown up
    still = std <= 1e-6 * mean.abs().clamp(min=1e-12)
    return Moments(mean, torch.where(still, 1.0, std))


def _axis(data: Data) -> int:
    """The axis of a sample that has the features: the last one of series [T, F]."""
    return 1 if len(data.stored_shape) == 2 else 0


def _shape(data: Data) -> tuple[int, ...]:
    return tuple(-1 if axis == _axis(data) else 1 for axis in range(len(data.stored_shape)))


def _values(data: Data, rows: Tensor) -> tuple[Tensor, Tensor]:
    """float64 inputs before normalisation, 0 in place of nan, and whether each one is there."""
    x = data.stored(rows).cpu()
    x = x.double() / 255 if x.dtype == torch.uint8 else x.double()
    there = ~x.isnan()
    if "length" in data.attributes and len(data.stored_shape) == 2:
        padded = (x == 0).all(2, keepdim=True)
        steps = torch.arange(x.shape[1])
        short = data.attributes["length"][rows].cpu()[:, None]
        front = steps < x.shape[1] - short
        back = steps >= short
        # whichever end is padded: a padded step is 0 throughout
        there &= ~(padded & (front | back)[..., None])
    return x.nan_to_num(), there


# ------------------------------------------------------------------------------------------------
# Normalisation by given numbers


def with_normalization(data: Data, mean: Any, std: Any) -> Data:
    """The data with another mean and standard deviation of its channels.

    Examples
    --------
    >>> data = Data.from_arrays([[[[0.1]]]] * 5, ["a"] * 5)
    >>> with_normalization(data, [0.5], [0.25]).std
    (0.25,)
    """
    channels = data.sample_shape[0] if data.sample_shape else 1
    for name, values in (("mean", mean), ("std", std)):
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise bad(name, "a list of numbers, one for each channel", values)
        if len(values) not in (1, channels):
            raise bad(name, f"{channels} numbers, one for each channel of {data.name!r}", values)
        for value in values:
            low = 0.0 if name == "std" else float("-inf")
            check_float(name, value, low, open_low=name == "std")
    if len(mean) != len(std):
        raise bad("std", f"{len(mean)} numbers, as many as in mean", std)
    return replace(data, mean=tuple(map(float, mean)), std=tuple(map(float, std)))
