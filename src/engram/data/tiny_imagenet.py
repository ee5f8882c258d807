"""Tiny ImageNet in the official form: the folder tiny-imagenet-200."""

from __future__ import annotations

from pathlib import Path

from engram.data.core import Data
from engram.data.images import decode
from engram.errors import bad

_SIDE = 64


def is_tiny_imagenet(path: Path) -> bool:
    """Whether a folder is laid out as the official archive."""
    return (path / "wnids.txt").is_file() and (path / "val" / "val_annotations.txt").is_file()


def load_tiny_imagenet(path: Path, *, name: str = "tiny_imagenet") -> Data:
    """Tiny ImageNet as uint8 [N, 3, 64, 64]; its validation part is the test part.

    The official test part has no labels and is not read. Classes are WordNet ids in sorted order.
    """
    classes = sorted((path / "wnids.txt").read_text().split())
    twice = sorted({one for one in classes if classes.count(one) > 1})
    if twice:
        raise bad(f"{path / 'wnids.txt'}", "every class once", twice)
    files, labels = _training(path, classes)
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


def _training(path: Path, classes: list[str]) -> tuple[list[Path], list[str]]:
    files: list[Path] = []
    labels: list[str] = []
    for wnid in classes:
        found = sorted((path / "train" / wnid / "images").glob("*.JPEG"))
        if not found:
            raise bad(str(path / "train" / wnid / "images"), "JPEG files", "none")
        files += found
        labels += [wnid] * len(found)
    return files, labels
