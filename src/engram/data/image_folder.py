"""Folders of images with one sub-folder per class, read into memory or left on disk."""

from __future__ import annotations

import os
import stat
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engram.data.attributes import join_train_and_test, number_attributes, read_attributes_of_files
from engram.data.conversion import to_class_ids
from engram.data.image_files import (
    FileIndex,
    LazyOptions,
    image_file_notes,
    image_files,
    make_index,
    read_image_index,
)
from engram.data.images import check_sides, decode, describe_images, refuse_broken
from engram.data.label_checks import notes_on_names
from engram.errors import BadArgument, bad, check_choice, plural

if TYPE_CHECKING:
    from engram.data.dataset import Data

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
_SUFFIX_LIST = ", ".join(sorted(IMAGE_SUFFIXES))
REPAIRS = ("error", "drop")
REPAIR_HINT = "repair='drop' skips them, on the command line --set repair=drop"
_SHOWN = 5  # files in a note
_VALID = ("valid", "val", "validation")


def read_folder(
    kind: type[Data],
    path: Path,
    *,
    resize: int | Sequence[int] | None,
    repair: str,
    name: str | None,
    options: dict[str, Any],
    lazy: LazyOptions | None = None,
) -> Data:
    """The work behind `Data.from_folder`."""
    check_choice("repair", repair, REPAIRS)
    size = parse_resize(resize)
    if not path.is_dir():
        raise bad("path", "a folder with one sub-folder of images per class", str(path))
    parts = _parts(path)
    names = list_class_folders(parts["train"])
    if not names:
        raise bad("path", f"sub-folders of images in {parts['train']}", "none")
    _refuse_empty(list(parts.values()))
    title = name or path.resolve().name
    if lazy is not None:
        if repair != "error":
            raise bad("repair", "'error' for images that are decoded as needed", repair)
        listing = Listing(path)
        for part, folder in parts.items():
            listing.add(part, folder, _classes_in(folder, parts["train"], names))
        return read_lazily(
            kind, listing, names, resize=size, name=title, lazy=lazy, options=options
        )
    pairs, notes, files = _decode_parts(path, parts, _files(parts, names), size, repair)
    options = read_attributes_of_files(options, files)
    options["notes"] = (*options.get("notes", ()), *notes)
    train_x, train_y = pairs.pop("train")
    return kind.from_arrays(
        train_x, train_y, classes=options.pop("classes", names), name=title, **pairs, **options
    )


def _files(parts: Mapping[str, Path], names: list[str]) -> list[tuple[str, str, Path]]:
    """(part, class, file) of every image."""
    return [
        (part, label, file)
        for part, folder in parts.items()
        for label in _classes_in(folder, parts["train"], names)
        for file in list_images(folder / label)
    ]


def _decode_parts(
    path: Path, parts: Iterable[str], found: Sequence[tuple[str, str, Path]],
    size: tuple[int, int] | None, repair: str,
) -> tuple[dict[str, Any], list[str], list[Path]]:  # fmt: skip
    """Images and labels of each part, what there is to tell of the files, and these themselves."""
    files = [file for _, _, file in found]
    broken: dict[int, BadArgument] = {}
    x = decode(files, resize=size, label=lambda i: str(files[i]), broken=broken)
    if repair == "error":
        refuse_broken(broken, REPAIR_HINT)
    kept = [i for i in range(len(files)) if i not in broken]
    if not kept:
        raise bad(str(path), "at least one image that can be read", "none")
    notes = [
        *describe_images([files[i] for i in kept], x[kept]),
        *(_describe_lost(files, broken) if broken else ()),
    ]
    pairs = {}
    for part in parts:
        rows = [i for i in kept if found[i][0] == part]
        pairs[part] = (x[rows], [found[i][1] for i in rows])
    return pairs, notes, [files[i] for i in kept]


def parse_resize(resize: int | Sequence[int] | None) -> tuple[int, int] | None:
    """(height, width) from two numbers, or one for a square; None stays None."""
    return None if resize is None else check_sides("resize", resize)


def _describe_lost(files: Sequence[Path], broken: Iterable[int]) -> Iterator[str]:
    names = [files[i].name for i in sorted(broken)]
    more = ", ..." if len(names) > _SHOWN else ""
    shown = ", ".join(names[:_SHOWN]) + more
    yield f"{plural(len(names), 'image')} left out that cannot be read: {shown}"


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


