"""Folders of images, one sub-folder per class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.data.images import decode, told
from engram.errors import bad

if TYPE_CHECKING:
    from engram.data.core import Data

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
_VALID = ("valid", "val", "validation")


def read_folder(
    kind: type[Data],
    path: Path,
    *,
    resize: tuple[int, int] | None,
    name: str | None,
    options: dict[str, Any],
) -> Data:
    """The work behind `Data.from_folder`."""
    if not path.is_dir():
        raise bad("path", "a folder with one sub-folder of images per class", str(path))
    parts = _parts(path)
    names = class_folders(parts["train"])
    if not names:
        raise bad("path", f"sub-folders of images in {parts['train']}", "none")
    files: list[Path] = []
    spans: dict[str, slice] = {}
    labels: list[str] = []
    for part, folder in parts.items():
        _refuse_empty(folder)
        extra = sorted(set(class_folders(folder)) - set(names))
        if extra:
            raise bad(str(folder), f"only classes that {parts['train']} has", extra)
        inside = class_folders(folder)
        found = [(file, label) for label in inside for file in images_in(folder / label)]
        spans[part] = slice(len(files), len(files) + len(found))
        files += [file for file, _ in found]
        labels += [label for _, label in found]
    x = decode(files, resize=resize, label=lambda i: str(files[i]))
    options["notes"] = (*options.get("notes", ()), *told(files, x))
    pairs = {part: (x[span], labels[span]) for part, span in spans.items()}
    train_x, train_y = pairs.pop("train")
    title = name or path.resolve().name
    return kind.from_arrays(
        train_x, train_y, classes=options.pop("classes", names), name=title, **pairs, **options
    )


def _parts(path: Path) -> dict[str, Path]:
    if not (path / "train").is_dir():
        return {"train": path}
    parts = {"train": path / "train"}
    held = [path / one for one in _VALID if (path / one).is_dir()]
    if (path / "test").is_dir():
        parts |= {"valid": held[0]} if held else {}
        return parts | {"test": path / "test"}
    # a folder with train and val only: the rows with labels that are not for training are the test
    return parts | ({"test": held[0]} if held else {})


def _refuse_empty(folder: Path) -> None:
    for one in sorted(folder.iterdir()):
        if one.is_dir() and not one.name.startswith(".") and not images_in(one):
            raise bad(str(one), f"images ({', '.join(sorted(IMAGE_SUFFIXES))})", "none")


def class_folders(folder: Path) -> list[str]:
    """Names of the sub-folders that hold images, sorted."""
    inside = (one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))
    return sorted(one.name for one in inside if images_in(one))


def images_in(folder: Path) -> list[Path]:
    """The images of a folder, sorted; whatever the case of their endings."""
    return sorted(
        one
        for one in folder.iterdir()
        if one.suffix.lower() in IMAGE_SUFFIXES and not one.name.startswith(".")
    )
