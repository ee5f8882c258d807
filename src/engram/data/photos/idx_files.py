"""MNIST and its relatives in the idx format, plain or gzip."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from engram.data import checksums
from engram.data.checked_files import check_size
from engram.data.conversion import Array
from engram.data.dataset import Data
from engram.data.label_checks import check_labels
from engram.errors import bad

FILES = {
    "train_x": "train-images-idx3-ubyte",
    "train_y": "train-labels-idx1-ubyte",
    "test_x": "t10k-images-idx3-ubyte",
    "test_y": "t10k-labels-idx1-ubyte",
}
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
DIGITS = 10  # classes of the published sets
_UINT8 = 0x08  # the type byte of an idx header


def find_idx(folder: Path) -> dict[str, Path] | None:
    """The four files of a set in `folder`, or None unless all are there."""
    found: dict[str, Path] = {}
    for role, stem in FILES.items():
        # some mirrors write train-images.idx3-ubyte
        spellings = (stem, stem.replace("-idx", ".idx"))
        for file in (folder / (one + end) for end in (".gz", "") for one in spellings):
            if file.is_file():
                found[role] = file
                break
        else:
            return None
    return found


def read_idx(file: Path) -> Array:
    """The uint8 array of one idx file."""
    content = file.read_bytes()
    if content[:2] == b"\x1f\x8b":
        content = _unpack(file, content)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UINT8:
        raise bad(str(file), "an idx file of bytes (00 00 08 ..)", content[:4].hex(" "))
    axes = content[3]
    offset = 4 + 4 * axes
    if axes == 0 or len(content) < offset:
        raise bad(str(file), f"a header of {offset} bytes", f"{len(content)} bytes")
    shape = struct.unpack(f">{axes}I", content[4:offset])
    if len(content) - offset != math.prod(shape):
        raise bad(str(file), f"{math.prod(shape)} bytes for shape {shape}", len(content) - offset)
    return np.frombuffer(content, np.uint8, offset=offset).reshape(shape).copy()


def _unpack(file: Path, packed: bytes) -> bytes:
    """What a gzip file holds: as much as its header announces, and one byte to notice more."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
            start = stream.read(4)
            axes = start[3] if len(start) == 4 else 0
            start += stream.read(4 * axes)
            size = math.prod(struct.unpack(f">{axes}I", start[4:])) if len(start) > 4 else 0
            check_size(str(file), size, len(packed))
            return start + stream.read(size + 1)
    except (OSError, EOFError, zlib.error, struct.error) as problem:
        raise bad(str(file), "a complete gzip file", str(problem)) from None


def load_idx(path: Path, *, name: str | None = None, verify: bool = True) -> Data:
    """A set of four idx files in a folder.

    With `name` mnist or fashion_mnist the published checksums must match; without a name the set
    is recognised by them, and a set that nobody published is read as it is.
    """
    files = find_idx(path) or find_idx(path / "raw")
    if files is None:
        wanted = ", ".join(stem + "[.gz]" for stem in FILES.values())
        raise bad("path", f"a folder with {wanted}", str(path))
    known = {"mnist": checksums.MNIST, "fashion_mnist": checksums.FASHION_MNIST}
    name = name or _check_known(files["test_y"], known) or path.resolve().name
    if verify:
        for role, file in files.items():
            official = FILES[role] + (".gz" if file.suffix == ".gz" else "")
            checksums.check_md5(official, file, known.get(name, {}), str(file))
    arrays = {role: read_idx(file) for role, file in files.items()}
    for part in ("train", "test"):
        if len(arrays[f"{part}_x"]) != len(arrays[f"{part}_y"]):
            labels = f"{len(arrays[f'{part}_x'])} labels, one per image"
            raise bad(str(files[f"{part}_y"]), labels, len(arrays[f"{part}_y"]))
        where, rows = str(files[f"{part}_y"]), len(arrays[f"{part}_x"])
        check_labels(where, arrays[f"{part}_y"], rows, DIGITS if name in known else None)
    return Data.from_arrays(
        arrays["train_x"][:, None], arrays["train_y"],
        test=(arrays["test_x"][:, None], arrays["test_y"]),
        classes=FASHION_CLASSES if name == "fashion_mnist" else None, name=name,
    )  # fmt: skip


def _check_known(file: Path, known: Mapping[str, Mapping[str, str]]) -> str | None:
    found = checksums.md5(file)  # the smallest of the four files is enough to tell sets apart
    return next((name for name, sums in known.items() if found in sums.values()), None)
