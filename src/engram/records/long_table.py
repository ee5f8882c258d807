"""The long table of results, one number per row: its columns, and `Rows`, which collects them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engram.errors import bad, unknown

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

TEXT_COLUMNS = ("recipe", "label", "order", "head", "metric")  # dictionary-encoded text
NUMBER_TYPES: dict[str, type[np.generic]] = {
    "seed": np.int32, "stage": np.int16, "step": np.int32, "task": np.int16, "cls": np.int32,
    "value": np.float64,
}  # fmt: skip
COLUMNS = (
    "recipe", "label", "seed", "order", "stage", "step", "task", "cls", "head", "metric", "value",
)  # fmt: skip
ABSENT_VALUES: dict[str, Any] = {
    "recipe": "", "label": "", "order": "", "head": "", "seed": 0, "stage": -1, "step": -1,
    "task": -1, "cls": -1,
}  # fmt: skip
PLACES = ("task", "cls", "step", "head")  # of a number among those of a run after a stage
_NO_PLACE = {name: ABSENT_VALUES[name] for name in PLACES}
_LIMITS = {
    name: (int(np.iinfo(kind).min), int(np.iinfo(kind).max))  # type: ignore[type-var]
    for name, kind in NUMBER_TYPES.items()
    if name != "value"
}
_Column = int | npt.NDArray[Any]  # of one chunk; a whole number or word is the same in all its rows


@functools.cache
def part_schema() -> pa.Schema:
    """Return the pyarrow schema of a part file."""
    import pyarrow as pa

    text = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [(c, text if c in TEXT_COLUMNS else pa.from_numpy_dtype(NUMBER_TYPES[c])) for c in COLUMNS]
    )


class Rows:
    """Collects rows of the long table cheaply, many at a time.

    Parameters
    ----------
    recipe, label, seed, order
        The run that rows belong to unless a call says otherwise.
    runs
        Number R of runs that are recorded together after one stage: `add` then takes values [R] or
        [R, k], and `by_run` splits the rows and names the run that each belongs to. Probes fill
        such a collection.

    Examples
    --------
    >>> rows = Rows(recipe="0a1b2c3d4e5f", label="EWC", seed=0)
    >>> rows.add("seconds", 1.5, stage=0)
    >>> rows.add_array("accuracy", [0.9, 0.4], head="single", stage=0, task=[0, 1])
    >>> len(rows), rows.frame()["value"].tolist()
    (3, [1.5, 0.9, 0.4])

    >>> rows = Rows(runs=2)
    >>> rows.add("steps", [7.0, 8.0])
    >>> rows.add("accuracy", [[0.9, 0.5], [0.8, 0.4]], task=[0, 1], head="single")
    >>> first, second = rows.by_run(recipe="rr", label=["ER", "ER"], seed=[0, 1], order=["", ""])
    >>> second.frame()[["seed", "metric", "task", "value"]].values.tolist()
    [[1, 'steps', -1, 8.0], [1, 'accuracy', 0, 0.8], [1, 'accuracy', 1, 0.4]]
    """

    def __init__(
        self, *, recipe: str = "", label: str = "", seed: int = 0, order: str = "",
        runs: int | None = None,
    ) -> None:  # fmt: skip
        self.runs = runs
        self._own: dict[str, Any] = {}
        self.bind(recipe=recipe, label=label, seed=seed, order=order)
        self._words: dict[str, dict[str, int]] = {name: {} for name in TEXT_COLUMNS}
        self._chunks: list[dict[str, _Column]] = []
        self._lengths: list[int] = []

    def __len__(self) -> int:
        return sum(self._lengths)

    def __repr__(self) -> str:
        return f"Rows({len(self)} rows)"

    def bind(self, *, recipe: str, label: str, seed: int, order: str = "") -> None:
        """Assign the rows added from now on to a run."""
        self._own = {"recipe": recipe, "label": label, "seed": seed, "order": order}

    def add(self, metric: str | Sequence[str], value: Any, **place: Any) -> None:
        """Add one number. `place`: stage, step, task, cls, head, recipe, label, seed, order.

        With R runs, add values [R, k], or [R] for one row, with a metric for all columns or one per
        column. `place` (step, task, cls, head) is broadcast to their shape.
        """
        if self.runs is None:
            self.add_array(metric, [value], **place)
        else:
            self._add_of_runs(metric, value, place)

    def add_array(self, metric: str | Sequence[str], value: Any, **place: Any) -> None:
        """Add numbers; `value` and every field of `place` are broadcast against each other.

        Examples
        --------
        >>> rows = Rows(recipe="r", seed=1)
        >>> rows.add_array("accuracy", [[0.9, 0.1], [0.5, 0.8]], stage=[[0], [1]], task=[0, 1])
        >>> rows.frame()[["stage", "task", "value"]].values.tolist()
        [[0.0, 0.0, 0.9], [0.0, 1.0, 0.1], [1.0, 0.0, 0.5], [1.0, 1.0, 0.8]]
        """
        if self.runs is not None:
            raise bad("rows", "those of one run: take `add`", self)
        for name in place:
            if name not in ABSENT_VALUES:
                raise unknown("place", name, ABSENT_VALUES)
        given: dict[str, Any] = {
            **ABSENT_VALUES,
            **self._own,
            **place,
            "metric": metric,
            "value": value,
        }
        # Constants stay single numbers until the end: most columns of most chunks are constant.
        chunk = {name: self._encode(name, one) for name, one in given.items()}
        arrays = {k: a for k, a in chunk.items() if isinstance(a, np.ndarray) and a.ndim}
        found = {a.shape for a in arrays.values()}
        try:  # the usual case is one shape, and asking numpy would take most of the time here
            shape = found.pop() if len(found) == 1 else np.broadcast_shapes(*found)
        except ValueError as problem:
            shapes = {k: a.shape for k, a in arrays.items()}
            raise bad("value", "shapes that can be broadcast", shapes) from problem
        for name, array in arrays.items():
            if not array.shape == shape == (array.size,):
                chunk[name] = np.broadcast_to(array, shape).flatten()
        self._chunks.append(chunk)
        self._lengths.append(math.prod(shape))

    def _add_of_runs(
        self, metric: str | Sequence[str], value: Any, place: Mapping[str, Any]
    ) -> None:
        value = _as_array(value)
        value = value[:, None] if value.ndim == 1 else value
        if value.ndim != 2 or len(value) != self.runs:
            raise bad(
                "value", f"numbers [{self.runs}] or [{self.runs}, k], run by run", value.shape
            )
        if not isinstance(metric, str) and len(metric) != value.shape[1]:
            raise bad("metric", f"a name for each of {value.shape[1]} columns", list(metric))
        for name in place:
            if name not in PLACES:
                raise unknown("place", name, PLACES)
        given = {**_NO_PLACE, **place, "metric": metric, "value": value}
        chunk = {name: self._encode(name, one) for name, one in given.items()}
        for name, one in chunk.items():
            if not isinstance(one, int) and one.shape != value.shape:
                chunk[name] = np.broadcast_to(one, value.shape)
        self._chunks.append(chunk)
        self._lengths.append(value.size)

    def by_run(
        self, *, recipe: Sequence[str], label: Sequence[str], seed: Sequence[int],
        order: Sequence[str], stage: int = -1,
    ) -> list[Rows]:  # fmt: skip
        """The rows of each of R runs, who have these names."""
        if self.runs is None:
            raise bad("rows", "rows of several runs, Rows(runs=...)", self)
        found = [Rows() for _ in range(self.runs)]
        if not self._chunks:
            return found
        widths = [length // self.runs for length in self._lengths]
        columns = {name: self._column_of_runs(name, widths) for name in self._chunks[0]}
        for part, *who in zip(found, recipe, label, seed, order, strict=True):
            names = dict(zip(("recipe", "label", "seed", "order"), who, strict=True))
            given: dict[str, Any] = {**names, "stage": stage}
            constant = {name: self._encode(name, one) for name, one in given.items()}
            part._words, part._lengths = self._words, [sum(widths)]
            part._chunks = [{**constant, **{name: next(rows) for name, rows in columns.items()}}]
        return found

    def _column_of_runs(self, name: str, widths: list[int]) -> Iterator[npt.NDArray[Any]]:
        """A column [K] for each run after the other; one for all where it is constant."""
        parts = [chunk[name] for chunk in self._chunks]
        kind = np.int32 if name in TEXT_COLUMNS else NUMBER_TYPES[name]
        if all(isinstance(one, int) for one in parts):
            return itertools.repeat(np.repeat(np.array(parts, kind), widths))
        shapes = [(self.runs, width) for width in widths]
        every = [np.broadcast_to(one, shape) for one, shape in zip(parts, shapes, strict=True)]  # type: ignore[arg-type]
        return iter(np.concatenate(every, axis=1).astype(kind, copy=False))

    def add_stage(self, found: Rows, *, stage: int) -> None:
        """Add the rows of one run after a stage; they belong to the run that this one knows."""
        self.extend(found.by_run(**{k: [v] for k, v in self._own.items()}, stage=stage)[0])

    def extend(self, other: Rows, prefix: str = "") -> None:
        """Add all rows of another collection, their metrics with a prefix."""
        if other.runs != self.runs:
            raise bad("rows", f"rows of {self.runs} runs", other.runs)
        moved: dict[str, list[int]] = {}
        for name in () if other._words is self._words and not prefix else TEXT_COLUMNS:
            before = prefix if name == "metric" else ""
            codes = [self._code(name, before + word) for word in other._words[name]]
            if codes != list(range(len(codes))):  # else both use the same codes
                moved[name] = codes
        for chunk in other._chunks:
            new = {name: _renumber(chunk[name], codes) for name, codes in moved.items()}
            self._chunks.append({**chunk, **new})
        self._lengths += other._lengths

    @classmethod
    def join(cls, several: Sequence[Rows]) -> Rows:
        """The rows of several collections, which stay as they are."""
        together = cls()
        if several:  # words are only ever added, so sharing them is safe
            together._words = several[0]._words
        for one in several:
            together.extend(one)
        return together

    def parts(self, size: int) -> list[Rows]:
        """Split the rows into portions of `size`, which share the words of this collection.

        Examples
        --------
        >>> rows = Rows(recipe="r")
        >>> rows.add_array("accuracy", [0.9, 0.4, 0.8, 0.7], task=[0, 1, 0, 1])
        >>> [part.frame()["value"].tolist() for part in rows.parts(2)]
        [[0.9, 0.4], [0.8, 0.7]]
        """
        columns = self._columns()
        found = []
        for start in range(0, len(self), size):
            part = Rows()
            part._words, part._lengths = self._words, [min(size, len(self) - start)]
            part._chunks = [{k: a[start : start + size] for k, a in columns.items()}]
            found.append(part)
        return found

    @property
    def metrics(self) -> set[str]:
        """Return the metrics that have rows."""
        words = list(self._words["metric"])
        codes = (np.unique(np.asarray(chunk["metric"])).tolist() for chunk in self._chunks)
        return {words[code] for some in codes for code in some}

    def _code(self, column: str, word: str) -> int:
        words = self._words[column]
        return words.setdefault(word, len(words))

    def _encode(self, column: str, given: Any) -> _Column:
        kind = type(given)
        if kind is str and column in TEXT_COLUMNS:
            return self._code(column, given)
        if kind is int and column in _LIMITS:
            low, high = _LIMITS[column]
            if low <= given <= high:
                return int(given)
        return self._fresh(column, given)

    def _fresh(self, column: str, given: Any) -> npt.NDArray[Any]:
        if column in TEXT_COLUMNS:
            words = np.asarray(given, dtype=object)
            codes = [self._code(column, str(word)) for word in words.ravel()]
            return np.array(codes, np.int32).reshape(words.shape)
        return check_whole_numbers(column, _as_array(given))

    def arrow(self) -> pa.Table:
        """Return the rows as a pyarrow table with `part_schema()`."""
        import pyarrow as pa

        columns = []
        for name, joined in self._columns().items():
            column = pa.array(joined)
            if name in TEXT_COLUMNS:
                words = pa.array(list(self._words[name]), pa.string())
                column = pa.DictionaryArray.from_arrays(column, words)
            columns.append(column)
        return pa.table(columns, schema=part_schema())

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        """Return every column as numbers or codes of words, [rows]."""
        if self.runs is not None:
            raise bad("rows", "those of one run (see `by_run`)", self)
        found = {}
        starts = list(itertools.accumulate(self._lengths, initial=0))
        for name in COLUMNS:
            parts = [chunk[name] for chunk in self._chunks]
            kind = np.int32 if name in TEXT_COLUMNS else NUMBER_TYPES[name]
            single = np.array([one if isinstance(one, int) else 0 for one in parts], kind)
            joined = np.repeat(single, self._lengths)
            for number, one in enumerate(parts):
                if not isinstance(one, int):
                    joined[starts[number] : starts[number + 1]] = one
            found[name] = joined
        return found

    def frame(self) -> pd.DataFrame:
        """Return the rows as a pandas frame."""
        return to_frame(self.arrow())


def _as_array(value: Any) -> npt.NDArray[Any]:
    """Convert numbers or tensors to an array on the host."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def _renumber(column: _Column, codes: list[int]) -> _Column:
    return codes[column] if isinstance(column, int) else np.array(codes, np.int32)[column]


