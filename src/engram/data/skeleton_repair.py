"""Damaged skeleton sequences: what is wrong with them, and what is done about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from engram.data.arrays import Array
from engram.data.skeleton_frames import filled, resample
from engram.data.skeleton_sequences import Sequences
from engram.errors import bad, choose
from engram.spelling import plural

REPAIRS = ("interpolate", "drop", "error")
MIN_FRAMES = 3
_SHOWN = 5


def mend(
    sequences: Sequences, repair: str = "interpolate", longest: int | None = None
) -> tuple[Sequences, tuple[str, ...]]:
    """Repair damaged sequences and say what was done.

    ==================  ===================================  =====================  ========
    damage              repair="interpolate"                 "drop"                 "error"
    ==================  ===================================  =====================  ========
    over the longest    cut behind `longest` frames          left out               raises
    no body at all      left out                             left out               raises
    nan or inf joints   filled linearly over time from the   left out               raises
                        frames that have the joint; left out
                        if no frame has it
    frames without a    kept as zeros                        left out               raises
    body before others
    under 3 frames      kept, frames repeated up to 3        left out               raises
    ==================  ===================================  =====================  ========
    """
    choose("repair", repair, REPAIRS)
    shapes = {one.shape[1:] for one in sequences.joints}
    if len(shapes) > 1:
        raise bad("joints", "sequences of one number of joints and axes", sorted(shapes))
    told: list[str] = []
    for damage, found, cure, how in (*_too_long(longest), *_DAMAGES):
        hit = [i for i, one in enumerate(sequences.joints) if found(one)]
        if not hit:
            continue
        who = _list([sequences.names[i] for i in hit])
        if repair == "error":
            raise bad("sequences", f"none with {damage} (or another repair=)", who)
        cured = {i: cure(sequences.joints[i]) if repair == "interpolate" else None for i in hit}
        lost = [i for i in hit if cured[i] is None]
        if len(lost) < len(hit):
            saved = [sequences.names[i] for i in hit if cured[i] is not None]
            told.append(f"{plural(len(saved), 'sequence')} with {damage} {how}: {_list(saved)}")
        if lost:
            gone = _list([sequences.names[i] for i in lost])
            told.append(f"{plural(len(lost), 'sequence')} with {damage} left out: {gone}")
        whole_list = [cured.get(i, one) for i, one in enumerate(sequences.joints)]
        kept = [i for i, one in enumerate(whole_list) if one is not None]
        sequences = replace(sequences, joints=whole_list).take(kept)  # type: ignore[arg-type]
    if not len(sequences):
        raise bad("sequences", "at least one that can be used", "; ".join(told) or "none")
    return sequences, tuple(told)


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _no_body(one: Array) -> bool:
    return len(one) == 0 or not bool((one != 0).any())


def _not_finite(one: Array) -> bool:
    return not bool(np.isfinite(one).all())


def _has_gaps(one: Array) -> bool:
    return not bool((one[: filled(one)] != 0).any((1, 2)).all())


def _fill(one: Array) -> Array | None:
    """Linear in time between the frames that have the joint, constant beyond them."""
    out = one.astype(np.float64).reshape(len(one), -1).copy()  # [T, V * C]
    time = np.arange(len(out))
    for track in out.T:
        good = np.isfinite(track)
        if not good.any():
            return None
        track[~good] = np.interp(time[~good], time[good], track[good])
    return out.reshape(one.shape)


_Damage = tuple[str, Callable[[Array], bool], Callable[[Array], Array | None], str]
_DAMAGES: tuple[_Damage, ...] = (
    ("no body", _no_body, lambda one: None, ""),
    ("nan or inf joints", _not_finite, _fill, "filled over time"),
    ("frames without a body", _has_gaps, lambda one: one, "kept as they are"),
    (
        f"fewer than {MIN_FRAMES} frames",
        lambda one: len(one) < MIN_FRAMES,
        lambda one: resample(one, MIN_FRAMES),
        "kept by repeating frames",
    ),
)


def _too_long(longest: int | None) -> tuple[_Damage, ...]:
    if longest is None:
        return ()
    most = longest
    cut: _Damage = (
        f"more than {most} frames", lambda one: len(one) > most, lambda one: one[:most], "cut"
    )  # fmt: skip
    return (cut,)
