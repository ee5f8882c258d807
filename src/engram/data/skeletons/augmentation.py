"""Random views of skeletons: turned, scaled, and with frames chosen at random.

What `feeder_ucla.py` of Chen et al. (CTR-GCN, 2021) does to training sequences, for samples
[B, C, T, V] or [B, C, T, V, persons] whose channels are x, y, z of one body after the other. Every
draw comes from a key, so a row changes in the same way alone and in company. Joints without
coordinates (zeros: a body that is not there, frames behind the end) stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engram import keys
from engram.errors import bad

SKELETON_AUGMENTATIONS = ("rotate", "scale", "frames")
LARGEST_ANGLE = 60  # degrees, around x and around y
SCALES = (0.5, 1.5)
AXES, CENTRE = 3, 1  # coordinates of a joint; the joint that is turned about, in the first frame


def check_skeletons(shape: Sequence[int], floating: bool) -> None:
    """Refuse samples that are no skeletons.

    Examples
    --------
    >>> check_skeletons((3, 52, 20), True)
    >>> check_skeletons((1, 28, 28), True)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: augment: expected skeletons of shape (3 per body, frames, joints)...
    """
    if len(shape) not in (3, 4) or shape[0] % AXES or shape[2] <= CENTRE or not floating:
        expected = "skeletons of shape (3 per body, frames, joints), as floats, for rotate, scale"
        kind = "floats" if floating else "bytes"
        raise bad("augment", f"{expected} and frames", f"{tuple(shape)} of {kind}")


def augment_skeletons(x: Tensor, key: keys.Key, size: int, names: Sequence[str]) -> Tensor:
    """Apply random changes to samples [R * size, C, T, V(, M)] with `key` [...] per run.

    Parameters
    ----------
    names
        ``rotate``: turn by up to 60 degrees around x and around y, about joint 2 of the first
        frame; ``scale``: multiply the distance from there by 0.5 to 1.5; ``frames``: replace the
        frames of a sequence by as many that are drawn with replacement, in their order.

    Examples
    --------
    >>> x = torch.randn(2, 3, 8, 20)
    >>> augment_skeletons(x, 7, 2, ["rotate", "frames"]).shape
    torch.Size([2, 3, 8, 20])
    """
    turns = draw_rotations(key, size).flatten(0, -3) if "rotate" in names else None
    scales = draw_scales(key, size).flatten() if "scale" in names else None
    if turns is not None or scales is not None:
        x = move_skeletons(x, turns, scales)
    if "frames" in names:
        draws = keys.uniform(keys.fold(key, "frames"), size, x.shape[2], device=x.device)
        x = redraw_frames(x, draws.flatten(0, -2))
    return x


def draw_rotations(key: keys.Key, *shape: int) -> Tensor:
    """Draw rotations [..., 3, 3] by whole degrees up to 60 around x and around y."""
    drawn = keys.randint(keys.fold(key, "rotate"), 2 * LARGEST_ANGLE + 1, *shape, 2)
    return rotations((drawn - LARGEST_ANGLE).to(torch.float64))


def draw_scales(key: keys.Key, *shape: int) -> Tensor:
    """Draw factors [...] between 0.5 and 1.5."""
    low, high = SCALES
    return low + (high - low) * keys.uniform(keys.fold(key, "scale"), *shape)


def rotations(degrees: Tensor) -> Tensor:
    """Matrices [..., 3, 3] that turn by angles [..., 2] around x and y, first around y.

    They act from the right on rows (x, y, z).

    Examples
    --------
    >>> turned = torch.tensor([0.0, 0.0, 1.0]) @ rotations(torch.tensor([[0.0, 90.0]]))[0]
    >>> turned.round().abs().tolist()
    [1.0, 0.0, 0.0]
    """
    x, y = (degrees * (math.pi / 180)).unbind(-1)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    around_x = [[one, zero, zero], [zero, x.cos(), x.sin()], [zero, -x.sin(), x.cos()]]
    around_y = [[y.cos(), zero, -y.sin()], [zero, one, zero], [y.sin(), zero, y.cos()]]
    first, second = (
        torch.stack([torch.stack(row, -1) for row in rows], -2) for rows in (around_y, around_x)
    )
    return first @ second


def move_skeletons(x: Tensor, turns: Tensor | None, scales: Tensor | None) -> Tensor:
    """Turn samples [B, C, T, V(, M)] by matrices [B, 3, 3], and scale them by [B].

    Both happen about joint 2 of the first body in the first frame, whose place stays.
    """
    bodies = x.unflatten(1, (-1, AXES))  # [B, bodies, 3, T, V(, M)]
    centre = bodies[:, 0, :, 0, CENTRE]  # [B, 3(, M)]
    centre = centre if x.ndim == 4 else centre[..., 0]
    centre = centre.reshape(len(x), 1, AXES, *[1] * (x.ndim - 2))
    moved = bodies - centre
    if turns is not None:
        moved = torch.einsum("bpi...,bij->bpj...", moved, turns.to(x.dtype))
    if scales is not None:
        moved = moved * scales.to(x.dtype).reshape(-1, *[1] * (moved.ndim - 1))
    there = (bodies != 0).any(2, keepdim=True)
    return torch.where(there, moved + centre, bodies).flatten(1, 2)


def redraw_frames(x: Tensor, draws: Tensor) -> Tensor:
    """Replace the frames of samples [B, C, T, V(, M)] by those at `draws` [B, T] in [0, 1), sorted.

    Frames without a body behind the end of a sequence stay there and are not drawn.

    Examples
    --------
    >>> x = torch.tensor([1.0, 2.0, 3.0, 0.0]).reshape(1, 1, 4, 1)
    >>> redraw_frames(x, torch.tensor([[0.9, 0.1, 0.5, 0.2]])).flatten().tolist()
    [1.0, 2.0, 3.0, 0.0]
    """
    frames = x.shape[2]
    there = (x != 0).flatten(3).any(3).any(1)  # [B, T]
    place = torch.arange(frames, device=x.device)
    count = torch.where(there, place + 1, 0).amax(1, keepdim=True)  # [B, 1]
    inside = place < count
    chosen = torch.where(inside, draws, 1.0).sort(1).values
    chosen = torch.where(inside, (chosen * count).long(), place)
    index = chosen.reshape(len(x), 1, frames, *[1] * (x.ndim - 3)).expand_as(x)
    return x.gather(2, index)
