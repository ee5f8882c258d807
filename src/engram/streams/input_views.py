"""Views: transformations of the inputs of a task, such as permuted pixels and rotations.

Views are pure functions of single rows of any float dtype, without host reads or boolean indexing,
so that they can be mapped by ``torch.func.vmap``. Their tables move to the device of the input;
call ``to(device)`` beforehand if a step must not copy (graph capture).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from engram import keys
from engram.data.image_copies import rotation_grid
from engram.errors import bad, check_choice, check_float, check_int
from engram.plugins import load_user_object


class View(Protocol):
    """Protocol of a transformation of the inputs of each task: pure, row by row."""

    def __call__(self, x: Tensor, stage: Tensor) -> Tensor:
        """Transform inputs [B, ...] of rows that belong to the tasks `stage` [B]."""
        ...

    def describe(self) -> dict[str, object]:
        """Return plain values that identify the view."""
        ...


class Permuted:
    """Permute the pixels, differently in each task but the first, and alike in all channels.

    Examples
    --------
    >>> view = Permuted(tasks=2, pixels=4, seed=0)
    >>> x = torch.arange(8.0).reshape(2, 4)
    >>> moved = view(x, torch.tensor([0, 1]))
    >>> moved[0].tolist(), moved[1].sort().values.tolist()
    ([0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0])
    """

    def __init__(self, *, tasks: int, pixels: int, seed: int = 0) -> None:
        self.tasks, self.pixels = (
            check_int("tasks", tasks, low=1),
            check_int("pixels", pixels, low=1),
        )
        self.seed = check_int("seed", seed)
        drawn = [
            keys.permutation(keys.fold(seed, "pixels", k), pixels, pixels) for k in range(1, tasks)
        ]
        self.table = torch.stack([torch.arange(pixels), *drawn])  # [T, P]

    def __call__(self, x: Tensor, stage: Tensor) -> Tensor:
        flat = x.reshape(x.shape[0], -1, self.pixels)  # [B, channels, P]
        source = self.table.to(x.device)[stage].unsqueeze(1).expand(flat.shape)
        return flat.gather(-1, source).reshape(x.shape)

    def to(self, device: torch.device | str) -> Permuted:
        """The same view with its table on a device."""
        moved = Permuted.__new__(Permuted)
        moved.__dict__.update(self.__dict__, table=self.table.to(device))
        return moved

    def describe(self) -> dict[str, object]:
        return {"kind": "permuted", "tasks": self.tasks, "pixels": self.pixels, "seed": self.seed}


class Rotated:
    """Rotate images counter-clockwise by the angle (degrees) of their task, with zeros outside.

    Bilinear resampling of [B, C, H, W] or [B, H, W]; an angle of 0 returns the input unchanged.

    Examples
    --------
    >>> view = Rotated(angles=(0, 90))
    >>> image = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> view(torch.stack([image, image]), torch.tensor([0, 1]))[1].round().tolist()
    [[2.0, 4.0], [1.0, 3.0]]
    """

    def __init__(self, *, angles: Sequence[float]) -> None:
        if not isinstance(angles, Sequence) or not len(angles):
            raise bad("angles", "at least one angle in degrees", angles)
        low, high = -math.inf, math.inf
        for k, angle in enumerate(angles):
            check_float(f"angles[{k}]", angle, low, high)
        self.angles = tuple(float(angle) for angle in angles)
        turns = [math.radians(angle % 360.0) for angle in self.angles]
        self.table = torch.tensor([[math.cos(t), math.sin(t)] for t in turns], dtype=torch.float64)

    def __call__(self, x: Tensor, stage: Tensor) -> Tensor:
        if x.ndim not in (3, 4):
            raise bad("x", "images [B, C, H, W] or [B, H, W]", tuple(x.shape))
        # resampling does not support half precision on some devices
        exact = x if x.dtype in (torch.float32, torch.float64) else x.float()
        images = exact if x.ndim == 4 else exact.unsqueeze(1)  # [B, C, H, W]
        height, width = images.shape[-2:]
        cos, sin = self.table.to(x.device, exact.dtype)[stage].unbind(-1)  # [B] each
        grid = rotation_grid(cos, sin, height, width)
        turned = F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)
        still = ((cos == 1) & (sin == 0)).reshape(-1, *[1] * (x.ndim - 1))
        return torch.where(still, x, turned.reshape(x.shape).to(x.dtype))

    def to(self, device: torch.device | str) -> Rotated:
        """The same view with its table on a device."""
        moved = Rotated.__new__(Rotated)
        moved.__dict__.update(self.__dict__, table=self.table.to(device))
        return moved

    def describe(self) -> dict[str, object]:
        return {"kind": "rotated", "angles": list(self.angles)}


class Restaged:
    """A view with renumbered tasks: task k is task ``stages[k]`` of the inner view."""

    def __init__(self, view: View, stages: Sequence[int]) -> None:
        self.view, self.stages = view, tuple(stages)
        self.table = torch.tensor(self.stages, dtype=torch.long)

    def __call__(self, x: Tensor, stage: Tensor) -> Tensor:
        return self.view(x, self.table.to(stage.device)[stage])

    def to(self, device: torch.device | str) -> Restaged:
        """The same view with its tables on a device."""
        inner = self.view.to(device) if hasattr(self.view, "to") else self.view
        moved = Restaged(inner, self.stages)
        moved.table = self.table.to(device)
        return moved

    def describe(self) -> dict[str, object]:
        return {"kind": "restaged", "stages": list(self.stages), "view": self.view.describe()}


def find_base_view(view: View, tasks: int) -> tuple[View, tuple[int, ...]]:
    """Return the inner view, and the number of each of the `tasks` tasks in it."""
    if isinstance(view, Restaged):
        return view.view, view.stages
    return view, tuple(range(tasks))


def moves_pixels(view: View | None) -> bool:
    """Whether a view only moves the pixels of an image, alike in all channels.

    Examples
    --------
    >>> moves_pixels(Permuted(tasks=2, pixels=4)), moves_pixels(Rotated(angles=(0, 90)))
    (True, False)
    """
    return isinstance(view.view if isinstance(view, Restaged) else view, Permuted)


def restage(view: View | None, stages: Sequence[int], tasks: int) -> View | None:
    """Return the view of a stream whose task k is task ``stages[k]`` of one of `tasks` tasks."""
    if view is None:
        return None
    base, numbers = find_base_view(view, tasks)
    picked = [numbers[stage] for stage in stages]
    return base if picked == list(range(len(picked))) else Restaged(base, picked)


def view_from_description(description: Mapping[str, Any]) -> View | None:
    """Make the view with this description; None for an empty one.

    The kind of a user's view is its class, ``module:Class``, which takes the other values.
    """
    if not description:
        return None
    kind = str(description.get("kind"))
    options = {name: value for name, value in description.items() if name != "kind"}
    if ":" in kind:
        own: View = load_user_object(kind, what="view")(**options)
        return own
    check_choice("view", kind, ("permuted", "restaged", "rotated"))
    if kind == "permuted":
        return Permuted(**options)
    if kind == "rotated":
        return Rotated(**options)
    inner = view_from_description(options["view"])
    if inner is None:
        raise bad("view", "a description of the inner view", options["view"])
    return Restaged(inner, options["stages"])


def join_views(first: View | None, tasks: int, second: View | None, more: int) -> View | None:
    """Return the view of two streams in sequence, of `tasks` and `more` tasks, over one base."""
    if first is None and second is None:
        return None
    if first is None or second is None:
        raise bad("other", "a stream with the same view as the first", second)
    base, stages = find_base_view(first, tasks)
    other, others = find_base_view(second, more)
    if base.describe() != other.describe():
        raise bad("other", f"a stream with the view {base.describe()}", other.describe())
    numbers = [*stages[:tasks], *others[:more]]
    return restage(base, numbers, max(numbers) + 1)