def _refuse_empty(folders: Sequence[Path]) -> None:
    """Refuse class folders without images, all at once."""
    empty = [
        str(one) for folder in folders for one in sorted(folder.iterdir())
        if one.is_dir() and not is_hidden(one.name) and not _has_images(one)
    ]  # fmt: skip
    if empty:
        others = f" (and {len(empty) - 1} more without any: {', '.join(empty[1:4])})"
        more = others if len(empty) > 1 else ""
        raise bad(empty[0], f"images ({_SUFFIX_LIST})", f"none{more}")


def _classes_in(folder: Path, trained: Path, names: list[str]) -> list[str]:
    """The class folders of a part: none that the training part has not."""
    inside = list_class_folders(folder)
    extra = sorted(set(inside) - set(names))
    if extra:
        raise bad(str(folder), f"only classes that also appear in {trained}", extra)
    return inside


def is_hidden(name: str) -> bool:
    """Whether a file or folder is nobody's data: ``.DS_Store``, or a Mac's own part of an archive.

    Examples
    --------
    >>> is_hidden(".DS_Store"), is_hidden("__MACOSX"), is_hidden("happy")
    (True, True, False)
    """
    return name.startswith(".") or name == "__MACOSX"


def list_class_folders(folder: Path) -> list[str]:
    """Names of the sub-folders that hold images, sorted."""
    inside = (one for one in folder.iterdir() if one.is_dir() and not is_hidden(one.name))
    return sorted(one.name for one in inside if _has_images(one))


def _has_images(folder: Path) -> bool:
    """Whether there is any; a folder of a million files is not read to its end."""
    with os.scandir(folder) as entries:
        return any(_is_image(one.name) for one in entries)


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not is_hidden(name)


def list_images(folder: Path) -> list[Path]:
    """The images of a folder, sorted; whatever the case of their endings."""
    return sorted(one for one in folder.iterdir() if _is_image(one.name))


# ------------------------------------------------------------------------------------------------
# Images that are decoded as needed: listed once, in the order of `read_folder`


@dataclass
class Listing:
    """Files of all parts: names below a folder, classes, sizes and times of the last change."""

    root: Path
    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    mtimes: array[int] = field(default_factory=lambda: array("q"))
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, part: str, folder: Path, classes: list[str]) -> None:
        """All images of the class folders of a part."""
        start = len(self.names)
        for label in classes:
            found = scan_images(folder / label)
            if not found:
                raise bad(str(folder / label), f"images ({_SUFFIX_LIST})", "none")
            below = os.path.relpath(folder / label, self.root)
            self.names += [os.path.join(below, name) for name, _, _ in found]
            self.sizes.extend(size for _, size, _ in found)
            self.mtimes.extend(mtime for _, _, mtime in found)
            self.labels += [label] * len(found)
        self.spans[part] = (start, len(self.names))

    def index(self) -> FileIndex:
        """The index of all files, as far as the system tells it."""
        return make_index(self.root, self.names, self.sizes, self.mtimes)


def scan_images(folder: Path) -> list[tuple[str, int, int]]:
    """(name, size, time of the last change) of a folder's images, sorted; one look at it."""
    found = []
    with os.scandir(folder) as entries:
        for one in entries:
            if _is_image(one.name):
                facts = one.stat()
                if not stat.S_ISREG(facts.st_mode):
                    raise bad(one.path, "an ordinary file", stat.filemode(facts.st_mode))
                found.append((one.name, facts.st_size, facts.st_mtime_ns))
    return sorted(found)


def read_lazily(
    kind: type[Data], listing: Listing, classes: list[str], *, resize: tuple[int, int] | None,
    name: str, lazy: LazyOptions, options: dict[str, Any],
) -> Data:  # fmt: skip
    """Data over the files of a listing; each is decoded when it is asked for."""
    index = read_image_index(listing.index(), lazy)
    x = image_files(index, resize, lazy)
    ids, names = to_class_ids([listing.labels], options.pop("classes", classes))
    rows = {part: torch.arange(*span) for part, span in listing.spans.items()}
    options = number_attributes(
        read_attributes_of_files(options, [listing.root / one for one in listing.names]), len(x)
    )
    told, test_by = options.get("attributes"), options.pop("test_by", None)
    train, test = join_train_and_test(ids, rows["train"], rows.get("test"), told, test_by)
    notes = (*options.pop("notes", ()), *image_file_notes(x), *notes_on_names(names))
    if "valid" in rows:
        options["valid"] = rows["valid"]
    return kind(
        x=x, y=ids, train=train, test=test, classes=names, name=name, notes=notes, **options
    )
