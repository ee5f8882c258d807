"""Data sets of Hugging Face on disk: as ``save_to_disk`` writes them, or as their hub has them.

Their package is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engram.data.conversion import PARTS
from engram.data.dataset import Data
from engram.data.image_folder import parse_resize
from engram.data.images import decode
from engram.errors import bad, unknown

_LABELS = ("label", "labels", "class", "target")


def is_huggingface(path: Path) -> bool:
    """Whether a folder was written by ``save_to_disk``, or has Parquet files as on their hub."""
    saved = (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    return saved or (path / "dataset_dict.json").is_file() or "train" in _shards(path)


def _shards(path: Path) -> dict[str, list[Path]]:
    """The Parquet files of each part, as the hub names them: ``train-00000-of-00002.parquet``."""
    found: dict[str, list[Path]] = {}
    for folder in (path, path / "data"):
        for file in sorted(folder.glob("*-of-*.parquet")):
            part = PARTS.get(file.name.split("-")[0].lower())
            if part is not None:
                found.setdefault(part, []).append(file)
    return found


def load_huggingface(
    path: Path,
    *,
    label: str | None = None,
    column: str | None = None,
    resize: tuple[int, int] | None = None,
    missing: str | float = "error",
    pad: str = "back",
    name: str | None = None,
) -> Data:
    """Inputs and labels from the Arrow files of a saved data set.

    Parameters
    ----------
    label
        The column of classes; by default the only one that is declared so, or is called ``label``.
    column
        The column of inputs: images, or lists of numbers of one shape or of different lengths. By
        default the only one of these; without any, all columns of numbers and text are features, as
        in `Data.from_frame`, and `missing` says what happens to values that are not there.
    """
    tables = _tables(path)
    features = _features(tables["train"])
    columns = tables["train"].column_names
    label = label or _label(features, columns, path)
    for argument, one in (("label", label), ("column", column)):
        if one is not None and one not in columns:
            raise unknown(f"{argument} of {path.name}", one, columns)
    title = name or path.resolve().name
    known = _names(features.get(label, {}))
    labels = {part: _classes(table.column(label), known) for part, table in tables.items()}
    inputs = column or _input(tables["train"], features, label, path)
    if inputs is None:
        return _read_tables(tables, labels, label, missing, title)
    cells = {part: table.column(inputs).to_pylist() for part, table in tables.items()}
    for part, rows in cells.items():
        empty = sum(one is None for one in rows)
        if empty:
            raise bad(f"column {inputs!r}", "a value in every row", f"{empty} missing in {part}")
    options: dict[str, Any] = {"name": title}
    if known:
        options["classes"] = list(known)
    if _is_image(tables["train"], features, inputs):
        return _pictures(path, cells, labels, parse_resize(resize), options)
    return _arrays(cells, labels, pad, options)


def _tables(path: Path) -> dict[str, Any]:
    """The rows of each part."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shards = _shards(path)
    if "train" not in shards:
        return {part: _table(folder) for part, folder in _parts(path).items()}
    if "test" not in shards and "valid" in shards:
        shards["test"] = shards.pop("valid")
    tables = {}
    for part, files in shards.items():
        try:
            tables[part] = pa.concat_tables([pq.read_table(one) for one in files])
        except (pa.ArrowException, OSError) as error:
            problem = str(error).splitlines()[0]
            raise bad(str(files[0].parent), "Parquet files of one form", problem) from None
    return tables


def _parts(path: Path) -> dict[str, Path]:
    """The folder of each part; what is neither for validation nor test is for training."""
    if not (path / "dataset_dict.json").is_file():
        return {"train": path}
    said = _json(path / "dataset_dict.json").get("splits", [])
    found = {PARTS.get(str(one).lower(), ""): path / str(one) for one in said}
    found.pop("", None)
    if "train" not in found:
        raise bad(str(path / "dataset_dict.json"), "a split called train", said)
    if "test" not in found and "valid" in found:  # rows with labels that are not for training
        found["test"] = found.pop("valid")
    return found


def _table(folder: Path) -> Any:
    """All Arrow files of a part, one after the other."""
    import pyarrow as pa

    state = _json(folder / "state.json")
    if state.get("_indices_files"):
        expected = "a data set saved with its rows in order (flatten_indices before save_to_disk)"
        raise bad(str(folder), expected, "a selection of rows")
    files = [folder / str(one["filename"]) for one in state.get("_data_files", [])]
    if not files:
        raise bad(str(folder / "state.json"), "names of Arrow files", "none")
    tables = []
    for file in files:
        try:
            with pa.memory_map(str(file)) as source:
                tables.append(pa.ipc.open_stream(source).read_all())
        except (pa.ArrowException, OSError) as error:
            raise bad(str(file), "an Arrow file", str(error).splitlines()[0]) from None
    return pa.concat_tables(tables)


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise bad(str(file), "a JSON file", str(error).splitlines()[0]) from None
    if not isinstance(found, dict):
        raise bad(str(file), "a mapping", type(found).__name__)
    return found


