"""Checks of sample shapes, worded once for all models."""

from __future__ import annotations

from torch import nn

from engram.errors import bad


def image(model: str, shape: tuple[int, ...], *, least: int = 1) -> tuple[int, int, int]:
    """(channels, height, width) of an image model's input, or a clear error.

    Examples
    --------
    >>> image("cnn", (20,))
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: sample_shape: expected images [C, H, W] for cnn, got (20,)
    """
    if len(shape) != 3:
        grey = " (grey ones have one channel: x[:, None])" if len(shape) == 2 else ""
        raise bad("sample_shape", f"images [C, H, W] for {model}{grey}", shape)
    if min(shape[1:]) < least:
        raise bad("sample_shape", f"images of at least {least} x {least} for {model}", shape)
    return shape[0], shape[1], shape[2]


def skeleton(model: str, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """(channels, frames, joints, persons) of a skeleton model's input, or a clear error.

    Examples
    --------
    >>> skeleton("gcn", (3, 52, 20))
    (3, 52, 20, 1)
    """
    if len(shape) not in (3, 4):
        expected = f"skeletons [C, T, V] or [C, T, V, persons] for {model}"
        raise bad("sample_shape", expected, shape)
    return shape[0], shape[1], shape[2], shape[3] if len(shape) == 4 else 1


def averaged(found: tuple[int, int], wanted: int) -> nn.Module:
    """An average over places that leaves `wanted` x `wanted` of them; none where there are as many.

    Then it would change nothing, but has no deterministic gradient on CUDA.

    Examples
    --------
    >>> averaged((7, 7), 7), averaged((8, 8), 7)
    (Identity(), AdaptiveAvgPool2d(output_size=7))
    """
    return nn.Identity() if found == (wanted, wanted) else nn.AdaptiveAvgPool2d(wanted)
