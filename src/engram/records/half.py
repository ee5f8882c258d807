"""Scores in half precision, each row with its own scale.

Two bytes per score are enough to look at probabilities and calibration later, but not to decide:
near ties fall together. So predictions are made from the scores themselves and stored beside them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_LIMIT = float(np.finfo(np.float16).max)
_LEAST = 2.0**-10  # smaller rows would lose digits: float16 ends at 2 ** -24
_TOP = 15  # scaled rows lie below 2 ** 15


class HalfScores(NamedTuple):
    """A score is ``scores * 2 ** exponent``; no exponents where all would be 0."""

    scores: npt.NDArray[np.float16]  # [..., n, C]
    exponent: npt.NDArray[np.int16] | None  # [..., n]


def as_scores(scores: Any) -> npt.NDArray[np.float32]:
    """Scores of any kind as an array in single precision, which is how they are judged."""
    if hasattr(scores, "detach"):
        scores = scores.detach().cpu().float().numpy()
    return np.asarray(scores, np.float32)


def halve(scores: Any) -> HalfScores:
    """Scores [..., n, C] as they are stored.

    Rows that fit into float16 stay as they are; others are scaled by a power of two. -inf and NaN,
    which never win, become the lowest number.

    Examples
    --------
    >>> halve([[1.0, -2.5], [3e6, -1e6]])
    HalfScores(scores=array([[ 1.0e+00, -2.5e+00], [ 2.344e+04, -7.812e+03]], dtype=float16),
         exponent=array([0, 7], dtype=int16))
    """
    given = as_scores(scores)
    with np.errstate(invalid="ignore"):
        size = np.where(np.isfinite(given), abs(given), 0.0).max(axis=-1, initial=0.0)
    fits = ((size >= _LEAST) & (size <= _LIMIT)) | (size == 0)
    exponent = np.where(fits, 0, np.frexp(size)[1] - _TOP).astype(np.int16)
    scaled = given
    if exponent.any():
        scaled = np.ldexp(given, -exponent[..., None].astype(np.int32))
    lowest = np.fmax(scaled, -_LIMIT)  # of a NaN and a number, the number
    half = np.minimum(lowest, _LIMIT).astype(np.float16)
    return HalfScores(half, exponent if exponent.any() else None)


def widen(scores: npt.NDArray[Any], exponent: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """The scores that `halve` stored, up to their rounding.

    Examples
    --------
    >>> widen(*halve([[3e6, -1e6]])).tolist()
    [[3000320.0, -999936.0]]
    """
    wide = np.asarray(scores, np.float32)
    if exponent is None:
        return wide
    return np.asarray(np.ldexp(wide, exponent[..., None].astype(np.int32)))
