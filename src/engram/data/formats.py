"""Which form a path holds, and the reader for it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from engram.data.dataset import Data
from engram.data.faces.affectnet import is_affectnet, load_affectnet
from engram.data.faces.baum1 import is_baum1, load_baum1
from engram.data.faces.ck_plus import is_ck_plus, load_ck_plus
from engram.data.faces.expressions import FACE_SETS
from engram.data.faces.fer2013 import (
    is_fer,
    is_fer_folder,
    load_fer,
    load_fer_folder,
    load_packed_faces,
)
from engram.data.faces.icv_mefed import is_icv_mefed, load_icv_mefed
from engram.data.faces.raf_db import is_raf_db, load_raf_db
from engram.data.huggingface import is_huggingface, load_huggingface
from engram.data.image_folder import is_hidden, list_class_folders
from engram.data.npy_files import is_npy_folder, load_npy, load_npy_folder
from engram.data.packed import load_packed, read_keys
from engram.data.photos.cifar import find_cifar, load_cifar
from engram.data.photos.eight_task_sets import (
    is_aircraft,
    is_chars74k,
    is_cub200,
    is_eight_sets,
    is_flowers,
    is_mit67,
    is_stanford_cars,
    is_svhn,
    is_voc_actions,
    load_aircraft,
    load_chars74k,
    load_cub200,
    load_eight_sets,
    load_flowers,
    load_mit67,
    load_stanford_cars,
    load_svhn,
    load_voc_actions,
)
from engram.data.photos.idx_files import find_idx, load_idx
from engram.data.photos.imagenet import (
    is_imagenet,
    is_tiny_imagenet,
    load_imagenet,
    load_tiny_imagenet,
)
from engram.data.resized_images import read_resized
from engram.data.skeletons.ntu import is_ntu, load_ntu
from engram.data.skeletons.nw_ucla import is_nw_ucla, load_nw_ucla
from engram.data.skeletons.skeleton_data import build_skeleton_data, read_packed_sequences
from engram.data.tables.table_files import is_csv, load_csv, load_parquet
from engram.errors import BadArgument, bad, unknown, wrap_read_errors

_PART = re.compile(r"([_-](full|sub|train\d*|test|val|valid|part\d*|\d+(mb)?))+$", re.IGNORECASE)

_Form = tuple[str, Callable[[Path], Any], Callable[..., Data]]  # name, whether it fits, reader
# Folders that tell by themselves which form they have.
_FOLDERS: tuple[_Form, ...] = (
    ("idx", lambda path: find_idx(path) or find_idx(path / "raw"), load_idx),
    ("CIFAR batches", find_cifar, load_cifar),
    ("Tiny ImageNet", is_tiny_imagenet, load_tiny_imagenet),
    ("NW-UCLA JSON", is_nw_ucla, load_nw_ucla),
    ("NTU", is_ntu, load_ntu),
    ("CK+", is_ck_plus, load_ck_plus),
    ("RAF-DB", is_raf_db, load_raf_db),
    ("AffectNet", is_affectnet, load_affectnet),
    ("BAUM-1", is_baum1, load_baum1),
    ("Flowers", is_flowers, load_flowers),
    ("MIT-67", is_mit67, load_mit67),
    ("CUB-200", is_cub200, load_cub200),
    ("Stanford Cars", is_stanford_cars, load_stanford_cars),
    ("FGVC-Aircraft", is_aircraft, load_aircraft),
    ("VOC actions", is_voc_actions, load_voc_actions),
    ("Chars74K", is_chars74k, load_chars74k),
    ("SVHN", is_svhn, load_svhn),
    ("Hugging Face", is_huggingface, load_huggingface),
    ("npy files", is_npy_folder, load_npy_folder),
)
# Folders that might hold anything, read so where the set is asked for by its name.
_BY_NAME: dict[str | None, _Form] = {
    "fer2013": ("FER folders", is_fer_folder, load_fer_folder),
    "icv_mefed": ("iCV-MEFED", is_icv_mefed, load_icv_mefed),
    "imagenet": ("ImageNet", is_imagenet, load_imagenet),
    "eight_task": ("Eight-Task", is_eight_sets, load_eight_sets),
}


@dataclass(frozen=True)
class Place:
    """Something that a reader can load."""

    form: str
    path: Path
    read: Callable[..., Data]
    files: tuple[Path, ...] = ()

    def load(self, name: str | None, options: dict[str, Any]) -> Data:
        """Read it, refusing options that this form does not know."""
        valid = inspect.signature(self.read).parameters.values()
        names = [one.name for one in valid if one.kind is one.KEYWORD_ONLY and one.name != "name"]
        for option in options:
            if option not in (*names, "resize"):
                raise unknown(f"option of the {self.form} form", option, names or ["(none)"])
        if name is not None:
            options = {**options, "name": name}
        place = list(self.files) if self.files else self.path
        with wrap_read_errors(self.path, f"set of the {self.form} form", BadArgument):
            return read_resized(partial(self.read, place), names, options)


def _load_folder(
    path: Path, *, resize: tuple[int, int] | None = None, repair: str = "error",
    lazy: bool = False, cache: int | str | None = None, threads: int | None = None,
    index: str | None = None, name: str | None = None,
) -> Data:  # fmt: skip
    return Data.from_folder(
        path, resize=resize, repair=repair, name=name, lazy=lazy, cache=cache, threads=threads,
        index=index,
    )  # fmt: skip


def _load_packed_skeletons(
    path: Path,
    *,
    frames: int = 52,
    repair: str = "interpolate",
    seed: int = 0,
    normalised: bool = True,
    name: str | None = None,
) -> Data:
    return build_skeleton_data(
        read_packed_sequences(path), name=name or set_name(path), frames=frames, repair=repair,
        seed=seed, normalised=normalised,
    )  # fmt: skip


# Every reader, for the names of its options.
FORMS: tuple[Callable[..., Data], ...] = (
    *(read for _, _, read in (*_FOLDERS, *_BY_NAME.values())),
    _load_folder,
    _load_packed_skeletons,
    load_fer,
    load_packed,
    load_packed_faces,
    load_csv,
    load_npy,
    load_parquet,
)


def set_name(file: Path) -> str:
    """The set that a packed file belongs to, by its name.

    Examples
    --------
    >>> set_name(Path("cifar100_full_train_0.npz")), set_name(Path("mnist.npz"))
    ('cifar100', 'mnist')
    """
    return _PART.sub("", file.stem) or file.stem


def packed_sets(folder: Path) -> dict[str, tuple[Path, ...]]:
    """The packed files in a folder, grouped by set; a file of the exact name stands alone."""
    groups: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*.npz")):
        groups.setdefault(set_name(file), []).append(file)
    return {name: _check_one_set(name, files) for name, files in groups.items()}


def _check_one_set(name: str, files: list[Path]) -> tuple[Path, ...]:
    exact = [file for file in files if file.stem == name]
    if exact:
        return tuple(exact)
    # training rows come first, so that the same rows have the same numbers everywhere
    return tuple(sorted(files, key=lambda file: ("train" not in file.stem.lower(), file.name)))


def packed_place(files: tuple[Path, ...], name: str | None = None) -> Place:
    """The reader of packed files, by their keys."""
    keys = read_keys(files[0])
    if "joints" in keys:
        if len(files) > 1:
            raise bad("files", "skeletons packed in one file", [one.name for one in files])
        ucla = "nw_ucla" in (name, set_name(files[0]))
        return Place("packed skeletons", files[0], load_nw_ucla if ucla else _load_packed_skeletons)
    if is_ntu(files[0]) or (name == "ntu60" and "x_train" in keys):
        return Place("prepared NTU", files[0], load_ntu)
    if {name, set_name(files[0])} & set(FACE_SETS):
        return Place("packed faces", files[0], load_packed_faces, files)
    return Place("packed", files[0], load_packed, files)


def find_place(path: Path, name: str | None = None) -> Place | None:
    """What `path` itself holds, None if no form fits."""
    if path.is_file():
        if path.suffix == ".npz":
            return packed_place((path,), name)
        if is_fer(path):
            return Place("FER CSV", path, load_fer)
        if is_csv(path):
            return Place("CSV", path, load_csv)
        if path.suffix == ".npy":
            return Place("npy", path, load_npy)
        if path.suffix in (".parquet", ".pq"):
            return Place("Parquet", path, load_parquet)
        return Place("CIFAR archive", path, load_cifar) if _is_tar(path) else None
    if not path.is_dir():
        return None
    if name in _BY_NAME and _BY_NAME[name][1](path):
        return Place(_BY_NAME[name][0], path, _BY_NAME[name][2])
    for form, fits, read in _FOLDERS:
        if fits(path):
            return Place(form, path, read)
    sets = packed_sets(path)
    if len(sets) == 1:
        return packed_place(next(iter(sets.values())), name)
    trained = path / "train"
    if not sets and list_class_folders(trained if trained.is_dir() else path):
        return Place("image folders", path, _load_folder)
    return None


def _is_tar(path: Path) -> bool:
    return path.name.endswith((".tar.gz", ".tgz", ".tar"))


def find_places(root: Path) -> Iterator[tuple[str, Place]]:
    """Sets that lie in `root` by their own name: packed files and sub-folders of a known form."""
    if not root.is_dir():
        return
    for name, files in packed_sets(root).items():
        yield name, packed_place(files, name)
    for folder in sorted(one for one in root.iterdir() if one.is_dir()):
        place = None if is_hidden(folder.name) else find_place(folder, folder.name)
        if place is not None:
            yield folder.name, place
