"""Drawn shapes of several kinds, each in several variations: classes with superclasses."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from engram import keys
from engram.data.dataset import Data
from engram.errors import bad, check_float, check_int

Level = Callable[[Tensor, Tensor], Tensor]  # of a point (u, v): below 0 inside, above outside
_SOFT = 8.0  # how steep edges are
_TURN, _SHIFT = 0.5, 0.2  # largest turn in radians, largest shift in half sides


def _circle(u: Tensor, v: Tensor) -> Tensor:
    return torch.hypot(u, v) - 0.8


def _square(u: Tensor, v: Tensor) -> Tensor:
    return torch.maximum(u.abs(), v.abs()) - 0.7


def _triangle(u: Tensor, v: Tensor) -> Tensor:
    side = math.cos(math.pi / 6) * u.abs() - 0.5 * v
    return torch.maximum(side, v) - 0.45


def _cross(u: Tensor, v: Tensor) -> Tensor:
    a, b = u.abs(), v.abs()
    upright = torch.maximum(a - 0.28, b - 0.85)
    return torch.minimum(upright, torch.maximum(b - 0.28, a - 0.85))


def _star(u: Tensor, v: Tensor) -> Tensor:
    return torch.hypot(u, v) - 0.62 * (1 + 0.45 * torch.cos(5 * torch.atan2(u, v)))


def _moon(u: Tensor, v: Tensor) -> Tensor:
    return torch.maximum(torch.hypot(u, v) - 0.85, 0.65 - torch.hypot(u - 0.45, v))


KINDS: dict[str, Level] = {
    "circle": _circle, "square": _square, "triangle": _triangle, "cross": _cross, "star": _star,
    "moon": _moon,
}  # fmt: skip


def _full(u: Tensor, v: Tensor, level: Tensor) -> Tensor:
    return level


def _hollow(u: Tensor, v: Tensor, level: Tensor) -> Tensor:
    return (level + 0.11).abs() - 0.11


def _striped(u: Tensor, v: Tensor, level: Tensor) -> Tensor:
    return torch.maximum(level, 0.3 * torch.sin(9 * v))


def _halved(u: Tensor, v: Tensor, level: Tensor) -> Tensor:
    return torch.maximum(level, u)


VARIATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "full": _full, "hollow": _hollow, "striped": _striped, "halved": _halved,
}  # fmt: skip


def _checks(u: Tensor, v: Tensor) -> Tensor:
    return 0.4 * torch.sin(5 * u) * torch.sin(5 * v)


def _rings(u: Tensor, v: Tensor) -> Tensor:
    return 0.4 * torch.sin(9 * torch.hypot(u, v))


def _zigzag(u: Tensor, v: Tensor) -> Tensor:
    fold = (2 * u - (2 * u).round()).abs() - 0.25
    return (v - 2 * fold).abs() - 0.25


def _spiral(u: Tensor, v: Tensor) -> Tensor:
    return 0.4 * torch.sin(torch.atan2(v, u) + 6 * torch.hypot(u, v))


ORPHANS: dict[str, Level] = {
    "checks": _checks, "rings": _rings, "zigzag": _zigzag, "spiral": _spiral,
}  # fmt: skip


def shapes(
    *,
    kinds: int = 6,
    variations: int = 4,
    orphans: int = 4,
    per_class: int = 125,
    size: int = 16,
    noise: float = 0.1,
    seed: int = 0,
) -> Data:
    """Shapes drawn in colour, uint8 [3, size, size]: each kind in several variations, and patterns.

    The attribute ``kind`` has the superclass of each row, so
    ``hierarchical(load("shapes"), hierarchy="kind")`` refines kinds into variations; patterns are
    orphans, without a superclass (-1). Place, size, turn and colours are drawn anew for each row. A
    fifth of each class is for testing.

    Parameters
    ----------
    kinds, variations, orphans
        How many: of 6 kinds, 4 variations and 4 patterns.
    per_class
        Rows of each class.
    noise
        Standard deviation of the noise on every pixel, of a range of 1.

    Examples
    --------
    >>> data = shapes(kinds=2, variations=2, orphans=1, per_class=5)
    >>> data.classes
    ('full circle', 'hollow circle', 'full square', 'hollow square', 'checks')
    >>> data
    Data('shapes': 20 train, 5 test rows of (3, 16, 16), 5 classes)
    """
    _check_between("kinds", kinds, 1, len(KINDS))
    _check_between("variations", variations, 1, len(VARIATIONS))
    _check_between("orphans", orphans, 0, len(ORPHANS))
    check_int("per_class", per_class, low=5)  # four rows to train, one to test
    check_int("size", size, low=8)
    check_float("noise", noise)
    key = keys.fold(check_int("seed", seed), "shapes")
    drawn, names, above = [], [], []
    for k, kind in enumerate(list(KINDS)[:kinds]):
        for variation in list(VARIATIONS)[:variations]:
            names.append(f"{variation} {kind}")
            u, v = _place_points(keys.fold(key, names[-1]), per_class, size)
            drawn.append(VARIATIONS[variation](u, v, KINDS[kind](u, v)))
            above.append(k)
    for pattern in list(ORPHANS)[:orphans]:
        names.append(pattern)
        drawn.append(ORPHANS[pattern](*_place_points(keys.fold(key, pattern), per_class, size)))
        above.append(-1)
    x = _colour(keys.fold(key, "colours"), torch.cat(drawn), noise)
    y = torch.arange(len(names)).repeat_interleave(per_class)
    return Data.from_arrays(
        x, y, classes=names, name="shapes",
        attributes={"kind": torch.tensor(above).repeat_interleave(per_class)},
        attribute_names={"kind": tuple(list(KINDS)[:kinds])},
    )  # fmt: skip


def _check_between(argument: str, value: int, low: int, high: int) -> None:
    if check_int(argument, value, low=low) > high:
        raise bad(argument, f"a whole number from {low} to {high}", value)


def _place_points(key: keys.Key, rows: int, size: int) -> tuple[Tensor, Tensor]:
    """[rows, size, size] where each pixel lies in the own frame of a row's shape."""
    drawn = 2 * keys.uniform(key, rows, 4)[..., None, None] - 1
    turn, scale = _TURN * drawn[:, 0], 0.8 + 0.15 * drawn[:, 1]
    axis = (2 * torch.arange(size, dtype=drawn.dtype) + 1) / size - 1
    x = (axis[None, None, :] - _SHIFT * drawn[:, 2]) / scale
    y = (axis[None, :, None] - _SHIFT * drawn[:, 3]) / scale
    return x * turn.cos() + y * turn.sin(), y * turn.cos() - x * turn.sin()


def _colour(key: keys.Key, level: Tensor, noise: float) -> Tensor:
    """[N, 3, H, W] bytes: a light colour inside, a dark one outside, and noise."""
    ink = (-_SOFT * level).sigmoid()[:, None]
    colour = keys.uniform(keys.fold(key, "both"), len(level), 2, 3)[..., None, None]
    light, dark = 0.55 + 0.4 * colour[:, 0], 0.35 * colour[:, 1]
    grain = noise * keys.normal(keys.fold(key, "noise"), len(level), 3, *level.shape[1:])
    return (255 * (dark + (light - dark) * ink + grain).clamp(0, 1)).round().to(torch.uint8)
