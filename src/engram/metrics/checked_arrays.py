"""Conversion of arguments (lists, arrays, tensors) to checked numpy arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from engram.errors import BadArgument, bad

Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
# A float for a single run, an array over the leading axes for several.
Reduced: TypeAlias = Any


def as_floats(argument: str, values: Any, *, least: int = 0, shape: str = "numbers") -> Floats:
    """Convert a list, an array or a tensor to a float64 array of at least `least` axes."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().double().numpy()
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as problem:
        raise bad(argument, f"{shape}, all rows of equal length", values) from problem
    if array.ndim < least:
        raise bad(argument, f"{shape}, so at least {least} axes", f"shape {array.shape}")
    return array


def as_whole_numbers(argument: str, values: Any) -> npt.NDArray[np.int64]:
    """Convert to an int64 array; raise for class ids that are not whole numbers."""
    array = as_floats(argument, values, least=1, shape="class ids")
    if not np.all(np.isfinite(array)) or np.any(array != np.round(array)):
        raise bad(argument, "whole class ids (take the argmax of scores first)", values)
    return array.astype(np.int64)


def as_multi_hot(argument: str, values: Any) -> Bools:
    """Convert to a boolean `[..., sample, class]` array; raise for values other than 0 and 1."""
    array = as_floats(argument, values, least=2, shape="a multi-hot [..., sample, class] array")
    if not np.all((array == 0.0) | (array == 1.0)):
        raise bad(argument, "only 0 and 1 (use metrics.threshold on scores first)", values)
    return array.astype(np.bool_)


def as_class_mask(argument: str, chosen: Any, count: int) -> Bools:
    """Make a class mask `[count]` from a boolean mask or from class numbers."""
    array = np.asarray(sorted(chosen) if isinstance(chosen, (set, frozenset)) else chosen)
    if array.dtype == np.bool_:
        if array.shape != (count,):
            raise bad(argument, f"a mask of {count} classes", f"shape {array.shape}")
        return array
    numbers = as_whole_numbers(argument, array) if array.size else np.zeros(0, np.int64)
    if np.any(numbers < 0) or np.any(numbers >= count):
        raise bad(argument, f"class numbers from 0 to {count - 1}", chosen)
    mask = np.zeros(count, np.bool_)
    mask[numbers] = True
    return mask


def check_same_shape(first: str, a: npt.NDArray[Any], second: str, b: npt.NDArray[Any]) -> None:
    """Raise for two arrays of different shapes."""
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError as problem:
        raise BadArgument(
            f"{second}: expected a shape that fits {first} {a.shape}, got {b.shape}"
        ) from problem


def as_plain(values: Any) -> Reduced:
    """Return a Python float for a 0-d result, the array itself otherwise."""
    array = np.asarray(values)
    return float(array) if array.ndim == 0 else array


def mean_or_nan(values: Any, axis: int = -1) -> Floats:
    """Compute the mean; NaN for empty arrays, without numpy's warning."""
    array = np.asarray(values, dtype=np.float64)
    if array.shape[axis] == 0:
        return np.full(np.delete(np.array(array.shape), axis), np.nan)
    return np.asarray(array.mean(axis=axis))


def ratio_or_nan(part: Any, whole: Any) -> Floats:
    """Compute `part / whole`, NaN where the whole is 0, without numpy's warning."""
    count = np.asarray(whole, dtype=np.float64)
    return np.where(count > 0, part / np.where(count > 0, count, 1.0), np.nan)


def mean_without_nan(values: Any) -> float:
    """Compute the mean of the entries that are not NaN; NaN if there are none."""
    array = np.asarray(values, dtype=np.float64)
    return float(mean_or_nan(array[~np.isnan(array)]))
