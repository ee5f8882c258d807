"""Whether two results are the same to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np

import engram


def differences(found: engram.Result, expected: engram.Result) -> list[str]:
    """What is not the same to the last bit: numbers (but times), networks, scores, rows read."""
    said = []
    if found.problems:
        said.append(f"problems: {found.problems}")
    if _values(found) != _values(expected):
        said.append("numbers")
    if _ledger(found) != _ledger(expected):
        said.append("ledger")
    moments = [set(one.predictions) for one in (found, expected)]
    if moments[0] != moments[1] or not moments[1]:
        said.append("stages with predictions")
    for moment in sorted(moments[0] & moments[1]):
        pair = [one.predictions.get(*moment) for one in (found, expected)]
        said += [f"{name} of {moment}" for name in _unequal(*pair)]
    return said


def _values(result: engram.Result) -> list[Any]:
    frame = result.frame()
    frame = frame[frame["metric"] != "seconds"]
    names = [name for name in frame.columns if name != "value"]
    bits = frame["value"].to_numpy(np.float64).view(np.int64)  # NaN is equal to itself here
    return sorted(zip(*(frame[name].astype(str) for name in names), bits, strict=True))


def _ledger(result: engram.Result) -> list[Any]:
    return sorted((run for part in result.ledger for run in part["runs"]), key=str)


def _unequal(one: Any, two: Any) -> list[str]:
    names = ("scores", "exponent", "single", "multi", "parameters", "exemplars")
    bad = [name for name in names if not _same(getattr(one, name), getattr(two, name))]
    kept = [dict(each.buffers or {}) for each in (one, two)]
    if set(kept[0]) != set(kept[1]) or any(not _same(kept[0][k], kept[1][k]) for k in kept[0]):
        bad.append("buffers")
    return bad


def _same(one: Any, two: Any) -> bool:
    if one is None or two is None:
        return one is two
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
