"""From whatever the caller has to inputs, class ids and a split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engram.data.label_checks import (
    NO_NAME,
    check_one_type,
    is_ragged,
    refuse_similar_names,
    to_whole_numbers,
)
from engram.errors import BadArgument, bad

Array = npt.NDArray[Any]
# what sets from elsewhere call their parts
PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test",
         "valid": "valid", "val": "valid", "validation": "valid", "dev": "valid"}  # fmt: skip


COMPLEX_REFUSED = "real numbers (Complex data not supported)"


class NoNumbers(BadArgument, TypeError):
    """Raised for objects in an array that are no numbers."""


class RowStore(Protocol):
    """Inputs that are fetched row by row: a memory map, or `LazyRows`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> Any: ...


Inputs = Tensor | np.memmap[Any, np.dtype[Any]] | RowStore


def to_inputs(argument: str, x: Any, *, gaps: bool = False) -> Inputs:
    """[N, ...] inputs as uint8 or float32; memory maps stay on disk. With `gaps`, nan may be there.

    Examples
    --------
    >>> to_inputs("x", [[1, 2], [3, 4]]).dtype
    torch.float32
    """
    if isinstance(x, np.memmap) and x.dtype in (np.uint8, np.float32) and x.ndim > 1:
        return x
    tensor = x if isinstance(x, Tensor) else _to_tensor(argument, x)
    if tensor.ndim < 2:
        expected = (
            "an array [rows, ...] of at least two axes (Reshape your data: x[None] is one row)"
        )
        raise bad(argument, expected, tuple(tensor.shape))
    if 0 in tensor.shape[1:]:
        shape = tuple(tensor.shape)
        raise BadArgument(
            f"{argument}: found array with 0 feature(s) (shape={shape}) while a minimum of 1 is "
            "required."
        )
    if tensor.dtype == torch.uint8:
        _refuse_channels_last(argument, tuple(tensor.shape))
        return tensor
    if tensor.is_complex():
        raise bad(argument, COMPLEX_REFUSED, tensor.dtype)
    tensor = tensor.to(torch.float32)
    wrong = tensor.isinf() if gaps else ~tensor.isfinite()
    if bool(wrong.any()):
        row = int(wrong.flatten(1).any(1).nonzero()[0])
        gap = bool(tensor[row].isnan().any())
        how = ' (missing values: Data.from_frame(frame, label=..., missing="mean"))' if gap else ""
        expected = f"finite numbers of float32 range{how}"
        raise bad(argument, expected, f"nan or inf in row {row}")
    return tensor


def _to_tensor(argument: str, x: Any) -> Tensor:
    refuse_sparse(argument, x)
    try:
        array = np.ascontiguousarray(x)
    except ValueError:  # rows of unequal shape
        expected = "rows of the same shape (for series of different lengths use Data.from_series)"
        raise bad(argument, expected, type(x).__name__) from None
    if array.dtype.kind == "O" and array.ndim > 1:
        array = _read_objects(argument, array)
    if array.dtype.kind == "c":
        raise bad(argument, COMPLEX_REFUSED, f"dtype {array.dtype}")
    if array.dtype.kind not in "biuf":
        hint = " (for a table with text use Data.from_frame)" if hasattr(x, "columns") else ""
        raise bad(argument, f"an array of numbers{hint}", f"dtype {array.dtype}")
    if array.dtype.kind == "u" and array.dtype != np.uint8:
        array = array.astype(np.float32)
    if not array.flags.writeable:  # torch would warn; tables lend their columns so
        array = array.copy()
    return torch.from_numpy(array)


def refuse_sparse(argument: str, x: Any) -> None:
    """Refuse a sparse matrix of scipy."""
    if hasattr(x, "tocsr"):
        raise bad(argument, "a dense array (x.toarray() of a sparse one)", type(x).__name__)


def _read_objects(argument: str, array: Array) -> Array:
    """Numbers in an array of objects as float64; text stays as it is, to be refused as such."""
    if any(isinstance(one, (str, bytes)) for one in array.ravel().tolist()):
        return array
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as problem:  # rows of unequal shape, or no numbers
        raise NoNumbers(f"{argument}: expected an array of numbers ({problem})") from None


def _refuse_channels_last(argument: str, shape: tuple[int, ...]) -> None:
    if len(shape) == 4 and shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4):
        raise bad(
            argument,
            "channels-first images [N, C, H, W] (use x.transpose(0, 3, 1, 2))",
            shape,
        )


def to_class_ids(
    parts: Sequence[Any], names: Sequence[str] | None
) -> tuple[Tensor, tuple[str, ...]]:
    """[N, L] class ids of all parts together, and the name of each id.

    Whole numbers are ids already; anything else is named and numbered in sorted order. A list of
    lists holds a set of labels per row, and so does a matrix of ids, padded by -1. No set holds an
    id twice, so a matrix of 0 and 1 with three columns or more cannot be sets of ids: it is an
    indicator matrix (one-hot, or multi-hot), one column per class, and so is any matrix of
    booleans. With two columns it may be either, and is refused.

    Examples
    --------
    >>> ids, names = to_class_ids([["cat", "dog"], ["cat"]], None)
    >>> ids[:, 0].tolist(), names
    ([0, 1, 0], ('cat', 'dog'))
    >>> to_class_ids([[["cat", "pet"], ["oak"]]], None)[0].tolist()
    [[0, 2], [1, -1]]
    >>> to_class_ids([[[0, 0, 1], [1, 0, 0], [0, 1, 1]]], None)[0].tolist()
    [[2, -1], [0, -1], [1, 2]]
    """
    if names is not None and len(set(names)) < len(names):
        twice = sorted({str(one) for one in names if list(names).count(one) > 1})
        raise bad("classes", "names that differ", f"{', '.join(twice)} more than once")
    joined = _join_labels(parts)
    if joined.dtype.kind in "iuf":
        joined = to_whole_numbers("y", joined)
    if _is_indicator(joined):
        return _read_indicator(joined, names)
    if joined.dtype.kind in "iu":
        if joined.min(initial=0) < -1:
            raise bad("y", "class ids from 0 (-1 pads)", int(joined.min()))
        ids = torch.from_numpy(joined.astype(np.int64))
        refuse_repeated_labels(ids)
        return ids, tuple(names or map(str, range(int(ids.max()) + 1 if len(ids) else 0)))
    return _name_classes(joined, names)


