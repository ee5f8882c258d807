"""`load` and `datasets`: sets by name, by path, or from a user's function, and the options each
understands.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from engram.data.checked_files import find_below
from engram.data.dataset import Data, DataSource
from engram.data.formats import (
    READERS,
    Place,
    find_place,
    find_places,
    option_names,
    packed_place,
    packed_sets,
    read_with_options,
)
from engram.data.images import check_sides
from engram.data.named_sets import NAMED_SETS, NamedSet
from engram.data.resized_images import read_resized
from engram.data.standardization import with_normalization
from engram.errors import BadArgument, bad, suggest_name, unknown
from engram.plugins import load_user_object


@dataclass(frozen=True)
class SetInfo:
    """One line of a listing: `place` is a path, "embedded" or empty if the set is not here."""

    name: str
    summary: str
    available: bool
    place: str = ""


def search_root(root: str | Path | None = None) -> Path | None:
    """Where sets are looked for: `root`, or the environment variable ENGRAM_DATA."""
    given = root if root is not None else os.environ.get("ENGRAM_DATA")
    if given is None or str(given) == "":
        return None
    path = Path(given).expanduser()
    if not path.is_dir():
        raise bad("root" if root is not None else "ENGRAM_DATA", "a folder", str(path))
    return path


def find_set(name: str, root: Path) -> Place | None:
    """Where the set `name` lies under `root`: official files first, then packed ones."""
    known = NAMED_SETS.get(name, NamedSet(""))
    for relative in known.places:
        place = find_place(find_below(root, relative), name)
        if place is not None and known.form in place.form:
            return place
    if (root / f"{name}.npz").is_file():
        return packed_place((root / f"{name}.npz",), name)
    files = packed_sets(root).get(name)
    if files:
        return packed_place(files, name)
    return find_place(root / name, name) if (root / name).is_dir() else None


def load(
    name_or_path: str | Path,
    *,
    root: str | Path | None = None,
    resize: int | Sequence[int] | None = None,
    crop: int | Sequence[int] | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    standardize: bool = False,
    limit: int | None = None,
    **options: Any,
) -> Data:
    """Load a data set by name, or from a file or folder.

    Parameters
    ----------
    name_or_path
        A name that `datasets` lists, the name of a set under the search root, or a path: a packed
        ``.npz``, a table (``.csv``, ``.parquet``, with ``label="NAME OF A COLUMN"``), an ``.npy``
        file, a data set of Hugging Face, an official archive, or the folder of one set. Or
        ``module:name``, ``file.py:name``: a function of yours that returns data, see
        `load_user_set`.
    root
        Folder in which names are looked for; the environment variable ENGRAM_DATA by default.
    resize, crop
        Of images, in pixels: one number for a square, or (height, width). All are resized, then
        networks see the middle of that size; random crops of training come from the whole image.
    mean, std
        Normalise with these, one number for each channel (or one for all), in place of the set's
        own. Pixels lie in [0, 1] before that.
    standardize
        Streams normalise every feature with its mean and standard deviation over the training rows
        of their first task.
    limit
        For quick trials: at most so many rows of each part, see `Data.limit`.
    options
        Options of the set or form, such as ``verify=False`` (skip checksums), ``size``, ``broken``,
        ``packed`` (faces), ``split``, ``repair``, ``frames`` (skeletons), ``classes`` (blobs,
        ntu60), ``persons`` (ntu60).

    Examples
    --------
    >>> load("digits")
    Data('digits': 1442 train, 355 test rows of (1, 8, 8), 10 classes)
    >>> load("digts")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: data: unknown name 'digts', did you mean 'digits'? Known: aff...
    """
    if resize is not None:
        options["resize"] = resize
    data, name = _load_any(name_or_path, root, options)
    given = dict(options)
    if crop is not None:
        data, given = replace(data, crop=check_sides("crop", crop)), {**given, "crop": crop}
    if mean != () or std != ():
        if standardize:
            raise bad("standardize", "False where mean and std are given", standardize)
        data, given = with_normalization(data, mean, std), {**given, "mean": mean, "std": std}
    if standardize is not False:
        data = replace(data, standardize=standardize, mean=(), std=())
        given = {**given, "standardize": standardize}
    if limit is not None:
        data, given = data.limit(limit), {**given, "limit": limit}
    found = DataSource(name, given, None if root is None else str(Path(root).absolute()))
    object.__setattr__(data, "source", found)
    return data


def _load_any(
    name_or_path: str | Path, root: str | Path | None, options: dict[str, Any]
) -> tuple[Data, str]:
    """The data, and the name or absolute path by which it is found again."""
    name = str(name_or_path)
    known = NAMED_SETS.get(name) if isinstance(name_or_path, str) else None
    if known is not None and known.make is not None:
        return read_with_options(name, known.make, option_names(known.make), options), name
    if isinstance(name_or_path, str) and is_user_set(name):
        return read_resized(partial(load_user_set, name), (), options), name
    path = Path(name).expanduser()
    looks_like_path = isinstance(name_or_path, Path) or os.sep in name or path.suffix != ""
    if not looks_like_path:
        place_root = search_root(root)
        place = find_set(name, place_root) if place_root is not None else None
        if place is not None:
            return _add_row_notes(place.load(name, dict(options))), name
        if known is not None or not path.exists():
            raise _explain_not_found(name, place_root).with_kind("absent")
    return _load_path(path, root, options)


def _load_path(path: Path, root: str | Path | None, options: dict[str, Any]) -> tuple[Data, str]:
    if not path.exists() and root is not None and (Path(root) / path).exists():
        path = Path(root) / path
    if not path.exists():
        raise bad("data", "a path that exists", str(path)).with_kind("absent")
    place = find_place(path)
    if place is None:
        names = [name for name, _ in find_places(path)]
        raise bad(
            "data", "a table (.csv, .parquet), arrays (.npy, .npz), official files of a known set, "
            "a Hugging Face data set, or class folders of images",
            f"{path} with the sets {names}: load one by name with root=" if names else str(path),
        ).with_kind("absent")  # fmt: skip
    return _add_row_notes(place.load(None, dict(options))), str(path.absolute())


def _add_row_notes(data: Data) -> Data:
    return replace(data, notes=(*data.notes, *missing_rows(data)))


def missing_rows(data: Data) -> tuple[str, ...]:
    """Where a set known by name has other than its official number of rows."""
    known = NAMED_SETS.get(data.name)
    if known is None or known.rows is None:
        return ()
    parts = (("training", data.train), ("test", data.test))
    notes = []
    for (part, rows), official in zip(parts, known.rows, strict=True):
        counts = data.labels[rows].bincount(minlength=data.n_classes).unique()
        if known.classes == data.n_classes and len(counts) == 1:
            found, wanted, unit = int(counts[0]), official // data.n_classes, "rows per class"
        else:
            found, wanted, unit = len(rows), official, "rows"
        if found != wanted:
            notes.append(f"{part} set has {found} of {wanted} {unit}")
    return tuple(notes)


def _explain_not_found(name: str, root: Path | None) -> BadArgument:
    known = NAMED_SETS.get(name)
    names = sorted({*NAMED_SETS, *((found for found, _ in find_places(root)) if root else ())})
    if known is None:
        guess = suggest_name(name, names)
        hint = f", did you mean {guess!r}?" if guess else "."
        where = f" Looked in {root} for {name}/, {name}.npz and {name}_*.npz." if root else ""
        where += f" Nor is there a file or folder called {name} here."
        return BadArgument(f"data: unknown name {name!r}{hint} Known: {', '.join(names)}.{where}")
    if root is None:
        return BadArgument(
            f"data: {name} is not part of the package: give root= (--root) or set ENGRAM_DATA to "
            f"a folder with one of {', '.join((*known.places, f'{name}*.npz'))}"
        )
    looked = ", ".join((*known.places, f"{name}.npz", f"{name}_*.npz"))
    return BadArgument(
        f"data: {name} was not found under {root}: looked for {looked}"
        f"{_describe_other_content(known, root)}"
    )


def _describe_other_content(known: NamedSet, root: Path) -> str:
    """What is there under one of a set's names, and holds something else."""
    for relative in known.places:
        place = find_below(root, relative)
        if relative != "." and place.exists():
            wanted = f", which has {known.holds}" if known.holds else ""
            return f". {place} is there, but not in the {known.form} form{wanted}"
    return ""


