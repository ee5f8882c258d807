"""Which form a path holds, and the reader for it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
from engram.data.photos.eight_task_sets import EIGHT_SETS, is_eight_sets, load_eight_sets
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
from engram.data.texts.clinc150 import is_clinc, load_clinc
from engram.errors import BadArgument, bad, unknown, wrap_read_errors

_PART = re.compile(r"([_-](full|sub|train\d*|test|val|valid|part\d*|\d+(mb)?))+$", re.IGNORECASE)


class Form(NamedTuple):
    """A form that files of a data set may have: what recognises it, and its reader."""

    name: str
    fits: Callable[[Path], Any]
    read: Callable[..., Data]


def _ends_in(*suffixes: str) -> Callable[[Path], bool]:
    return lambda path: path.name.endswith(suffixes)


# Files; packed ones are told apart by their keys, see `packed_place`.
_FILES = (
    Form("FER CSV", is_fer, load_fer),
    Form("CSV", is_csv, load_csv),
    Form("CLINC150", is_clinc, load_clinc),
    Form("npy", _ends_in(".npy"), load_npy),
    Form("Parquet", _ends_in(".parquet", ".pq"), load_parquet),
    Form("CIFAR archive", _ends_in(".tar.gz", ".tgz", ".tar"), load_cifar),
)
# Folders that tell by themselves which form they have.
_FOLDERS = (
    Form("idx", lambda path: find_idx(path) or find_idx(path / "raw"), load_idx),
    Form("CIFAR batches", find_cifar, load_cifar),
    Form("Tiny ImageNet", is_tiny_imagenet, load_tiny_imagenet),
    Form("NW-UCLA JSON", is_nw_ucla, load_nw_ucla),
    Form("NTU", is_ntu, load_ntu),
    Form("CK+", is_ck_plus, load_ck_plus),
    Form("RAF-DB", is_raf_db, load_raf_db),
    Form("AffectNet", is_affectnet, load_affectnet),
    Form("BAUM-1", is_baum1, load_baum1),
    *(Form(one.form, one.fits, one.read) for one in EIGHT_SETS.values()),
    Form("CLINC150", is_clinc, load_clinc),
    Form("Hugging Face", is_huggingface, load_huggingface),
    Form("npy files", is_npy_folder, load_npy_folder),
)
# Folders that might hold anything, read so where the set is asked for by its name.
_BY_NAME = {
    "fer2013": Form("FER folders", is_fer_folder, load_fer_folder),
    "icv_mefed": Form("iCV-MEFED", is_icv_mefed, load_icv_mefed),
    "imagenet": Form("ImageNet", is_imagenet, load_imagenet),
    "eight_task": Form("Eight-Task", is_eight_sets, load_eight_sets),
}


def option_names(read: Callable[..., Data]) -> tuple[str, ...]:
    """The options of a reader, or of a function that makes data."""
    given = inspect.signature(read).parameters.values()
    return tuple(
        one.name for one in given
        if one.kind is one.KEYWORD_ONLY and one.name not in ("name", "root")
    )  # fmt: skip


def read_with_options(
    what: str, read: Callable[..., Data], known: Iterable[str], options: dict[str, Any]
) -> Data:
    """What a reader gives that knows some options; refuses others, but resizes for all."""
    names = tuple(known)
    for option in options:
        if option not in (*names, "resize"):
            raise unknown(f"option of {what}", option, names or ["(none)"])
    return read_resized(read, names, options)


@dataclass(frozen=True)
class Place:
    """Something that a reader can load."""

    form: str
    path: Path
    read: Callable[..., Data]
    files: tuple[Path, ...] = ()

    def load(self, name: str | None, options: dict[str, Any]) -> Data:
        """Read it, refusing options that this form does not know."""
        read = partial(self.read, list(self.files) if self.files else self.path)
        if name is not None:
            read = partial(read, name=name)
        with wrap_read_errors(self.path, f"set of the {self.form} form", BadArgument):
            known = option_names(self.read)
            return read_with_options(f"the {self.form} form", read, known, options)


def _load_packed_skeletons(
    path: Path,
    *,
    frames: int = 52,
    repair: str = "interpolate",
    augment: str = "none",
    seed: int = 0,
    normalised: bool = True,
    name: str | None = None,
) -> Data:
    return build_skeleton_data(
        read_packed_sequences(path), name=name or set_name(path), frames=frames, repair=repair,
        augment=augment, seed=seed, normalised=normalised,
    )  # fmt: skip


# Every reader of files, for the names of its options.
READERS: tuple[Callable[..., Data], ...] = (
    *(form.read for form in (*_FILES, *_FOLDERS, *_BY_NAME.values())),
    Data.from_folder,
    _load_packed_skeletons,
    load_packed,
    load_packed_faces,
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
        forms: tuple[Form, ...] = _FILES
    elif path.is_dir():
        forms = (*([_BY_NAME[name]] if name in _BY_NAME else []), *_FOLDERS)
    else:
        return None
    for form in forms:
        if form.fits(path):
            return Place(form.name, path, form.read)
    if path.is_file():
        return None
    sets = packed_sets(path)
    if len(sets) == 1:
        return packed_place(next(iter(sets.values())), name)
    trained = path / "train"
    if not sets and list_class_folders(trained if trained.is_dir() else path):
        return Place("image folders", path, Data.from_folder)
    return None


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
