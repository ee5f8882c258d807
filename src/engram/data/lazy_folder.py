"""Folders of images that are read as needed: listed once, in the order of `read_folder`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engram.data.arrays import class_ids, hold_out
from engram.data.image_files import LazyOptions, image_files, indexed, told_of
from engram.data.labels import notes_on_names
from engram.errors import bad

if TYPE_CHECKING:
    from engram.data.core import Data

PARTS = ("train", "valid", "test")


@dataclass
class Listing:
    """Files of all parts: names below a folder, classes, what the system says of them."""

    root: Path
    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    facts: list[os.stat_result] = field(default_factory=list)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, part: str, folder: Path, classes: list[str], suffixes: set[str]) -> None:
        """All images of the class folders of a part."""
        start = len(self.names)
        for label in classes:
            found = scan(folder / label, suffixes)
            if not found:
                raise bad(str(folder / label), f"images ({', '.join(sorted(suffixes))})", "none")
            below = os.path.relpath(folder / label, self.root)
            self.names += [os.path.join(below, name) for name, _ in found]
            self.facts += [fact for _, fact in found]
            self.labels += [label] * len(found)
        self.spans[part] = (start, len(self.names))


def scan(folder: Path, suffixes: set[str]) -> list[tuple[str, os.stat_result]]:
    """Names and facts of the images of a folder, sorted; one look at the folder."""
    with os.scandir(folder) as entries:
        found = [
            (one.name, one.stat())
            for one in entries
            if os.path.splitext(one.name)[1].lower() in suffixes and not one.name.startswith(".")
        ]
    return sorted(found, key=lambda pair: pair[0])


def read_lazily(
    kind: type[Data], listing: Listing, classes: list[str], *, resize: tuple[int, int] | None,
    name: str, lazy: LazyOptions, options: dict[str, Any],
) -> Data:  # fmt: skip
    """Data over the files of a listing; each is decoded when it is asked for."""
    index = indexed(listing.root, listing.names, listing.facts, lazy)
    x = image_files(index, resize, lazy)
    ids, names = class_ids([listing.labels], options.pop("classes", classes))
    rows = {part: torch.arange(*span) for part, span in listing.spans.items()}
    train, test = rows["train"], rows.get("test")
    if test is None:
        train, test = hold_out(ids[train])
    notes = (*options.pop("notes", ()), *told_of(x), *notes_on_names(names))
    if "valid" in rows:
        options["valid"] = rows["valid"]
    return kind(
        x=x, y=ids, train=train, test=test, classes=names, name=name, notes=notes, **options
    )