def check_whole_numbers(column: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Raise if the column's type cannot hold the values, which would wrap silently."""
    kind = NUMBER_TYPES[column]
    if column == "value" or array.dtype == kind:
        return array.astype(kind)
    low, high = _LIMITS[column]
    fits = array.size == 0 or (array.min() >= low and array.max() <= high)
    if not fits or (array.dtype.kind not in "iu" and not np.all(array == np.round(array))):
        raise bad(column, f"whole numbers from {low} to {high}", array.tolist())
    return array.astype(kind)


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Convert a long table to pandas, with text columns as categories."""
    frame: pd.DataFrame = table.unify_dictionaries().combine_chunks().to_pandas()
    return frame


def from_frame(frame: pd.DataFrame) -> pa.Table:
    """Convert a pandas frame to a long table; absent columns get their "none" value."""
    import pandas as pd
    import pyarrow as pa

    if "metric" not in frame or "value" not in frame:
        raise bad("frame", f"columns metric and value (all: {', '.join(COLUMNS)})", list(frame))
    for name in frame:
        if name not in COLUMNS:
            raise unknown("frame", name, COLUMNS)
    full = {c: frame[c] if c in frame else ABSENT_VALUES[c] for c in COLUMNS}
    built = pd.DataFrame(full, index=frame.index)
    for name in TEXT_COLUMNS:
        built[name] = built[name].astype(str).astype("category")
    for name in NUMBER_TYPES:
        built[name] = check_whole_numbers(name, built[name].to_numpy())
    return pa.Table.from_pandas(built, schema=part_schema(), preserve_index=False)
