"""The long table: one number per row; what its columns are and how rows are collected."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engram.errors import bad, unknown

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

NAMES = ("recipe", "label", "order", "head", "metric")  # dictionary-encoded text
NUMBERS: dict[str, type[np.generic]] = {
    "seed": np.int32, "stage": np.int16, "step": np.int32, "task": np.int16, "cls": np.int32,
    "value": np.float64,
}  # fmt: skip
COLUMNS = (
    "recipe", "label", "seed", "order", "stage", "step", "task", "cls", "head", "metric", "value",
)  # fmt: skip
ABSENT: dict[str, Any] = {
    "recipe": "", "label": "", "order": "", "head": "", "seed": 0, "stage": -1, "step": -1,
    "task": -1, "cls": -1,
}  # fmt: skip


@functools.cache
def schema() -> pa.Schema:
    """The pyarrow schema of a part file."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [(c, text if c in NAMES else pa.from_numpy_dtype(NUMBERS[c])) for c in COLUMNS]
    )


class Rows:
    """Collects rows of the long table cheaply, many at a time.

    Parameters
    ----------
    recipe, label, seed, order
        The run that rows belong to unless a call says otherwise.

    Examples
    --------
    >>> rows = Rows(recipe="0a1b2c3d4e5f", label="EWC", seed=0)
    >>> rows.add("seconds", 1.5, stage=0)
    >>> rows.add_array("accuracy", [0.9, 0.4], head="single", stage=0, task=[0, 1])
    >>> len(rows), rows.frame()["value"].tolist()
    (3, [1.5, 0.9, 0.4])
    """

    def __init__(
        self, *, recipe: str = "", label: str = "", seed: int = 0, order: str = ""
    ) -> None:
        self._own: dict[str, Any] = {}
        self.bind(recipe=recipe, label=label, seed=seed, order=order)
        self._words: dict[str, dict[str, int]] = {name: {} for name in NAMES}
        self._scalars: dict[tuple[str, str | int], npt.NDArray[Any]] = {}  # encoded once
        self._chunks: list[dict[str, Any]] = []
        self._lengths: list[int] = []

    def __len__(self) -> int:
        return sum(self._lengths)

    def __repr__(self) -> str:
        return f"Rows({len(self)} rows)"

    def bind(self, *, recipe: str, label: str, seed: int, order: str = "") -> None:
        """From now on rows belong to this run."""
        self._own = {"recipe": recipe, "label": label, "seed": seed, "order": order}

    def add(self, metric: str, value: float, **place: Any) -> None:
        """Add one number. `place`: stage, step, task, cls, head, recipe, label, seed, order."""
        self.add_array(metric, [value], **place)

    def add_array(self, metric: str | Sequence[str], value: Any, **place: Any) -> None:
        """Add numbers; `value` and every field of `place` are broadcast against each other.

        Examples
        --------
        >>> rows = Rows(recipe="r", seed=1)
        >>> rows.add_array("accuracy", [[.9, .1], [.5, .8]], stage=[[0], [1]], task=[0, 1])
        >>> rows.frame()[["stage", "task", "value"]].values.tolist()
        [[0.0, 0.0, 0.9], [0.0, 1.0, 0.1], [1.0, 0.0, 0.5], [1.0, 1.0, 0.8]]
        """
        for name in place:
            if name not in ABSENT:
                raise unknown("place", name, ABSENT)
        given: dict[str, Any] = {**ABSENT, **self._own, **place, "metric": metric, "value": value}
        arrays = {name: self._encode(name, one) for name, one in given.items()}
        try:
            shape = np.broadcast_shapes(*(a.shape for a in arrays.values() if a.ndim))
        except ValueError as problem:
            shapes = {k: a.shape for k, a in arrays.items() if a.ndim}
            raise bad("value", "shapes that can be laid over each other", shapes) from problem
        # Scalars stay scalars until the end: most columns of most chunks are constant.
        self._chunks.append(
            {k: a if not a.ndim or a.shape == shape == (a.size,)
             else np.broadcast_to(a, shape).ravel() for k, a in arrays.items()}
        )  # fmt: skip
        self._lengths.append(math.prod(shape))

    def extend(self, other: Rows) -> None:
        """Add all rows of another collection."""
        places = {
            name: np.array([self._code(name, word) for word in other._words[name]], np.int32)
            for name in NAMES
        }
        for chunk in other._chunks:
            moved = {name: places[name][chunk[name]] for name in NAMES}
            self._chunks.append({**chunk, **moved})
        self._lengths += other._lengths

    def _code(self, column: str, word: str) -> int:
        words = self._words[column]
        return words.setdefault(word, len(words))

    def _encode(self, column: str, given: Any) -> npt.NDArray[Any]:
        if type(given) not in (str, int):
            return self._fresh(column, given)
        known = self._scalars.get((column, given))
        if known is None:
            known = self._scalars[column, given] = self._fresh(column, given)
        return known

    def _fresh(self, column: str, given: Any) -> npt.NDArray[Any]:
        if column in NAMES:
            if isinstance(given, str):
                return np.array(self._code(column, given), np.int32)
            words = np.asarray(given, dtype=object)
            codes = [self._code(column, str(word)) for word in words.ravel()]
            return np.array(codes, np.int32).reshape(words.shape)
        if hasattr(given, "detach"):
            given = given.detach().cpu().numpy()
        return _whole_or_refuse(column, np.asarray(given))

    def arrow(self) -> pa.Table:
        """The rows as a pyarrow table of `schema()`."""
        import pyarrow as pa

        columns = []
        for name in COLUMNS:
            joined = np.empty(len(self), np.int32 if name in NAMES else NUMBERS[name])
            end = 0
            for chunk, length in zip(self._chunks, self._lengths, strict=True):
                start, end = end, end + length
                joined[start:end] = chunk[name]
            column = pa.array(joined)
            if name in NAMES:
                words = pa.array(list(self._words[name]), pa.string())
                column = pa.DictionaryArray.from_arrays(column, words)
            columns.append(column)
        return pa.table(columns, schema=schema())

    def frame(self) -> pd.DataFrame:
        """The rows as a pandas frame."""
        return to_frame(self.arrow())