def datasets(root: str | Path | None = None) -> tuple[SetInfo, ...]:
    """All built-in data sets, then others found in the data root.

    Examples
    --------
    >>> [one.name for one in datasets() if one.place == "embedded"]
    ['digits', 'blobs', 'shapes', 'skeletons', 'faces', 'requests', 'chatter', 'glyphs']
    """
    where = search_root(root)
    out = []
    for name, known in NAMED_SETS.items():
        place = find_set(name, where) if known.make is None and where is not None else None
        shown = "embedded" if known.make else str(place.path) if place else ""
        out.append(SetInfo(name, known.summary, bool(shown), shown))
    taken = {one.place for one in out}
    for name, place in find_places(where) if where is not None else ():
        if name not in NAMED_SETS and str(place.path) not in taken:
            out.append(SetInfo(name, f"own data ({place.form})", True, str(place.path)))
    return tuple(out)


# ------------------------------------------------------------------------------------------------
# Data that a user's own function makes, named module:function


def is_user_set(name: str) -> bool:
    """Whether a name is one of a user's code; a path that exists is not.

    Examples
    --------
    >>> is_user_set("mine.py:make_data"), is_user_set("digits")
    (True, False)
    """
    return ":" in name and not Path(name).exists()


def load_user_set(name: str, **options: Any) -> Data:
    """What ``module:name`` is or returns, as Data.

    It may be Data, a torch dataset, a table (pandas.DataFrame), a pair ``(x, y)``, or a function or
    class that gives one of these. Options that it has go to it, the others to `Data.from_arrays`,
    `Data.from_torch` or `Data.from_frame` (``label``, ``missing``, ...).
    """
    found = load_user_object(name, what="data")
    made = not isinstance(found, type) and not inspect.isroutine(found)
    if not made:
        known = inspect.signature(found).parameters
        own = {key: options.pop(key) for key in list(options) if key in known}
        try:
            inspect.signature(found).bind(**own)
        except TypeError as error:
            expected = "a function or class that needs no arguments, or takes them as options"
            raise bad(name, expected, str(error)) from None
        found = found(**own)
    title = name.partition(":")[2]
    if isinstance(found, Data):
        for option in options:
            raise unknown(f"option of {name}", option, ["(none)"])
        return found
    pandas = sys.modules.get("pandas")  # whoever made a table has imported it
    if pandas is not None and isinstance(found, pandas.DataFrame):
        return Data.from_frame(found, **{"name": title, **options})
    if isinstance(found, tuple) and len(found) == 2:
        return Data.from_arrays(*found, **{"name": title, **options})
    if hasattr(found, "__getitem__") and hasattr(found, "__len__"):
        return Data.from_torch(found, **{"name": title, **options})
    expected = "Data, a torch dataset with len() and [i], a table, or a pair (x, y)"
    raise bad(name, expected, type(found).__name__)


# ------------------------------------------------------------------------------------------------
# The options that data can be loaded with


@cache
def data_options(name: str) -> frozenset[str]:
    """What a set that is made on the spot, or else some form of files, may be told when loaded.

    Examples
    --------
    >>> {"standardize", "noise"} <= data_options("faces"), "noise" in data_options("blobs")
    (True, False)
    >>> {"missing", "repair", "header"} <= data_options("mine.csv")
    True
    """
    known = NAMED_SETS.get(name)
    readers = READERS if known is None or known.make is None else (known.make,)
    return frozenset(one for reader in (load, *readers) for one in option_names(reader))
