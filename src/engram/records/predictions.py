"""Stored predictions: what each run predicted for each test item after each stage, with scores
in 16-bit floats, and the part files that hold such entries.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from engram.errors import RecordError, bad, check_choice, wrap_read_errors
from engram.io import TensorFile, pack_tensors
from engram.records import head_views, prediction_scoring
from engram.records.journal import RecordFile, as_record
from engram.records.scored_items import HEADS, EvaluationItems
from engram.records.table_parts import Problem
from engram.records.tombstones import Tombstones

# Scores in float16, each row with its own scale. That is enough for probabilities and calibration
# later, but near ties become equal, so predictions are made from the full scores and stored too.


_LIMIT = float(np.finfo(np.float16).max)
_LEAST = 2.0**-10  # smaller rows would lose digits: float16 ends at 2 ** -24
_TOP = 15  # scaled rows lie below 2 ** 15


class Float16Scores(NamedTuple):
    """Scores as ``scores * 2 ** exponent``; `exponent` is None where all would be 0."""

    scores: npt.NDArray[np.float16]  # [..., n, C]
    exponent: npt.NDArray[np.int16] | None  # [..., n]


def as_float32_scores(scores: Any) -> npt.NDArray[np.float32]:
    """Convert scores to a float32 array, the precision in which they are compared."""
    if hasattr(scores, "detach"):
        scores = scores.detach().cpu().float().numpy()
    return np.asarray(scores, np.float32)


def to_float16(scores: Any) -> Float16Scores:
    """Convert scores [..., n, C] to the form in which they are stored.

    Rows that fit into float16 stay as they are; others are scaled by a power of two. -inf and NaN,
    which never win, become the lowest number.

    Examples
    --------
    >>> to_float16([[1.0, -2.5], [3e6, -1e6]])
    Float16Scores(scores=array([[ 1.000e+00, -2.500e+00],
           [ 2.344e+04, -7.812e+03]], dtype=float16), exponent=array([0, 7], dtype=int16))
    """
    given = as_float32_scores(scores)
    with np.errstate(invalid="ignore"):
        size = np.where(np.isfinite(given), abs(given), 0.0).max(axis=-1, initial=0.0)
    fits = ((size >= _LEAST) & (size <= _LIMIT)) | (size == 0)
    exponent = np.where(fits, 0, np.frexp(size)[1] - _TOP).astype(np.int16)
    scaled = given
    if exponent.any():
        scaled = np.ldexp(given, -exponent[..., None].astype(np.int32))
    lowest = np.fmax(scaled, -_LIMIT)  # of a NaN and a number, the number
    half = np.minimum(lowest, _LIMIT).astype(np.float16)
    return Float16Scores(half, exponent if exponent.any() else None)


def from_float16(scores: npt.NDArray[Any], exponent: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """Restore the scores that `to_float16` stored, up to rounding.

    Examples
    --------
    >>> from_float16(*to_float16([[3e6, -1e6]])).tolist()
    [[3000320.0, -999936.0]]
    """
    wide = np.asarray(scores, np.float32)
    if exponent is None:
        return wide
    return np.asarray(np.ldexp(wide, exponent[..., None].astype(np.int32)))


# Entries of several part files, found by their headers and read one at a time.


K = TypeVar("K")  # the key of an entry
V = TypeVar("V")  # the entry
P = TypeVar("P")  # its position in a file


class PartFiles(Generic[K, V, P]):
    """Entries of part files and in memory; of entries with the same key, the last counts.

    A file that cannot be read is listed in `problems` and raises no error.
    """

    def __init__(
        self,
        files: Iterable[Path | RecordFile],
        memory: Mapping[K, V],
        marks: Tombstones | None = None,
    ) -> None:
        self._files = sorted(map(as_record, files), key=lambda file: file.name)
        self._marks = {file.path.parent: marks or Tombstones() for file in self._files}
        self._memory = dict(memory)
        self._index: dict[K, P] | None = None
        self._problems: list[Problem] = []

    @classmethod
    def join(cls, several: Iterable[Self]) -> Self:
        """Join several collections; later ones take precedence."""
        whole = cls()  # type: ignore[call-arg]  # of a subclass, which can do without arguments
        for one in several:
            whole._files += one._files
            whole._memory |= one._memory
            whole._marks |= one._marks
        return whole

    def _held(self, file: RecordFile) -> Mapping[K, P]:
        """Return the entries of a file that are not superseded, with their positions."""
        raise NotImplementedError

    def _places(self) -> dict[K, P]:
        if self._index is None:
            self._index = {}
            for file in self._files:
                try:
                    self._index.update(self._held(file))
                except RecordError as problem:
                    self._problems.append(Problem.of(file, problem))
        return self._index

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Files that could not be read."""
        self._places()
        return tuple(self._problems)

    def __len__(self) -> int:
        return len(self._places().keys() | self._memory.keys())

    def __iter__(self) -> Iterator[K]:
        return iter({**dict.fromkeys(self._places()), **dict.fromkeys(self._memory)})

    def __contains__(self, key: object) -> bool:
        return key in self._memory or key in self._places()


