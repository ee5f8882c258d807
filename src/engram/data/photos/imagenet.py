"""ImageNet (ILSVRC 2012) and Tiny ImageNet: class folders by wnid, packed, left on disk, or
indexed only.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engram.data.checked_files import has_files
from engram.data.conversion import Array
from engram.data.dataset import Data
from engram.data.image_files import ImageFiles, identity_note, lazy_options, read_image_index
from engram.data.image_folder import Listing
from engram.data.images import decode
from engram.data.memory_maps import MappedWriter, read_mapped
from engram.errors import bad, check_int

_WNID = re.compile(r"n\d{8}")
_PARTS = ("train", "val")
_LARGER = 256 / 224  # the shorter side before the middle is cut out
INDEX_NOTE = "an index: pictures are not read, plans only; lazy=True or packed=FILE reads them"
_CHUNK = 64  # pictures decoded at a time


class UnreadInputs(np.ndarray[Any, Any]):
    """Inputs of the right shape that were not read: enough to plan with, not to train on."""


def is_imagenet(path: Path) -> bool:
    """Whether a folder has training and validation pictures by wnid."""
    return all(_wnids(path / part) for part in _PARTS)


def load_imagenet(
    path: Path,
    *,
    size: int = 224,
    packed: str | os.PathLike[str] | None = None,
    lazy: bool = False,
    cache: int | str | None = None,
    threads: int | None = None,
    index: str | os.PathLike[str] | None = None,
    name: str = "imagenet",
) -> Data:
    """ImageNet, classes by wnid; its validation part is the test part.

    Without `packed` and `lazy` no picture is read: the index says how many there are, which is all
    that plans and forecasts need, and training on it is refused.

    Parameters
    ----------
    size
        Height and width: the shorter side becomes 256/224 of it, then the middle is cut out.
    packed
        A file ``.npz`` that holds the pictures, written if it is not there (193 GB for 224).
    lazy
        Decode each picture from its own file when it is needed.
    cache, threads, index
        Of pictures that are decoded as needed: see `LazyOptions`.
    """
    side = check_int("size", size, 8)
    options = lazy_options(lazy, cache, threads, index)
    if options is not None and packed is not None:
        raise bad("lazy", "False where packed names a file for the pictures", True)
    listing = _list_files(path)
    classes = sorted(set(listing.labels))
    shape = (len(listing.names), 3, side, side)
    blank = np.zeros((1, 3, side, side), np.uint8)
    ids = {wnid: place for place, wnid in enumerate(classes)}
    data = Data(
        x=np.broadcast_to(blank, shape).view(UnreadInputs), name=name, classes=tuple(classes),
        y=torch.tensor([ids[wnid] for wnid in listing.labels])[:, None], notes=(INDEX_NOTE,),
        train=torch.arange(*listing.spans["train"]), test=torch.arange(*listing.spans["val"]),
    )  # fmt: skip
    if packed is not None:
        return replace(data, x=_write_packed(Path(packed), listing, data), notes=())
    if options is None:
        return data
    files = read_image_index(listing.index(), options, heads=False)
    x = ImageFiles(files, shape[1:], Middle(side), options)
    return replace(data, x=x, notes=identity_note(x))


def is_unread(data: Data) -> bool:
    """Whether only the index of a data set is known."""
    return isinstance(data.x, UnreadInputs)


def _wnids(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(one.name for one in folder.iterdir() if _WNID.fullmatch(one.name))


def _list_files(path: Path) -> Listing:
    listing, known = Listing(path), _wnids(path / _PARTS[0])
    for part in _PARTS:
        inside = _wnids(path / part)
        for wnid in inside:
            if wnid not in known:
                raise bad(str(path / part), "classes that train has", wnid)
        listing.add(part, path / part, inside)
    return listing


def _write_packed(file: Path, listing: Listing, data: Data) -> Any:
    shape = data.x.shape
    decode = Middle(shape[-1])
    if not file.exists():
        with MappedWriter(file, tuple(shape), data.facts()) as writer:
            for start in range(0, len(listing.names), _CHUNK):
                some = [str(listing.root / one) for one in listing.names[start : start + _CHUNK]]
                writer.write(np.stack([decode(one, one) for one in some]))
            writer.finish(data)
    x, _ = read_mapped(file)
    if x.shape != shape:
        raise bad("packed", f"a file with pictures of shape {shape}", x.shape)
    return x


@dataclass(frozen=True)
class Middle:
    """Decodes the middle of a picture to [3, side, side]."""

    side: int

    def __call__(self, source: Any, label: str) -> Array:
        from PIL import Image

        try:
            with Image.open(source) as image:
                colour = image.convert("RGB")
        except (OSError, SyntaxError) as problem:
            raise bad(label, "a complete image", str(problem)) from None
        side, factor = self.side, round(self.side * _LARGER) / min(colour.size)
        width, height = (max(side, round(one * factor)) for one in colour.size)
        left, top = (width - side) // 2, (height - side) // 2
        shown = colour.resize((width, height), Image.Resampling.BILINEAR)
        middle = shown.crop((left, top, left + side, top + side))
        return np.asarray(middle).transpose(2, 0, 1)


# ------------------------------------------------------------------------------------------------
# Tiny ImageNet

_SIDE = 64


def is_tiny_imagenet(path: Path) -> bool:
    """Whether a folder is laid out as the official archive."""
    return has_files(path, "wnids.txt", "val/val_annotations.txt")


def load_tiny_imagenet(path: Path, *, name: str = "tiny_imagenet") -> Data:
    """Tiny ImageNet as uint8 [N, 3, 64, 64]; its validation part is the test part.

    The official test part has no labels and is not read. Classes are WordNet ids in sorted order.
    """
    classes = sorted((path / "wnids.txt").read_text().split())
    twice = sorted({one for one in classes if classes.count(one) > 1})
    if twice:
        raise bad(f"{path / 'wnids.txt'}", "every class once", twice)
    files, labels = _list_training(path, classes)
    count = len(files)
    annotations = (path / "val" / "val_annotations.txt").read_text().splitlines()
    for number, line in enumerate(annotations, start=1):
        if line.count("\t") < 1:
            raise bad(f"val_annotations.txt, line {number}", "an image and a class", line)
        file, wnid = line.split("\t")[:2]
        if wnid not in classes:
            raise bad("val_annotations.txt", "classes that wnids.txt has", wnid)
        files.append(path / "val" / "images" / file)
        labels.append(wnid)
    x = decode(files, label=lambda i: str(files[i]))
    if x.shape[1:] != (3, _SIDE, _SIDE):
        raise bad(str(path), f"{_SIDE}x{_SIDE} colour images", x.shape[1:])
    test = (x[count:], labels[count:])
    return Data.from_arrays(x[:count], labels[:count], test=test, classes=classes, name=name)


def _list_training(path: Path, classes: list[str]) -> tuple[list[Path], list[str]]:
    files: list[Path] = []
    labels: list[str] = []
    for wnid in classes:
        found = sorted((path / "train" / wnid / "images").glob("*.JPEG"))
        if not found:
            raise bad(str(path / "train" / wnid / "images"), "JPEG files", "none")
        files += found
        labels += [wnid] * len(found)
    return files, labels
