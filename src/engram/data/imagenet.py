"""ImageNet (ILSVRC 2012) as class folders named by wnid: an index, or pictures in one file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engram.data.core import Data
from engram.data.folder import images_in
from engram.data.mapped import MappedWriter, read_mapped
from engram.errors import bad, whole

_WNID = re.compile(r"n\d{8}")
_PARTS = ("train", "val")
_LARGER = 256 / 224  # the shorter side before the middle is cut out
PLANS = "an index: pictures are not read, plans only; packed=FILE reads them"
_CHUNK = 64  # pictures decoded at a time


class Unread(np.ndarray[Any, Any]):
    """Inputs of the right shape that were not read: enough to plan with, not to train on."""


def is_imagenet(path: Path) -> bool:
    """Whether a folder has training and validation pictures by wnid."""
    return all(_wnids(path / part) for part in _PARTS)


def load_imagenet(
    path: Path,
    *,
    size: int = 224,
    packed: str | os.PathLike[str] | None = None,
    name: str = "imagenet",
) -> Data:
    """ImageNet, classes by wnid; its validation part is the test part.

    Without `packed` no picture is read: the index says how many there are, which is all that plans
    and forecasts need, and training on it is refused.

    Parameters
    ----------
    size
        Height and width: the shorter side becomes 256/224 of it, then the middle is cut out.
    packed
        A file ``.npz`` that holds the pictures, written if it is not there (193 GB for 224).
    """
    side = whole("size", size, 8)
    files, labels, spans = _listed(path)
    classes = sorted(set(labels))
    shape = (len(files), 3, side, side)
    if packed is None:
        blank = np.zeros((1, 3, side, side), np.uint8)
        x: Any = np.broadcast_to(blank, shape).view(Unread)
    else:
        x = _packed(Path(packed), files, shape)
    ids = {wnid: place for place, wnid in enumerate(classes)}
    y = torch.tensor([ids[wnid] for wnid in labels])[:, None]
    return Data(
        x=x, y=y, train=torch.arange(*spans["train"]), test=torch.arange(*spans["val"]),
        classes=tuple(classes), name=name, notes=() if packed is not None else (PLANS,),
    )  # fmt: skip


def is_unread(data: Data) -> bool:
    """Whether only the index of a data set is known."""
    return isinstance(data.x, Unread)


def _wnids(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(one.name for one in folder.iterdir() if _WNID.fullmatch(one.name))


def _listed(path: Path) -> tuple[list[Path], list[str], dict[str, tuple[int, int]]]:
    files: list[Path] = []
    labels: list[str] = []
    spans = {}
    known = _wnids(path / _PARTS[0])
    for part in _PARTS:
        start = len(files)
        for wnid in _wnids(path / part):
            if wnid not in known:
                raise bad(str(path / part), "classes that train has", wnid)
            found = images_in(path / part / wnid)
            if not found:
                raise bad(str(path / part / wnid), "pictures", "none")
            files += found
            labels += [wnid] * len(found)
        spans[part] = (start, len(files))
    return files, labels, spans


def _packed(file: Path, files: list[Path], shape: tuple[int, ...]) -> Any:
    if not file.exists():
        with MappedWriter(file, shape) as writer:
            for start in range(0, len(files), _CHUNK):
                some = files[start : start + _CHUNK]
                writer.write(np.stack([_picture(one, shape[-1]) for one in some]))
            writer.finish()
    x, _ = read_mapped(file)
    if x.shape != shape:
        raise bad("packed", f"a file with pictures of shape {shape}", x.shape)
    return x


def _picture(file: Path, side: int) -> np.ndarray[Any, Any]:
    """[3, side, side] the middle of a picture."""
    from PIL import Image

    with Image.open(file) as image:
        colour = image.convert("RGB")
        factor = round(side * _LARGER) / min(colour.size)
        width, height = (max(side, round(one * factor)) for one in colour.size)
        left, top = (width - side) // 2, (height - side) // 2
        shown = colour.resize((width, height), Image.Resampling.BILINEAR)
        middle = shown.crop((left, top, left + side, top + side))
    return np.asarray(middle).transpose(2, 0, 1)