def _whole_or_refuse(column: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Refuse what the column's type cannot hold: a wrapped stage number would be a silent lie."""
    kind = NUMBERS[column]
    if column == "value":
        return array.astype(kind)
    limits = np.iinfo(kind)  # type: ignore[type-var]
    fits = array.size == 0 or (array.min() >= limits.min and array.max() <= limits.max)
    if not fits or not np.all(array == np.round(array)):
        raise bad(column, f"whole numbers from {limits.min} to {limits.max}", array.tolist())
    return array.astype(kind)


def to_frame(table: pa.Table) -> pd.DataFrame:
    """A pandas frame of a long table, text columns as categories with one dictionary each."""
    frame: pd.DataFrame = table.unify_dictionaries().combine_chunks().to_pandas()
    return frame


def from_frame(frame: pd.DataFrame) -> pa.Table:
    """The long table of a pandas frame; absent columns get their "none" value."""
    import pandas as pd
    import pyarrow as pa

    if "metric" not in frame or "value" not in frame:
        raise bad("frame", f"columns metric and value (all: {', '.join(COLUMNS)})", list(frame))
    for name in frame:
        if name not in COLUMNS:
            raise unknown("frame", name, COLUMNS)
    full = {c: frame[c] if c in frame else ABSENT[c] for c in COLUMNS}
    built = pd.DataFrame(full, index=frame.index)
    for name in NAMES:
        built[name] = built[name].astype(str).astype("category")
    for name in NUMBERS:
        built[name] = _whole_or_refuse(name, built[name].to_numpy())
    return pa.Table.from_pandas(built, schema=schema(), preserve_index=False)
