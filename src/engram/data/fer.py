"""FER-2013 in the official form: one CSV file with a picture per line."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch

from engram.data.core import Data
from engram.errors import bad, whole

CLASSES = ("angry", "disgusted", "fearful", "happy", "neutral", "sad", "surprised")
_SIDE = 48
# the file counts emotions in an order of its own
_EMOTION = (0, 1, 2, 3, 5, 6, 4)
_USAGE = ("Training", "PublicTest", "PrivateTest")


def is_fer(path: Path) -> bool:
    """Whether a file starts as the official CSV does."""
    if not path.is_file() or path.suffix != ".csv":
        return False
    with path.open(encoding="utf-8", errors="replace") as stream:
        return stream.readline().lower().replace(" ", "").startswith("emotion,")


def load_fer(path: Path, *, name: str = "fer2013") -> Data:
    """FER-2013 from fer2013.csv (emotion, pixels, Usage), uint8 [N, 1, 48, 48].

    PublicTest is for validation, PrivateTest for testing.
    """
    x, y, usage = [], [], []
    with path.open(encoding="utf-8", newline="") as stream:
        for line, row in enumerate(csv.DictReader(stream, skipinitialspace=True), start=2):
            try:
                picture = np.array(row["pixels"].split(), np.uint8)
                y.append(_EMOTION[whole("emotion", int(row["emotion"]))])
                usage.append(_USAGE.index(row["Usage"]))
            except (KeyError, ValueError, IndexError, AttributeError, OverflowError):
                wanted = "emotion 0 to 6, pixels 0 to 255, Usage"
                raise bad(f"{path}, line {line}", wanted, str(row)[:80]) from None
            if len(picture) != _SIDE * _SIDE:
                raise bad(f"{path}, line {line}", f"{_SIDE * _SIDE} pixels", len(picture))
            x.append(picture)
    if not x:
        raise bad(str(path), "at least one picture", "none")
    part = torch.tensor(usage)
    train, valid, test = ((part == i).nonzero()[:, 0] for i in range(3))
    return Data(
        x=torch.from_numpy(np.stack(x).reshape(-1, 1, _SIDE, _SIDE)),
        y=torch.tensor(y)[:, None], train=train, valid=valid, test=test, classes=CLASSES, name=name,
    )  # fmt: skip
