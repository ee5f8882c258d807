"""Two image sets of these tests alone: drawn shapes; photographs, where the real data is there."""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SIDE = 12
Grid = NDArray[np.float64]


class Images(NamedTuple):
    """Inputs [n, 1, SIDE, SIDE] in [0, 1] and class ids, sorted by nothing."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def _inside(name: str, a: Grid, b: Grid, r: float) -> NDArray[np.bool_]:
    """Which pixels a shape covers; a and b are distances from its centre, down and right."""
    far, box = np.hypot(a, b), np.maximum(abs(a), abs(b))
    arms = np.minimum(abs(a), abs(b)) < 0.8
    diagonals = np.minimum(abs(a - b), abs(a + b)) < 1.1
    found: dict[str, NDArray[np.bool_]] = {
        "disc": far < r,
        "plus": arms & (box < r),
        "frame": abs(box - r) < 0.7,
        "triangle": (a < r) & (abs(b) < (a + r) / 2),
        "ring": abs(far - r) < 0.8,
        "cross": diagonals & (box < r),
    }
    return found[name]


SHAPES = ("disc", "plus", "frame", "triangle", "ring", "cross")
DARK = ("frame", "triangle")  # on a light ground, so that what one task learns hurts another


def draw(rng: np.random.Generator, name: str) -> Grid:
    """One shape at a random place, in a random size and shade, under noise."""
    down, right = rng.uniform(4.0, 7.0, 2)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    mask = _inside(name, rows - down, columns - right, rng.uniform(2.6, 4.4))
    picture = rng.uniform(0.5, 1.0) * mask
    noise = rng.normal(0, 0.3, (SIDE, SIDE))
    return np.clip((1 - picture if name in DARK else picture) + noise, 0, 1)


def shapes(train: int = 48, test: int = 100, seed: int = 5) -> Images:
    """Six kinds of shapes, so many pictures of each."""
    rng = np.random.default_rng(seed)
    size = train + test
    x = np.stack([[draw(rng, name) for _ in range(size)] for name in SHAPES])
    return _images(x[:, :train], x[:, train:])


def scenes(folder: Path, train: int = 48, test: int = 60) -> Images:
    """Six kinds of photographs of landscapes, from forest to street, grey and small."""
    from PIL import Image

    with np.load(folder / "multi_domain_64.npz") as file:
        jpeg, offsets = file["jpeg"], file["offsets"]
        label, split = file["label"], file["split"]
        domain = [str(name).split("/")[0] for name in file["names"]]

    def read(row: int) -> Grid:
        held = jpeg[offsets[row] : offsets[row + 1]].tobytes()
        small = Image.open(io.BytesIO(held)).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
        return np.asarray(small) / 255.0

    def pictures(part: int, count: int) -> Grid:
        classes = [c for c, name in enumerate(domain) if name == "scenes"]
        rows = [np.flatnonzero((label == c) & (split == part))[:count] for c in classes]
        return np.stack([[read(row) for row in some] for some in rows])

    return _images(pictures(0, train), pictures(1, test))


def _images(train: Grid, test: Grid) -> Images:
    """From [classes, n, SIDE, SIDE]."""

    def flat(x: Grid) -> tuple[Tensor, Tensor]:
        y = torch.arange(len(x)).repeat_interleave(x.shape[1])
        return torch.tensor(x, dtype=torch.float32).reshape(-1, 1, SIDE, SIDE), y

    return Images(*flat(train), *flat(test))
