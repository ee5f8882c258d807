"""Arrays in ``.npy`` files: inputs in one, labels in another."""

from __future__ import annotations

import re
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from engram.data.checked_files import check_npy, total_memory
from engram.data.dataset import Data
from engram.data.packed import to_channels_first
from engram.data.tables.table_files import find_beside
from engram.errors import EngramError, bad

_PARTS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}


def is_npy_folder(path: Path) -> bool:
    """Whether a folder has inputs and labels, as ``x.npy`` and ``y.npy`` or by part."""
    return _pair(path, "") is not None or _pair(path, "train") is not None


def load_npy(
    path: Path,
    *,
    label: str | None = None,
    test: str | None = None,
    test_label: str | None = None,
    name: str | None = None,
) -> Data:
    """Inputs from one file and labels from another, both arrays that ``numpy.save`` wrote.

    Without `label` the file of labels is the one called ``y`` where the inputs' is called ``x``.
    Inputs of float32 or uint8 that would fill the memory stay on disk.
    """
    pairs = {"train": (path, _labels_of(path, "label", label))}
    if test is not None:
        other = find_beside(path, "test", test)
        pairs["test"] = (other, _labels_of(other, "test_label", test_label))
    return _data(
        pairs, name or re.sub(r"[_-]?x$", "", path.stem, flags=re.I) or path.resolve().parent.name
    )


def load_npy_folder(path: Path, *, name: str | None = None) -> Data:
    """A folder with ``x.npy`` and ``y.npy``, or with ``train_x.npy``, ``train_y.npy`` and so on."""
    found: dict[str, tuple[Path, Path]] = {}
    for part, words in {"train": ("",)}.items() if _pair(path, "") else _PARTS.items():
        for word in words:
            if part not in found and (pair := _pair(path, word)) is not None:
                found[part] = pair
    return _data(found, name or path.resolve().name)


def read_npy(
    path: Path, *, mapped: bool = False, wanted: str = "an array that numpy.save wrote"
) -> Any:
    """The array of a file; pickled objects are refused."""
    try:
        check_npy(path)
        found = np.load(path, allow_pickle=False, mmap_mode="r" if mapped else None)
    except EngramError:
        raise
    except (OSError, ValueError, EOFError, TokenError) as error:
        problem = str(error).splitlines()[0]
        got = "pickled objects" if "pickle" in problem else problem
        raise bad(str(path), wanted, got) from None
    if not isinstance(found, np.ndarray):
        raise bad(str(path), wanted, "an archive of arrays")
    return found


def _data(pairs: dict[str, tuple[Path, Path]], name: str) -> Data:
    # parts are joined in memory; one file alone may be larger than that
    alone = len(pairs) == 1
    loaded: dict[str, Any] = {
        part: (_inputs(x, mapped=alone and x.stat().st_size > total_memory() // 4), read_npy(y))
        for part, (x, y) in pairs.items()
    }
    x, y = loaded.pop("train")
    return Data.from_arrays(x, y, name=name, **loaded)


def _inputs(path: Path, *, mapped: bool) -> Any:
    x = read_npy(path, mapped=mapped)
    shaped = to_channels_first(x)
    kept = shaped is x and x.dtype in (np.uint8, np.float32) and x.ndim > 1
    return x if kept else np.array(shaped)


def _labels_of(path: Path, argument: str, label: str | None) -> Path:
    if label is not None:
        return find_beside(path, argument, label)
    guess = path.with_name(re.sub(r"(^|[_-])x($|[_-])", r"\1y\2", path.stem, flags=re.I) + ".npy")
    if guess != path and guess.is_file():
        return guess
    how = f"{argument}='y.npy', on the command line --label y.npy"
    expected = f"the file of labels for {path.name} ({how})"
    raise bad(argument, expected, None)


def _pair(folder: Path, part: str) -> tuple[Path, Path] | None:
    forms = [(f"{part}_x", f"{part}_y"), (f"x_{part}", f"y_{part}"), (f"X_{part}", f"y_{part}")]
    if not part:
        forms = [("x", "y"), ("X", "y")]
    for x, y in forms:
        if (folder / f"{x}.npy").is_file() and (folder / f"{y}.npy").is_file():
            return folder / f"{x}.npy", folder / f"{y}.npy"
    return None