MOST_UINT16 = 2**16 - 1  # the largest column number that fits two bytes
KEEP = ("scores", "labels", "counts", "parameters")
_FORMAT = "engram-predictions-1"
RunName = tuple[str, int, str]  # recipe, seed, order
_FIELDS = ("scores", "exponent", "single", "multi", "parameters", "exemplars")


class StageKey(NamedTuple):
    """One run after one stage."""

    recipe: str
    seed: int
    order: str
    stage: int


def stage_key(recipe: str, seed: int, order: str, stage: int) -> StageKey:
    """Build a key from the values of a file, converted to the right types."""
    return StageKey(str(recipe), int(seed), str(order), int(stage))


@dataclass(frozen=True, eq=False, kw_only=True)
class Prediction:
    """Stored predictions of one run after one stage; fields that were not kept are None.

    Parameters
    ----------
    scores
        float16 [n, C]; read them by `full`.
    exponent
        int16 [n]: power of 2 by which a row of scores is multiplied. None means 0.
    single, multi
        Predictions made from the scores before rounding, per head view: uint16 [n]
        (uint32 beyond 65535) predicted columns, or uint8 [n, ceil(C / 8)] label sets as bits.
    parameters
        The network's parameter vector.
    buffers
        The networks' buffers by name; kept with the parameters.
    exemplars
        [4, m] rows, stages, columns and ranks of the memory; kept with the parameters.
    """

    key: StageKey
    scores: npt.NDArray[np.float16] | None = None
    exponent: npt.NDArray[np.int16] | None = None
    single: npt.NDArray[Any] | None = None
    multi: npt.NDArray[Any] | None = None
    parameters: npt.NDArray[Any] | None = None
    buffers: Mapping[str, npt.NDArray[Any]] | None = None
    exemplars: npt.NDArray[Any] | None = None

    @classmethod
    def from_scores(
        cls,
        scores: Any,
        items: EvaluationItems,
        *,
        recipe: str,
        seed: int,
        order: str = "",
        stage: int,
        keep: str = "scores",
        parameters: Any = None,
        buffers: Mapping[str, Any] | None = None,
        exemplars: Any = None,
    ) -> Prediction | None:
        """Make the stored form of scores [n, C]; None if only counts are kept.

        Parameters
        ----------
        keep
            ``labels`` (predictions in both head views); ``scores`` (these and the scores, rounded);
            ``counts`` (nothing here, the long table holds the counts); ``parameters`` (predictions,
            scores, parameters, buffers and exemplars: all that probes added later may need).

        Examples
        --------
        >>> items = EvaluationItems(
        ...     rows=[0], task=[0], targets=[1], opening=[0, 0], visible=[[1, 1]], classes=[4, 2]
        ... )
        >>> kept = Prediction.from_scores(
        ...     [[0.5, 1.5]], items, recipe="r", seed=0, stage=0, keep="labels"
        ... )
        >>> kept.predicted(items, head="single").tolist()
        [1]
        """
        check_choice("keep", keep, KEEP)
        if keep == "counts":
            return None
        key = StageKey(recipe, int(seed), order, int(stage))
        given = as_float32_scores(scores)
        kept: dict[str, Any] = {
            h: _pack_prediction(
                prediction_scoring.decide_predictions(given, items, stage=stage, head=h)
            )
            for h in items.heads
        }
        if keep != "labels":
            kept |= to_float16(given)._asdict()
        if keep != "parameters":
            return cls(key=key, **kept)
        if parameters is None:
            raise bad("parameters", 'the parameter vector, since keep="parameters"', None)
        return cls(
            key=key, parameters=_array(parameters),
            buffers={name: _array(one) for name, one in (buffers or {}).items()},
            exemplars=None if exemplars is None else _array(exemplars), **kept,
        )  # fmt: skip

    def scored(self, items: EvaluationItems) -> EvaluationItems:
        """Return those of a stream's test items that were scored: the first ones, or all."""
        kept = next((one for one in (self.scores, self.single, self.multi) if one is not None), ())
        return items.first(len(kept))

    def full(self) -> npt.NDArray[Any]:
        """Return the scores [n, C], rounded as they were stored."""
        if self.scores is None:
            raise RecordError(f"{self.key}: only labels were kept, no scores")
        return from_float16(self.scores, self.exponent)

    def predicted(
        self, items: EvaluationItems, *, head: str, threshold: float = 0.0
    ) -> npt.NDArray[Any]:
        """Return predicted columns [n], or label sets [n, C], of the `scored` items."""
        items = self.scored(items)
        check_choice("head", head, HEADS)
        if head not in items.heads:
            head_views.open_columns(items, stage=self.key.stage, head=head)  # raises
        stored = self.single if head == "single" else self.multi
        other = threshold != 0.0 and items.multilabel
        if self.scores is not None and (stored is None or other):
            stage = self.key.stage
            return prediction_scoring.decide_predictions(
                self.full(), items, stage=stage, head=head, threshold=threshold
            )
        if stored is None:
            raise RecordError(f"{self.key}: neither scores nor labels were kept")
        if threshold != 0.0 and stored.dtype == np.uint8:
            raise bad("threshold", "0, because only label sets were kept, not scores", threshold)
        if stored.dtype == np.uint8:
            return np.unpackbits(stored, axis=-1, count=items.width).astype(np.bool_)
        return stored.astype(np.int64)


