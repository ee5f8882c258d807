"""Other numbers to normalise the channels of a data set with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engram.data.core import Data
from engram.errors import bad, number


def normalised(data: Data, mean: Any, std: Any) -> Data:
    """The data with another mean and standard deviation of its channels.

    Examples
    --------
    >>> data = Data.from_arrays([[[[0.1]]]] * 5, ["a"] * 5)
    >>> normalised(data, [0.5], [0.25]).std
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
            number(name, value, low, open_low=name == "std")
    if len(mean) != len(std):
        raise bad("std", f"{len(mean)} numbers, as many as in mean", std)
    return replace(data, mean=tuple(map(float, mean)), std=tuple(map(float, std)))
