"""One skeleton sequence [frames, V, C]: scaled, and given a number of frames."""

from __future__ import annotations

import numpy as np

from engram.data.arrays import Array


def normalise(sequence: Array) -> Array:
    """Subtract joint 2 of the first frame, then stretch each axis of the sequence to [-1, 1].

    The stretching makes the subtraction invisible; it is kept so that either can be left out. An
    axis without extent becomes 0.

    Examples
    --------
    >>> normalise(np.array([[[0.0], [1.0]], [[2.0], [4.0]]]))[..., 0].tolist()
    [[-1.0, -0.5], [0.0, 1.0]]
    """
    centred = sequence.astype(np.float64) - sequence[0, 1].astype(np.float64)  # [T, V, C]
    low, high = centred.min((0, 1)), centred.max((0, 1))
    extent = np.where(high > low, high - low, 1.0)
    return np.where(high > low, (centred - low) / extent * 2.0 - 1.0, 0.0)


def resample(sequence: Array, frames: int) -> Array:
    """Pick `frames` frames at even distance, rounding down; shorter sequences repeat frames.

    Examples
    --------
    >>> resample(np.arange(4)[:, None, None], 3).ravel().tolist()
    [0, 1, 3]
    """
    return sequence[np.linspace(0, len(sequence) - 1, frames).astype(np.int64)]


def pad(sequence: Array, frames: int) -> Array:
    """`frames` frames, zeros behind the end.

    Examples
    --------
    >>> pad(np.ones((2, 1, 1)), 4).ravel().tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    return np.concatenate([sequence, np.zeros_like(sequence, shape=(
        frames - len(sequence), *sequence.shape[1:]))])  # fmt: skip


def filled(sequence: Array) -> int:
    """Frames up to the last one with a body.

    Examples
    --------
    >>> filled(np.array([0.0, 1.0, 0.0, 2.0, 0.0])[:, None, None])
    4
    """
    there = np.flatnonzero((sequence != 0).any((1, 2)))
    return int(there[-1]) + 1 if len(there) else 0
