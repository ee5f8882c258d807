"""Packed sets, one or several ``<set>*.npz`` files without pickles: reading and writing them.

A file holds one of these forms, told apart by its keys; further whole-number arrays of one entry
per row become attributes, ``<attribute>_names`` their names.

=====================================  ========================================================
keys                                   meaning
=====================================  ========================================================
train_x, train_y, test_x, test_y       arrays of each part (also x_train, y_train, ...; one-hot y)
x, label, split or usage               all rows; split 0 train, 1 test, 2 valid, 255 unused;
                                       usage 0 train, 1 valid, 2 test
jpeg, offsets, label                   image i is ``jpeg[offsets[i]:offsets[i + 1]]``
webp, webp_offsets, fine or label      lossless sheets of 32x32 tiles, 25 per row
joints, offsets, label                 sequence i is ``joints[offsets[i]:offsets[i + 1]]``
=====================================  ========================================================

A file with the key ``mapped`` holds its ``x`` uncompressed; it is mapped, and may exceed memory.

Without a split of their own, files named ``..train..`` and ``..test..`` or ``..val..`` are those
parts.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.data.checked_files import read_npz
from engram.data.conversion import (
    Array,
    Inputs,
    RowStore,
    hold_out_every_fifth,
    to_class_ids,
    to_inputs,
)
from engram.data.dataset import Data
from engram.data.images import cut_sheets, decode
from engram.data.label_checks import check_labels, notes_on_names
from engram.data.lazy_rows import LazyRows
from engram.data.memory_maps import MappedWriter, is_mapped, read_mapped
from engram.errors import bad
from engram.io import atomic_write

TRAIN, TEST, VALID, UNUSED = 0, 1, 2, 255
NAME_KEYS = ("names", "classes", "fine_names", "wnid")
_LABEL_KEYS = ("label", "fine", "y")
_USAGE = np.array([TRAIN, VALID, TEST], np.uint8)
RESERVED = {
    "x", "y", "label", "fine", "split", "usage", "jpeg", "webp", "offsets", "webp_offsets",
    "joints", "name", "notes", "mean", "std", "train_rows", "test_rows", "valid_rows", "mapped",
    "stamp", "crop", "sums", "hashes", *NAME_KEYS,
}  # fmt: skip


@dataclass
class _Part:
    """The rows of one file."""

    x: Array
    y: Array
    split: Array
    known_split: bool = True
    keys: Mapping[str, Array] = field(default_factory=dict)


def read_keys(file: Path) -> tuple[str, ...]:
    """The keys of a file, without reading its arrays."""
    try:
        with zipfile.ZipFile(file) as archive:
            return tuple(one.removesuffix(".npy") for one in archive.namelist())
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as problem:
        raise bad(str(file), "a complete npz file", str(problem)) from None


def load_packed(files: Sequence[Path], *, name: str | None = None) -> Data:
    """One set from its packed files (skeleton sequences: see
    `engram.data.skeletons.skeleton_data`).
    """
    if len(files) == 1 and is_mapped(files[0]):
        return _load_mapped(files[0], name)
    parts = [_read_part(file, read_npz(file), len(files) > 1) for file in files]
    x = to_inputs(str(files[0]), np.concatenate([p.x for p in parts]) if parts[1:] else parts[0].x)
    return _build_data(x, files, parts, name)


def _load_mapped(file: Path, name: str | None) -> Data:
    x, keys = read_mapped(file)
    return _build_data(x, [file], [_read_part(file, {**keys, "x": x}, False)], name)


def _build_data(x: Inputs, files: Sequence[Path], parts: list[_Part], name: str | None) -> Data:
    first = parts[0].keys
    y, classes = _labels(files, parts)
    return Data(
        x=x, y=y, classes=classes, name=name or _text(first, "name") or files[0].stem,
        **_rows(parts, y, classes), **_attributes(parts, len(x)),
        mean=_floats(first, "mean"), std=_floats(first, "std"), crop=_crop(first),
    )  # fmt: skip


def _read_part(file: Path, keys: dict[str, Array], several: bool) -> _Part:
    if {"train_x", "train_y"} <= keys.keys() or {"x_train", "y_train"} <= keys.keys():
        return _split_arrays(file, keys)
    y = next((keys[key] for key in _LABEL_KEYS if key in keys), None)
    if y is None:
        raise bad(str(file), f"labels under one of {', '.join(_LABEL_KEYS)}", sorted(keys))
    x = _pixels(file, keys)
    if len(x) != len(y):
        raise bad(str(file), f"{len(x)} labels, one per row", len(y))
    split = _split(file, keys, len(y), several)
    known = split is not None
    return _Part(x, y, split if split is not None else np.zeros(len(y), np.uint8), known, keys)


def _split_arrays(file: Path, keys: dict[str, Array]) -> _Part:
    names = ("{}_x", "{}_y") if "train_x" in keys else ("x_{}", "y_{}")
    xs, ys, codes = [], [], []
    for word, code in (("train", TRAIN), ("valid", VALID), ("test", TEST)):
        x, y = (keys.get(name.format(word)) for name in names)
        if x is None or y is None:
            continue
        if len(x) != len(y):
            raise bad(f"{file}: {names[1].format(word)}", f"{len(x)} labels, one per row", len(y))
        xs.append(to_channels_first(x))
        ys.append(y.argmax(1) if is_one_hot(y) else y)
        codes.append(np.full(len(y), code, np.uint8))
    split = np.concatenate(codes)
    return _Part(np.concatenate(xs), np.concatenate(ys), split, TEST in split, keys)


def is_one_hot(y: Array) -> bool:
    """Whether rows name one class each by a 1 in its column."""
    return (
        y.ndim == 2
        and y.shape[1] > 1
        and bool(np.isin(y, (0, 1)).all())
        and bool((y.sum(1) == 1).all())
    )


def _pixels(file: Path, keys: dict[str, Array]) -> Array:
    if "x" in keys:
        return to_channels_first(keys["x"])
    if "webp" in keys:
        return cut_sheets(_pieces(file, keys["webp"], keys.get("webp_offsets")))
    if "jpeg" in keys:
        pieces = _pieces(file, keys["jpeg"], keys.get("offsets"))
        return decode(pieces, label=lambda i: f"{file}: image {i}")
    raise bad(str(file), "one of the keys train_x, x, jpeg, webp, joints", sorted(keys))


def _pieces(file: Path, stream: Array, offsets: Array | None) -> list[bytes]:
    if offsets is None or len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(stream):
        raise bad(f"{file}: offsets", f"numbers from 0 to {len(stream)}", offsets)
    whole = stream.tobytes()
    return [whole[a:b] for a, b in pairwise(offsets)]


def to_channels_first(x: Array) -> Array:
    """uint8 images as [N, C, H, W]; other arrays as they are.

    Examples
    --------
    >>> to_channels_first(np.zeros((5, 8, 8), np.uint8)).shape
    (5, 1, 8, 8)
    """
    if x.dtype != np.uint8:
        return x
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return x


def _split(file: Path, keys: dict[str, Array], rows: int, several: bool) -> Array | None:
    if "train_rows" in keys:
        return np.full(rows, UNUSED, np.uint8)  # replaced by the rows themselves
    code = keys.get("split")
    if code is None and "usage" in keys:
        usage = keys["usage"]
        wrong = sorted(set(np.unique(usage).tolist()) - {0, 1, 2})
        if wrong or usage.dtype.kind not in "iu":
            raise bad(f"{file}: usage", "0 train, 1 valid, 2 test", wrong or str(usage.dtype))
        code = _USAGE[usage]
    if code is not None:
        strange = set(np.unique(code).tolist()) - {TRAIN, TEST, VALID, UNUSED}
        if len(code) != rows or strange:
            wanted = f"{rows} codes of 0, 1, 2, 255"
            raise bad(f"{file}: split", wanted, sorted(strange) or len(code))
        return code.astype(np.uint8)
    role = re.search(r"train|test|val", file.stem.lower()) if several else None
    if role is None:
        return None
    return np.full(rows, TRAIN if role[0] == "train" else TEST, np.uint8)


def _labels(files: Sequence[Path], parts: list[_Part]) -> tuple[Tensor, tuple[str, ...]]:
    names = [next((tuple(map(str, p.keys[k])) for k in NAME_KEYS if k in p.keys), None)
             for p in parts]  # fmt: skip
    for file, one in zip(files, names, strict=True):
        if one is not None and names[0] is not None and one != names[0]:
            raise bad(f"{file}: class names", f"those of {files[0]}", one[:5])
    return to_class_ids([part.y for part in parts], next((n for n in names if n), None))


def _rows(parts: list[_Part], y: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    first = parts[0].keys
    notes = tuple(dict.fromkeys([*map(str, first.get("notes", ())), *notes_on_names(classes)]))
    if "train_rows" in first:
        rows = {p: torch.from_numpy(check_labels(f"{p}_rows", found, len(found), len(y)))
                for p in ("train", "test", "valid") for found in [first[f"{p}_rows"]]}  # fmt: skip
        return {**rows, "notes": notes}
    split = torch.from_numpy(np.concatenate([part.split for part in parts]))
    train, test, valid = ((split == code).nonzero()[:, 0] for code in (TRAIN, TEST, VALID))
    if not all(part.known_split for part in parts) and not len(test):
        kept, held = hold_out_every_fifth(y[train])
        train, test = train[kept], train[held]
        notes += ("the file has no split: every fifth row of each class is held out for testing",)
    return {"train": train, "test": test, "valid": valid, "notes": notes}


def _attributes(parts: list[_Part], rows: int) -> dict[str, Any]:
    found: dict[str, Tensor] = {}
    for key, values in parts[0].keys.items():
        if key in RESERVED or values.ndim != 1 or values.dtype.kind not in "iu":
            continue
        each = [part.keys.get(key) for part in parts]
        if all(e is not None and len(e) == len(p.y) for e, p in zip(each, parts, strict=True)):
            found[key] = torch.from_numpy(np.concatenate(each).astype(np.int64))  # type: ignore[arg-type]
    titles = {key: tuple(map(str, parts[0].keys[f"{key}_names"]))
              for key in found if f"{key}_names" in parts[0].keys}  # fmt: skip
    return {"attributes": found, "attribute_names": titles}


def _text(keys: Mapping[str, Array], key: str) -> str:
    return str(keys[key]) if key in keys and keys[key].ndim == 0 else ""


def _floats(keys: Mapping[str, Array], key: str) -> tuple[float, ...]:
    return tuple(map(float, keys[key])) if key in keys else ()


def _crop(keys: Mapping[str, Array]) -> tuple[int, int] | None:
    if "crop" not in keys:
        return None
    height, width = map(int, keys["crop"])
    return height, width


# ------------------------------------------------------------------------------------------------
# Writing: a packed file reads back the same, bit by bit

_CHUNK = 1024  # rows copied at a time, so that a memory map is never read whole


def write_packed(data: Data, path: Path) -> Path:
    """Write `data` under the keys x, label, split, names; returns the file.

    Images of a memory map, or those decoded as needed, are not compressed, so that they can be
    mapped: the file may exceed memory.

    Examples
    --------
    >>> import tempfile
    >>> from engram.data.packed import load_packed
    >>> data = Data.from_arrays([[0.0], [1.0]] * 5, [0, 1] * 5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = load_packed([write_packed(data, Path(folder) / "small.npz")])
    >>> again.fingerprint() == data.fingerprint()
    True
    """
    if data.tokenizer is not None:
        expected = "no texts, which are read from their own file each time"
        raise bad("data", expected, f"{data.name} with the tokenizer {data.tokenizer.name!r}")
    if data.copies is not None:
        raise bad("data", "data without generated copies, which are made as they are read",
                  f"{len(data.copies)} copies")  # fmt: skip
    if isinstance(data.x, (np.memmap, LazyRows)) and data.x.dtype == np.uint8:
        return _write_mapped(data, data.x, path)
    x = data.x.cpu().numpy() if isinstance(data.x, torch.Tensor) else np.asarray(data.x)
    return write_npz({"x": x, **pack_arrays(data)}, path)


def _write_mapped(data: Data, x: RowStore, path: Path) -> Path:
    path = add_npz_suffix(path)
    with MappedWriter(path, x.shape, data.facts()) as writer:
        for start in range(0, len(x), _CHUNK):
            writer.write(x[start : start + _CHUNK])
        writer.finish(data, **pack_arrays(data))
    return path


def pack_arrays(data: Data) -> dict[str, Any]:
    """All that a packed file holds but the inputs."""
    why = "because streams fit it to their first task: say it when data is loaded"
    if data.standardize:
        raise bad("standardize", f"False, {why}", True)
    if data.fill:
        raise bad("missing", f"drop, flag or a number, {why}", "mean")
    clash = sorted(key for key in data.attributes if key in RESERVED or key.endswith("_names"))
    if clash:
        raise bad("attributes", "names that are no keys of the packed form", clash)
    y = data.y.cpu().numpy()
    arrays: dict[str, Any] = {
        "label": _narrow(y[:, 0] if y.shape[1] == 1 else y),
        "names": np.array(data.classes),
        "name": np.array(data.name),
        **_split_codes(data),
        **{key: _narrow(value.cpu().numpy()) for key, value in data.attributes.items()},
        **{f"{key}_names": np.array(value) for key, value in data.attribute_names.items()},
    }
    arrays |= {key: np.array(getattr(data, key)) for key in ("mean", "std", "crop")
               if getattr(data, key)}  # fmt: skip
    if data.notes:
        arrays["notes"] = np.array(data.notes)
    return arrays


def add_npz_suffix(path: Path) -> Path:
    """The file that is meant by a path with or without ``.npz``."""
    return path if path.suffix == ".npz" else path.with_name(path.name + ".npz")


def write_npz(arrays: Mapping[str, Any], path: Path) -> Path:
    """Write arrays to `path`, which appears only once it is complete."""
    path = add_npz_suffix(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished, unfinished.open("wb") as stream:
        np.savez_compressed(stream, **arrays)
    return path


def _split_codes(data: Data) -> dict[str, Any]:
    code = torch.full((len(data),), UNUSED, dtype=torch.uint8)
    parts = {"train": TRAIN, "test": TEST, "valid": VALID}
    for part, value in parts.items():
        code[getattr(data, part)] = value
    same = all(
        torch.equal((code == value).nonzero()[:, 0], getattr(data, part).cpu())
        for part, value in parts.items()
    )
    if same:
        return {"split": code.numpy()}
    # an order of its own, or rows in two parts: codes cannot say it
    return {f"{part}_rows": getattr(data, part).cpu().numpy() for part in parts}


def _narrow(values: Any) -> Any:
    """The narrowest whole-number type that holds all values."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    return values.astype(np.result_type(np.min_scalar_type(low), np.min_scalar_type(high)))
