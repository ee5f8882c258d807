"""From whatever the caller has to inputs, class ids and a split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engram.errors import bad

Array = npt.NDArray[Any]
Inputs = Tensor | np.memmap[Any, np.dtype[Any]]


def inputs(argument: str, x: Any) -> Inputs:
    """[N, ...] inputs as uint8 or float32; memory maps stay on disk.

    Examples
    --------
    >>> inputs("x", [[1, 2], [3, 4]]).dtype
    torch.float32
    """
    if isinstance(x, np.memmap) and x.dtype in (np.uint8, np.float32) and x.ndim > 1:
        return x
    tensor = x if isinstance(x, Tensor) else _tensor(argument, x)
    if tensor.ndim < 2:
        raise bad(argument, "an array [rows, ...] of at least two axes", tuple(tensor.shape))
    if tensor.dtype == torch.uint8:
        _refuse_channels_last(argument, tuple(tensor.shape))
        return tensor
    if tensor.is_complex():
        raise bad(argument, "real numbers", tensor.dtype)
    tensor = tensor.to(torch.float32)
    if not bool(torch.isfinite(tensor).all()):
        row = int((~torch.isfinite(tensor)).flatten(1).any(1).nonzero()[0])
        raise bad(argument, "finite numbers of float32 range", f"nan or inf in row {row}")
    return tensor


def _tensor(argument: str, x: Any) -> Tensor:
    try:
        array = np.ascontiguousarray(x)
    except ValueError:  # rows of unequal shape
        raise bad(argument, "rows of one shape", type(x).__name__) from None
    if array.dtype.kind not in "biuf":
        raise bad(argument, "an array of numbers", f"dtype {array.dtype}")
    if array.dtype.kind == "u" and array.dtype != np.uint8:
        array = array.astype(np.float32)
    return torch.from_numpy(array)


def _refuse_channels_last(argument: str, shape: tuple[int, ...]) -> None:
    if len(shape) == 4 and shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4):
        raise bad(
            argument,
            "images channels first [N, C, H, W] (move the last axis: x.transpose(0, 3, 1, 2))",
            shape,
        )


def class_ids(parts: Sequence[Any], names: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """[N, L] class ids of all parts together, and the name of each id.

    Whole numbers are ids already; anything else is named and numbered in sorted order.

    Examples
    --------
    >>> ids, names = class_ids([["cat", "dog"], ["cat"]], None)
    >>> ids[:, 0].tolist(), names
    ([0, 1, 0], ('cat', 'dog'))
    """
    raw = [np.asarray(part.cpu() if isinstance(part, Tensor) else part) for part in parts]
    joined = np.concatenate([one[:, None] if one.ndim == 1 else one for one in raw])
    if joined.ndim != 2:
        raise bad("y", "labels of shape [N] or [N, L]", joined.shape)
    if joined.dtype.kind == "f":
        if not np.array_equal(joined, np.round(joined)):
            raise bad("y", "whole numbers or names as labels", "fractions")
        joined = joined.astype(np.int64)
    if joined.dtype.kind in "iu":
        if joined.min(initial=0) < -1:
            raise bad("y", "class ids from 0 (-1 pads)", int(joined.min()))
        ids = torch.from_numpy(joined.astype(np.int64))
        return ids, tuple(names or map(str, range(int(ids.max()) + 1 if len(ids) else 0)))
    return _named(joined, names)


def _named(joined: Array, names: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    found, inverse = np.unique(joined, return_inverse=True)
    ids = torch.from_numpy(inverse.reshape(joined.shape).astype(np.int64))
    labels = tuple(map(str, found))
    if names is None:
        return ids, labels
    if set(labels) - set(names):
        raise bad("classes", f"names that cover the labels {list(labels)}", list(names))
    place = torch.tensor([list(names).index(label) for label in labels])
    return place[ids], tuple(names)


def hold_out(y: Tensor) -> tuple[Tensor, Tensor]:
    """Every fifth row of each class becomes a test row: deterministic, stratified.

    Examples
    --------
    >>> hold_out(torch.zeros(6, 1, dtype=torch.long))
    (tensor([0, 1, 2, 3, 5]), tensor([4]))
    """
    held = torch.zeros(len(y), dtype=torch.bool)
    for label in y[:, 0].unique():
        held[(y[:, 0] == label).nonzero()[4::5, 0]] = True
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]