def _join_labels(parts: Sequence[Any]) -> Array:
    """[N, L] the labels of all parts, as they were given."""
    raw = [check_one_type(part) for part in parts]
    if len({one.dtype.kind == "U" for one in raw}) > 1:
        raise bad(
            "y",
            "either names in all parts or numbers in all parts",
            [str(one.dtype) for one in raw],
        )
    raw = [one[:, None] if one.ndim == 1 else one for one in raw]
    shapes = [one.shape for one in raw]
    if any(len(shape) != 2 for shape in shapes):
        raise bad("y", "labels of shape [N] or [N, L]", shapes[0] if len(raw) == 1 else shapes)
    if any(map(is_ragged, parts)):
        raw = [_pad_labels(one, max(shape[1] for shape in shapes)) for one in raw]
    elif len({shape[1] for shape in shapes}) > 1:
        raise bad("y", "the same number of labels per row (-1 pads) in all parts", shapes)
    return np.concatenate(raw)


def _pad_labels(labels: Array, width: int) -> Array:
    """[N, width] with padding behind."""
    pad = NO_NAME if labels.dtype.kind == "U" else -1
    return np.pad(labels, ((0, 0), (0, width - labels.shape[1])), constant_values=pad)


def _is_indicator(joined: Array) -> bool:
    """Whether rows say yes or no to each class, in place of naming some."""
    width = joined.shape[1]
    if width == 1 or joined.dtype.kind not in "biu" or not len(joined):
        return False
    if joined.dtype.kind == "b":
        return True
    if joined.min() < 0 or joined.max() > 1:
        return False
    if width == 2:
        expected = (
            "class ids, or an unambiguous indicator matrix: 0 and 1 in two columns "
            "may be either (for one-hot rows pass y.argmax(1), for a multi-hot matrix y.astype(bool"
            "))"
        )
        raise bad("y", expected, f"a matrix of 0 and 1 of shape {joined.shape}")
    return True


def _read_indicator(joined: Array, names: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Label ids of the columns that are 1 in each row, ascending, -1 behind."""
    width = joined.shape[1]
    if names is not None and len(names) != width:
        raise bad("classes", f"{width} names, one per column of the indicator matrix", list(names))
    member = torch.from_numpy(joined.astype(np.bool_))
    count = member.sum(1)
    if bool((count == 0).any()):
        row = int((count == 0).nonzero()[0])
        raise bad(
            "y", "at least one class in every row of the indicator matrix", f"none in row {row}"
        )
    first = (~member).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(count.max())]
    ids = torch.where(member.gather(1, first), first, -1)
    return ids, tuple(names or map(str, range(width)))


def refuse_repeated_labels(y: Tensor) -> None:
    """Refuse rows [N, L] that hold one label twice: a set of labels has it once."""
    if y.shape[1] == 1:
        return
    ordered = y.sort(dim=1).values
    twice = ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(1)
    if bool(twice.any()):
        row = int(twice.nonzero()[0])
        raise bad(
            "y", "every label at most once in a row (-1 pads)", f"row {row}: {y[row].tolist()}"
        )


def _name_classes(joined: Array, names: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    there = joined != NO_NAME
    found, inverse = np.unique(joined[there], return_inverse=True)
    ids = torch.full(joined.shape, -1)
    ids[torch.from_numpy(there)] = torch.from_numpy(inverse.reshape(-1).astype(np.int64))
    labels = tuple(map(str, found))
    refuse_similar_names(labels)
    refuse_repeated_labels(ids)
    if names is None:
        return ids, labels
    if set(labels) - set(names):
        raise bad("classes", f"names that cover the labels {list(labels)}", list(names))
    place = torch.tensor([list(names).index(label) for label in labels])
    return torch.where(ids >= 0, place[ids], -1), tuple(names)


def hold_out_every_fifth(y: Tensor) -> tuple[Tensor, Tensor]:
    """Every fifth row of each class becomes a test row: deterministic, stratified.

    Examples
    --------
    >>> hold_out_every_fifth(torch.zeros(6, 1, dtype=torch.long))
    (tensor([0, 1, 2, 3, 5]), tensor([4]))
    """
    held = torch.zeros(len(y), dtype=torch.bool)
    for label in y[:, 0].unique():
        held[(y[:, 0] == label).nonzero()[4::5, 0]] = True
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]


def check_crop(crop: tuple[int, int], shape: tuple[int, ...]) -> None:
    """Refuse a crop of what is no image, or one that is larger than the images."""
    if len(shape) != 3:
        raise bad("crop", "None, since these are no images [C, H, W]", crop)
    if not all(0 < part <= whole for part, whole in zip(crop, shape[1:], strict=True)):
        raise bad("crop", f"at most {shape[1]} x {shape[2]} pixels, the size of the images", crop)
