"""Write Data as one packed file that reads back the same, bit by bit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engram.data.arrays import Rows
from engram.data.core import Data
from engram.data.lazy import LazyRows
from engram.data.mapped import MappedWriter
from engram.data.packed import RESERVED, TEST, TRAIN, UNUSED, VALID
from engram.errors import bad

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
    if data.copies is not None:
        raise bad("data", "data without generated copies, which are made as they are read",
                  f"{len(data.copies)} copies")  # fmt: skip
    if isinstance(data.x, (np.memmap, LazyRows)) and data.x.dtype == np.uint8:
        return _write_mapped(data, data.x, path)
    x = data.x.cpu().numpy() if isinstance(data.x, torch.Tensor) else np.asarray(data.x)
    return write_npz({"x": x, **arrays_of(data)}, path)


def _write_mapped(data: Data, x: Rows, path: Path) -> Path:
    path = with_suffix(path)
    with MappedWriter(path, x.shape, data.facts()) as writer:
        for start in range(0, len(x), _CHUNK):
            writer.write(x[start : start + _CHUNK])
        writer.finish(data, **arrays_of(data))
    return path


def arrays_of(data: Data) -> dict[str, Any]:
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
        "label": _small(y[:, 0] if y.shape[1] == 1 else y),
        "names": np.array(data.classes),
        "name": np.array(data.name),
        **_split(data),
        **{key: _small(value.cpu().numpy()) for key, value in data.attributes.items()},
        **{f"{key}_names": np.array(value) for key, value in data.attribute_names.items()},
    }
    arrays |= {key: np.array(getattr(data, key)) for key in ("mean", "std", "crop")
               if getattr(data, key)}  # fmt: skip
    if data.notes:
        arrays["notes"] = np.array(data.notes)
    return arrays


def with_suffix(path: Path) -> Path:
    """The file that is meant by a path with or without ``.npz``."""
    return path if path.suffix == ".npz" else path.with_name(path.name + ".npz")


def write_npz(arrays: Mapping[str, Any], path: Path) -> Path:
    """Write arrays to `path`, which appears only once it is complete."""
    path = with_suffix(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as stream:
            np.savez_compressed(stream, **arrays)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _split(data: Data) -> dict[str, Any]:
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


def _small(values: Any) -> Any:
    """The narrowest whole-number type that holds all values."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    return values.astype(np.result_type(np.min_scalar_type(low), np.min_scalar_type(high)))