def _array(value: Any) -> npt.NDArray[Any]:
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def _pack_prediction(predicted: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if predicted.dtype == np.bool_:
        return np.packbits(predicted, axis=-1)
    return predicted.astype(np.uint16 if predicted.max(initial=0) <= MOST_UINT16 else np.uint32)


def pack_predictions(predictions: Sequence[Prediction]) -> bytes:
    """Return the predictions of some runs and stages as the content of a part file."""
    arrays = {
        f"{i}/{name}": np.ascontiguousarray(getattr(one, name))
        for i, one in enumerate(predictions)
        for name in _FIELDS
        if getattr(one, name) is not None
    }
    arrays |= {
        f"{i}/buffers/{name}": np.ascontiguousarray(value)
        for i, one in enumerate(predictions)
        for name, value in (one.buffers or {}).items()
    }
    facts = {"format": _FORMAT, "moments": json.dumps([list(p.key) for p in predictions])}
    return pack_tensors(arrays, facts)


def _keys(file: RecordFile) -> list[StageKey]:
    """Read the runs and stages of a part file from its header."""
    facts = file.tensors("predictions file").facts
    if facts.get("format") != _FORMAT:
        raise RecordError(f"{file}: not a predictions file of this version")
    with wrap_read_errors(file, "predictions file"):
        return [stage_key(*one) for one in json.loads(facts["moments"])]


class Predictions(PartFiles[StageKey, Prediction, tuple[RecordFile, int]]):
    """Predictions of many runs, read from part files one run and stage at a time.

    Where several parts hold the same run and stage, the last one counts.
    """

    def __init__(
        self,
        files: Iterable[Path | RecordFile] = (),
        *,
        memory: Iterable[Prediction | None] = (),
        marks: Tombstones | None = None,
    ) -> None:
        super().__init__(files, {p.key: p for p in memory if p is not None}, marks)

    def renamed(self, runs: Mapping[RunName, RunName]) -> Predictions:
        """Return the predictions of some runs under other names, given as {new: old}."""
        found = Predictions(memory=[
            replace(one, key=StageKey(*new, key.stage))
            for new, old in runs.items() for key, one in self._memory.items() if key[:3] == old
        ])  # fmt: skip
        stages: dict[RunName, list[tuple[int, tuple[RecordFile, int]]]] = {}
        for key, place in self._places().items():
            stages.setdefault(key[:3], []).append((key.stage, place))
        found._index = {
            StageKey(*new, stage): place
            for new, old in runs.items() for stage, place in stages.get(old, ())
        }  # fmt: skip
        return found

    def _held(self, file: RecordFile) -> dict[StageKey, tuple[RecordFile, int]]:
        part, hidden = file.part, self._marks[file.path.parent].hides
        return {m: (file, i) for i, m in enumerate(_keys(file)) if not hidden(m[:3], part)}

    def __repr__(self) -> str:
        return f"Predictions({len(self)} of one run and stage)"

    def get(self, recipe: str, seed: int, order: str, stage: int) -> Prediction | None:
        """Return the prediction of one run after one stage; None if it was not kept."""
        key = StageKey(recipe, int(seed), order, int(stage))
        if key in self._memory:
            return self._memory[key]
        place = self._places().get(key)
        return None if place is None else _load(*place, key)


@functools.lru_cache(maxsize=4)
def _open(record: RecordFile, stamp: int) -> tuple[TensorFile, frozenset[str]]:
    """Open a file and list its tensors; runs that trained together share one."""
    file = record.tensors("predictions file")
    return file, frozenset(file.keys())


def _load(record: RecordFile, index: int, key: StageKey) -> Prediction:
    file, names = _open(record, record.path.stat().st_mtime_ns)
    start = f"{index}/buffers/"
    arrays = {
        field: file.get(f"{index}/{field}") for field in _FIELDS if f"{index}/{field}" in names
    }
    buffers = {name.removeprefix(start): file.get(name) for name in names if name.startswith(start)}
    return Prediction(key=key, buffers=buffers, **arrays)
