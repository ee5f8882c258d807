"""Folders of images that are read as needed: listed once, in the order of `read_folder`."""

from __future__ import annotations

import os
import stat
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engram.data.arrays import class_ids
from engram.data.attributes import of_files, train_and_test, with_numbers
from engram.data.image_files import LazyOptions, image_files, indexed, told_of
from engram.data.index import Index, index_of
from engram.data.labels import notes_on_names
from engram.errors import bad

if TYPE_CHECKING:
    from engram.data.core import Data


@dataclass
class Listing:
    """Files of all parts: names below a folder, classes, sizes and times of the last change."""

    root: Path
    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    mtimes: array[int] = field(default_factory=lambda: array("q"))
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, part: str, folder: Path, classes: list[str], suffixes: set[str]) -> None:
        """All images of the class folders of a part."""
        start = len(self.names)
        for label in classes:
            found = scan(folder / label, suffixes)
            if not found:
                raise bad(str(folder / label), f"images ({', '.join(sorted(suffixes))})", "none")
            below = os.path.relpath(folder / label, self.root)
            self.names += [os.path.join(below, name) for name, _, _ in found]
            self.sizes.extend(size for _, size, _ in found)
            self.mtimes.extend(mtime for _, _, mtime in found)
            self.labels += [label] * len(found)
        self.spans[part] = (start, len(self.names))

    def index(self) -> Index:
        """The index of all files, as far as the system tells it."""
        return index_of(self.root, self.names, self.sizes, self.mtimes)


def scan(folder: Path, suffixes: set[str]) -> list[tuple[str, int, int]]:
    """(name, size, time of the last change) of a folder's images, sorted; one look at it."""
    found = []
    with os.scandir(folder) as entries:
        for one in entries:
            if os.path.splitext(one.name)[1].lower() in suffixes and not one.name.startswith("."):
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
    index = indexed(listing.index(), lazy)
    x = image_files(index, resize, lazy)
    ids, names = class_ids([listing.labels], options.pop("classes", classes))
    rows = {part: torch.arange(*span) for part, span in listing.spans.items()}
    options = with_numbers(of_files(options, [listing.root / one for one in listing.names]), len(x))
    told, test_by = options.get("attributes"), options.pop("test_by", None)
    train, test = train_and_test(ids, rows["train"], rows.get("test"), told, test_by)
    notes = (*options.pop("notes", ()), *told_of(x), *notes_on_names(names))
    if "valid" in rows:
        options["valid"] = rows["valid"]
    return kind(
        x=x, y=ids, train=train, test=test, classes=names, name=name, notes=notes, **options
    )
