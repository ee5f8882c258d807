"""Time series of different lengths as one padded array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from engram.data.conversion import Array
from engram.errors import bad, check_choice, check_int

if TYPE_CHECKING:
    from engram.data.dataset import Data

PADS = ("back", "front")


def read_series(
    kind: type[Data],
    parts: Mapping[str, tuple[Sequence[Any], Any]],
    *,
    pad: str,
    length: int | None,
    name: str,
    options: dict[str, Any],
) -> Data:
    """The work behind `Data.from_series`."""
    check_choice("pad", pad, PADS)
    if length is not None:
        check_int("length", length, 1)
    for part, pair in parts.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise bad(part, "a pair (series, y)", type(pair).__name__)
    found = {part: [_check_series(part, i, one) for i, one in enumerate(pair[0])]
             for part, pair in parts.items()}  # fmt: skip
    everything = [one for series in found.values() for one in series]
    if not everything:
        raise bad("series", "at least one", "none")
    width = everything[0].shape[1]
    for part, series in found.items():
        for i, one in enumerate(series):
            if one.shape[1] != width:
                raise bad(
                    f"{part}[{i}]", f"{width} features per step, like the first one", one.shape[1]
                )
    steps = [len(one) for one in everything]
    longest = max(steps) if length is None else length
    pairs: dict[str, Any] = {part: (pad_series(series, longest, pad), parts[part][1])
             for part, series in found.items()}  # fmt: skip
    cut = sum(one > longest for one in steps)
    notes = (f"{cut} series are longer than {longest} steps and were cut",) if cut else ()
    attributes = {"length": torch.tensor(steps).clamp(max=longest), **options.pop("attributes", {})}
    notes = (*options.pop("notes", ()), *notes)
    x, y = pairs.pop("train")
    return kind.from_arrays(x, y, name=name, attributes=attributes, notes=notes, **pairs, **options)


def pad_series(series: Sequence[Array], length: int, pad: str = "back") -> Array:
    """[N, length, F] float32; longer ones are cut where shorter ones are padded.

    Examples
    --------
    >>> pad_series([np.array([[1.0], [2.0], [3.0]]), np.array([[4.0]])], 2, "front")[
    ...     :, :, 0
    ... ].tolist()
    [[2.0, 3.0], [0.0, 4.0]]
    """
    out = np.zeros((len(series), length, series[0].shape[1]), np.float32)
    for row, one in zip(out, series, strict=True):
        kept = one[-length:] if pad == "front" else one[:length]
        place = slice(length - len(kept), None) if pad == "front" else slice(len(kept))
        row[place] = kept
    return out


def _check_series(part: str, i: int, series: Any) -> Array:
    """[T, F] one series of numbers."""
    try:
        array = np.asarray(series.detach().cpu() if hasattr(series, "detach") else series)
    except ValueError:  # steps of unequal width
        raise bad(f"{part}[{i}]", "a series [T, F] or [T] of numbers", "unequal steps") from None
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2) or not array.size:
        got = f"shape {array.shape} of {array.dtype}"
        raise bad(f"{part}[{i}]", "a series [T, F] or [T] of numbers", got)
    return array[:, None] if array.ndim == 1 else array
