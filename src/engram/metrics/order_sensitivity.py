"""Order disparity: how much results depend on the order of tasks or classes."""

from __future__ import annotations

from typing import Any, NamedTuple

from engram.errors import bad
from engram.metrics.checked_arrays import Floats, Reduced, as_floats, as_plain


class OrderDisparity(NamedTuple):
    """Order-normalised performance disparity: per unit, its mean and its maximum over units."""

    opd: Floats  # [..., unit]
    aopd: Reduced
    mopd: Reduced


def order_disparity(performance: Any) -> OrderDisparity:
    """Range over orders of the final performance of each unit (task or class).

    Parameters
    ----------
    performance
        `[..., order, unit]`: the unit's performance after all tasks, under each order. A column is
        one and the same task or class in every order. Repetitions are leading axes.

    Examples
    --------
    >>> opd, aopd, mopd = order_disparity([[0.9, 0.2, 0.5], [0.8, 0.6, 0.7], [0.4, 0.9, 0.1]])
    >>> opd.round(6).tolist(), round(aopd, 6), round(mopd, 6)
    ([0.5, 0.7, 0.6], 0.6, 0.7)
    """
    array = as_floats("performance", performance, least=2, shape="[..., order, unit]")
    if 0 in array.shape[-2:]:
        raise bad("performance", "at least one order and one unit", f"shape {array.shape}")
    opd = array.max(axis=-2) - array.min(axis=-2)
    return OrderDisparity(opd, as_plain(opd.mean(axis=-1)), as_plain(opd.max(axis=-1)))
