"""CIFAR-10 and CIFAR-100 in the official python form, CIFAR-100 in the binary form too, as archive
or unpacked.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engram.data import checksums
from engram.data.checked_files import has_files
from engram.data.conversion import Array
from engram.data.dataset import Data
from engram.data.label_checks import check_labels
from engram.data.pickles import read_pickle
from engram.errors import bad

_PIXELS = 3 * 32 * 32
MAX_ARCHIVE = 1 << 30  # bytes in an archive; the published ones have 180 MB


@dataclass(frozen=True)
class _Layout:
    name: str
    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    label: bytes
    names: bytes
    sums: Mapping[str, str]
    coarse: str = ""  # the file with the names of superclasses, in the binary form

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, self.test, self.meta, *([self.coarse] if self.coarse else []))


LAYOUTS = (
    _Layout(
        "cifar10", "cifar-10-python.tar.gz", "cifar-10-batches-py",
        tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta",
        b"labels", b"label_names", checksums.CIFAR10,
    ),
    _Layout(
        "cifar100", "cifar-100-python.tar.gz", "cifar-100-python",
        ("train",), "test", "meta", b"fine_labels", b"fine_label_names", checksums.CIFAR100,
    ),
    _Layout(
        "cifar100", "cifar-100-binary.tar.gz", "cifar-100-binary",
        ("train.bin",), "test.bin", "fine_label_names.txt", b"fine_labels", b"fine_label_names",
        checksums.CIFAR100, coarse="coarse_label_names.txt",
    ),
)  # fmt: skip


def find_cifar(path: Path) -> str | None:
    """Which CIFAR lies in a folder or an archive (judged by its name), None for neither."""
    found = _find_layout(path)
    return None if found is None else found.name


def _find_layout(path: Path) -> _Layout | None:
    for layout in LAYOUTS:
        if has_files(path, *layout.files) or (path.is_file() and path.name == layout.archive):
            return layout
    return None


def load_cifar(path: Path, *, name: str | None = None, verify: bool = True) -> Data:
    """CIFAR from the official archive or the folder inside it; superclasses become attributes."""
    layout = _find_layout(path)
    if layout is None or name not in (None, layout.name):  # an archive may have another name
        layout = next((one for one in LAYOUTS if one.name == name), None)
    if layout is None:
        wanted = " or ".join(f"{one.archive}, {one.folder}/" for one in LAYOUTS)
        raise bad("path", wanted, str(path))
    contents = _contents(path, layout)
    if verify:
        if path.is_file():
            checksums.check_md5(layout.archive, path, layout.sums, str(path))
        else:
            for file, content in contents.items():
                checksums.check_md5(file, content, layout.sums, str(path / file))
    if layout.coarse:
        return _assemble(path, layout, _read_binary(path, layout, contents))
    batches = {file: read_pickle(content, f"{path}: {file}") for file, content in contents.items()}
    for file in layout.files:
        if not isinstance(batches[file], dict):
            raise bad(f"{path}: {file}", "a dict", type(batches[file]).__name__)
    return _assemble(path, layout, batches)


def _read_binary(
    path: Path, layout: _Layout, contents: Mapping[str, bytes]
) -> dict[str, dict[bytes, Any]]:
    """The batches as of the python form: a row is a coarse label, a fine one and the pixels."""
    found: dict[str, dict[bytes, Any]] = {}
    for file in (*layout.train, layout.test):
        if len(contents[file]) % (_PIXELS + 2):
            expected = f"rows of {_PIXELS + 2} bytes"
            raise bad(f"{path}: {file}", expected, f"{len(contents[file])} bytes")
        rows = np.frombuffer(contents[file], np.uint8).reshape(-1, _PIXELS + 2)
        found[file] = {
            b"coarse_labels": rows[:, 0].tolist(), b"fine_labels": rows[:, 1].tolist(),
            b"data": rows[:, 2:].copy(),
        }  # fmt: skip
    found[layout.meta] = {
        b"fine_label_names": contents[layout.meta].split(),
        b"coarse_label_names": contents[layout.coarse].split(),
    }
    return found


def _contents(path: Path, layout: _Layout) -> dict[str, bytes]:
    if path.is_dir():
        absent = [file for file in layout.files if not (path / file).is_file()]
        if absent:
            raise bad(str(path), f"the files {', '.join(layout.files)}", f"no {absent}")
        return {file: (path / file).read_bytes() for file in layout.files}
    found: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:  # read in memory: nothing is ever unpacked to disk
                total += member.size  # before it is read or passed over
                if total > MAX_ARCHIVE:
                    raise bad(
                        str(path), f"an archive of at most {MAX_ARCHIVE} bytes", f"{total} or more"
                    )
                file = member.name.rsplit("/", 1)[-1]
                stream = archive.extractfile(member) if file in layout.files else None
                if stream is not None:
                    found[file] = stream.read()
    except (tarfile.TarError, OSError, EOFError) as problem:
        raise bad(str(path), "a complete tar archive", str(problem)) from None
    missing = [file for file in layout.files if file not in found]
    if missing:
        raise bad(str(path), f"an archive with {', '.join(layout.files)}", f"no {missing}")
    return found


def _assemble(path: Path, layout: _Layout, batches: dict[str, dict[bytes, Any]]) -> Data:
    order = (*layout.train, layout.test)
    for file in order:
        _check_batch(f"{path}: {file}", batches[file], layout.label)
    images = [batches[file][b"data"].reshape(-1, 3, 32, 32) for file in order]
    names = tuple(one.decode() for one in batches[layout.meta][layout.names])
    labels = [_labels(path, file, batches[file], layout.label, len(names)) for file in order]
    extra: dict[str, Any] = {}
    if layout.name == "cifar100":
        titles = batches[layout.meta][b"coarse_label_names"]
        each = [_labels(path, f, batches[f], b"coarse_labels", len(titles)) for f in order]
        extra["attributes"] = {"coarse": torch.from_numpy(np.concatenate(each))}
        extra["attribute_names"] = {"coarse": tuple(one.decode() for one in titles)}
    return Data.from_arrays(
        np.concatenate(images[:-1]), np.concatenate(labels[:-1]), test=(images[-1], labels[-1]),
        classes=names, name=layout.name, **extra,
    )  # fmt: skip


def _labels(path: Path, file: str, batch: dict[bytes, Any], key: bytes, classes: int) -> Array:
    where = f"{path}: {file}: {key.decode()}"
    return check_labels(where, batch.get(key, ()), len(batch[b"data"]), classes)


def _check_batch(label: str, batch: dict[bytes, Any], key: bytes) -> None:
    data: Array | None = batch.get(b"data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (_PIXELS,):
        raise bad(label, f"data of uint8 [N, {_PIXELS}]", getattr(data, "shape", None))
    if len(batch.get(key, ())) != len(data):
        raise bad(label, f"{len(data)} entries in {key.decode()}", len(batch.get(key, ())))