def _features(table: Any) -> dict[str, Mapping[str, Any]]:
    """What the columns are declared to be; the Arrow files carry it."""
    said = (table.schema.metadata or {}).get(b"huggingface")
    features = json.loads(said).get("info", {}).get("features", {}) if said else {}
    return {key: value for key, value in features.items() if isinstance(value, Mapping)}


def _label(features: Mapping[str, Mapping[str, Any]], columns: list[str], path: Path) -> str:
    declared = [key for key, one in features.items() if _names(one)]
    called = [one for one in _LABELS if one in columns]
    if len(declared) == 1 or (declared and not called):
        return declared[0]
    if called:
        return called[0]
    expected = f"the column of {path.name} with the classes (on the command line --label NAME)"
    raise bad("label", expected, f"nothing; its columns are {', '.join(columns)}")


def _names(feature: Mapping[str, Any]) -> Any:
    """The names of a column of class ids, or of lists of them; None for other columns."""
    inner = feature.get("feature")
    if feature.get("_type") == "ClassLabel":
        return feature.get("names")
    return _names(inner) if isinstance(inner, Mapping) else None


def _classes(column: Any, names: Any) -> list[Any]:
    """Labels of the rows, ids as the names that are declared for them."""
    found: list[Any] = column.to_pylist()
    empty = sum(one is None for one in found)
    if empty:
        raise bad("label", "a label in every row", f"{empty} missing")
    if names is None:
        return found
    wrong = [one for one in found if isinstance(one, int) and not 0 <= one < len(names)]
    if wrong:
        raise bad("label", f"class ids below {len(names)} (-1: the rows have none)", wrong[0])
    return [names[one] if isinstance(one, int) else [names[i] for i in one] for one in found]


def _input(table: Any, features: Any, label: str, path: Path) -> str | None:
    """The one column of images or lists; None where all columns are plain values."""
    import pyarrow as pa

    found = [
        name for name in table.column_names
        if name != label and (_is_image(table, features, name)
                              or pa.types.is_nested(table.schema.field(name).type))
    ]  # fmt: skip
    if len(found) > 1:
        expected = f"the column of {path.name} with the inputs (--set column=NAME)"
        raise bad("column", expected, f"nothing; it may be {', '.join(found)}")
    return found[0] if found else None


def _is_image(table: Any, features: Any, name: str) -> bool:
    import pyarrow as pa

    kind = table.schema.field(name).type
    struct = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    declared = features.get(name, {}).get("_type") == "Image"
    return bool(declared or struct or pa.types.is_binary(kind))


def _pictures(
    path: Path, cells: Mapping[str, list[Any]], labels: Mapping[str, list[Any]],
    resize: tuple[int, int] | None, options: dict[str, Any],
) -> Data:  # fmt: skip
    flat = [_picture(one, path) for rows in cells.values() for one in rows]
    x = decode(flat, resize=resize, label=lambda i: f"{path.name}: image {i}")
    pairs: dict[str, Any] = {}
    start = 0
    for part, rows in cells.items():
        pairs[part] = (x[start : start + len(rows)], labels[part])
        start += len(rows)
    first, labels_of_first = pairs.pop("train")
    return Data.from_arrays(first, labels_of_first, **pairs, **options)


def _picture(cell: Any, path: Path) -> bytes | Path:
    if isinstance(cell, bytes):
        return cell
    if cell.get("bytes") is not None:
        return bytes(cell["bytes"])
    return path / str(cell.get("path"))


def _arrays(
    cells: Mapping[str, list[Any]], labels: Mapping[str, list[Any]], pad: str,
    options: dict[str, Any],
) -> Data:  # fmt: skip
    """Lists of numbers: of one shape as they are, else as series."""
    try:
        arrays = {part: np.asarray(rows, np.float32) for part, rows in cells.items()}
        equal = len({one.shape[1:] for one in arrays.values()}) == 1
    except (ValueError, TypeError):
        equal = False
    if not equal:
        pairs: dict[str, Any] = {part: (rows, labels[part]) for part, rows in cells.items()}
        first, y = pairs.pop("train")
        return Data.from_series(first, y, pad=pad, **pairs, **options)
    pairs = {part: (x, labels[part]) for part, x in arrays.items()}
    first, y = pairs.pop("train")
    return Data.from_arrays(first, y, **pairs, **options)


def _read_tables(
    tables: Mapping[str, Any], labels: Mapping[str, list[Any]], label: str, missing: Any, name: str
) -> Data:
    frames = {part: table.to_pandas().assign(**{label: labels[part]})
              for part, table in tables.items()}  # fmt: skip
    return Data.from_frame(frames.pop("train"), label=label, missing=missing, name=name, **frames)
