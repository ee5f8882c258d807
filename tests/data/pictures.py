"""Pictures for generated trees of data sets: small, and no two alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def paint(path: Path, seed: int, size: tuple[int, int] = (12, 12), mode: str = "RGB") -> Path:
    """Write noise of (width, height) that only this seed has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], *channels), np.uint8)
    Image.fromarray(noise, mode).save(path)
    return path


def fill(path: Path, color: object, size: tuple[int, int] = (12, 12), mode: str = "RGB") -> Path:
    """Write a blank picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path)  # type: ignore[arg-type]
    return path
