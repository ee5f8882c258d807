"""Any map-style torch dataset, read once into arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.data.labels import one_type
from engram.errors import bad

LABELS = ("label", "labels", "class", "target", "y")  # what rows that are mappings may call it


def read_pairs(argument: str, dataset: Any) -> tuple[Tensor, Any]:
    """All inputs and labels of a dataset that gives ``(x, y)``.

    Examples
    --------
    >>> x, y = read_pairs("dataset", [([0.0, 1.0], 2)])
    >>> x.shape, y
    (torch.Size([1, 2]), array([2]))
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        expected = "a map-style dataset with len() and [i] (for an iterable dataset, list(dataset))"
        raise bad(argument, expected, type(dataset).__name__)
    if len(dataset) == 0:
        raise bad(argument, "at least one row", "none")
    xs: list[Tensor] = []
    ys: list[np.ndarray[Any, Any]] = []
    for row in range(len(dataset)):
        item = _pair(dataset[row])
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            got = sorted(item) if isinstance(item, Mapping) else type(item).__name__
            expected = "a pair (x, y), or a mapping with a label and one other value"
            raise bad(f"{argument}[{row}]", expected, got)
        x = _input(item[0])
        if xs and (x.shape != xs[0].shape or x.dtype != xs[0].dtype):
            wanted = f"shape {tuple(xs[0].shape)} of {xs[0].dtype}, as row 0"
            raise bad(f"{argument}[{row}]", wanted, (tuple(x.shape), x.dtype))
        xs.append(x)
        y = np.asarray(item[1])
        if ys and y.shape != ys[0].shape:
            wanted = f"a label of shape {ys[0].shape}, as row 0"
            raise bad(f"{argument}[{row}]", wanted, y.shape)
        ys.append(y)
    return torch.stack(xs), one_type([y.item() for y in ys] if ys[0].ndim == 0 else np.stack(ys))


def _pair(item: Any) -> Any:
    """Input and label of a mapping, as Hugging Face's data sets give them."""
    if not isinstance(item, Mapping) or len(item) != 2:
        return item
    label = next((name for name in LABELS if name in item), None)
    if label is None:
        return item
    (other,) = (value for name, value in item.items() if name != label)
    return other, item[label]


def _input(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach().cpu()
    array = np.asarray(x)
    if hasattr(x, "getbands"):  # a Pillow image: rows, columns, channels
        array = array[None] if array.ndim == 2 else np.moveaxis(array, -1, 0)
    return torch.from_numpy(np.ascontiguousarray(array))


def class_names(dataset: Any) -> tuple[str, ...] | None:
    """The names that torchvision's sets carry, if this one does."""
    found = getattr(dataset, "classes", None)
    return tuple(map(str, found)) if isinstance(found, (list, tuple)) and found else None
