"""Inputs for prediction, read from files, folders or data sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.data import load
from engram.data.image_folder import IMAGE_SUFFIXES
from engram.data.images import decode, refuse_broken
from engram.data.tables.table_files import SUFFIXES, read_csv
from engram.data.tables.table_rows import read_csv_texts, read_parquet_table
from engram.data.tables.table_schema import TableReport, list_cells
from engram.deploy.table_inputs import encode_inputs
from engram.errors import BadArgument, EngramError, bad, unknown

Array = npt.NDArray[Any]
TABLES = (*SUFFIXES, ".parquet")
SOURCE_FORMS = (
    f"a folder of images, an image, .npy, .npz, {', '.join(TABLES)}, or the name of a data set"
)


class UnlabelledInputs(NamedTuple):
    """Inputs, their names, true labels if the source has them, unreadable files, and what a table
    had that the one of training did not.
    """

    x: Any
    names: list[str]
    truth: list[str] | None = None
    unreadable: tuple[str, ...] = ()
    report: TableReport | None = None


def read_inputs(
    source: str, about: dict[str, Any], *, drop: Sequence[str] = (), root: str | None = None
) -> UnlabelledInputs:
    r"""Read inputs from a file, a folder or a data set, as a model needs them.

    `about` is the model's description of inputs: their ``shape``, and the names of ``columns`` if
    it was trained on a table.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/new.csv"
    >>> _ = Path(path).write_text("a,b\n1,2\n3,4\n")
    >>> read_inputs(path, {"shape": [2], "columns": []}).x.tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    path = Path(source)
    if path.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES:
        return _read_images(path, about["shape"])
    if not path.exists():
        return _read_data_set(source, root)
    if path.name.lower().endswith(TABLES):
        return _read_table(path, about, drop)
    if path.suffix.lower() in (".npy", ".npz"):
        x = _read_array(path)
        return UnlabelledInputs(x, [str(row) for row in range(len(x))])
    raise bad("--data", SOURCE_FORMS, source)


def _read_images(path: Path, shape: Sequence[int]) -> UnlabelledInputs:
    files = [path]
    if path.is_dir():
        every = sorted(path.rglob("*"))
        files = [one for one in every if one.suffix.lower() in IMAGE_SUFFIXES
                 and one.is_file() and not one.name.startswith(".")]  # fmt: skip
    if not files:
        raise bad("--data", f"images ({', '.join(sorted(IMAGE_SUFFIXES))}) in {path}", "none")
    if len(shape) != 3:
        raise bad("--data", f"rows of shape {tuple(shape)}, as in training", "images")
    if shape[0] not in (1, 3):
        raise bad("--data", f"rows of {shape[0]} channels, as in training", "images")
    broken: dict[int, BadArgument] = {}
    x = decode(files, resize=(shape[1], shape[2]), label=lambda i: str(files[i]), broken=broken,
               grey=shape[0] == 1)  # fmt: skip
    kept = [i for i in range(len(files)) if i not in broken]
    if not kept:
        refuse_broken(broken)
    base = path if path.is_dir() else path.parent
    names = [str(files[i].relative_to(base)) for i in kept]
    return UnlabelledInputs(
        x[kept], names, unreadable=tuple(str(broken[i]) for i in sorted(broken))
    )


def _read_table(path: Path, about: dict[str, Any], drop: Sequence[str]) -> UnlabelledInputs:
    named = "tokenizer" in about or bool(about["columns"])
    table = read_table(path) if named else _read_numbers(path)
    for name in drop:
        if name not in table.columns:
            raise unknown("--drop", name, [str(one) for one in table.columns])
    names = [str(row) for row in range(len(table))]
    if named:
        x, report = encode_inputs(table.drop(columns=list(drop)), about, str(path))
        return UnlabelledInputs(x, names, _read_truth(table, about), report=report)
    table, size = table.drop(columns=list(drop)), int(np.prod(about["shape"]))
    if words := [str(name) for name in table if table[name].dtype.kind not in "biuf"]:
        expected = f"numbers in all columns (--drop {words[0]} leaves one out)"
        raise bad(str(path), expected, f"text in {', '.join(words[:5])}")
    if table.shape[1] != size:
        expected = f"{size} columns, as in training (--drop NAME leaves one out)"
        raise bad(str(path), expected, table.shape[1])
    return UnlabelledInputs(table.to_numpy(np.float32).reshape(-1, *about["shape"]), names)


def _read_truth(table: Any, about: dict[str, Any]) -> list[str] | None:
    """The labels of a table that has the column of training, and a value in each row."""
    schema = about.get("schema", {"label": [], "separator": None})
    label = schema["label"][0] if len(schema["label"]) == 1 else None
    if schema["separator"] is not None or list(table.columns).count(label) != 1:
        return None
    values = list_cells(table[label])
    whole = [int(one) if isinstance(one, float) and one % 1 == 0 else one for one in values]
    return None if None in values else [str(one) for one in whole]


def read_table(path: Path) -> Any:
    """The table of a file, for a schema to encode: values of CSV files are texts as written."""
    return read_parquet_table(path) if path.suffix.lower() == ".parquet" else read_csv_texts(path)


def _read_numbers(path: Path) -> Any:
    return read_parquet_table(path) if path.suffix.lower() == ".parquet" else read_csv(path)


def _read_array(path: Path) -> Array:
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            names = found.files
            chosen = "x" if "x" in names else names[0] if len(names) == 1 else None
            if chosen is None:
                raise bad(str(path), "an array called x", names)
            array: Array = found[chosen]
            return array
    except (OSError, ValueError, EOFError) as problem:
        if isinstance(problem, EngramError):
            raise
        raise EngramError(f"{path}: not a readable array ({problem})") from problem


def _read_data_set(source: str, root: str | None) -> UnlabelledInputs:
    """Read the test rows of a data set given by name."""
    data = load(source, root=root)
    truth = [data.classes[label] for label in data.labels[data.test].tolist()]
    names = [str(row) for row in data.test.tolist()]
    return UnlabelledInputs(data.gather(data.test), names, truth)
