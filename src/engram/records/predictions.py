"""Stored predictions: what each run said about each test item after each stage."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.errors import RecordError, bad, choose, read_as
from engram.records import judging, views
from engram.records.half import as_scores, halve, widen
from engram.records.items import HEADS, Items
from engram.records.part_files import PartFiles
from engram.records.superseded import Marks
from engram.tensor_file import TensorFile, save_tensors

MOST_SHORT = 2**16 - 1  # the largest column that takes two bytes
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
    """The key that a file names, whatever it wrote."""
    return StageKey(str(recipe), int(seed), str(order), int(stage))


@dataclass(frozen=True, eq=False, kw_only=True)
class Prediction:
    """What one run said after one stage; fields that were not kept are None.

    Parameters
    ----------
    scores
        float16 [n, C]; use `full` to read them.
    exponent
        int16 [n]: rows of scores are to be multiplied by 2 to this power. None means 0.
    single, multi
        What was decided from the scores before they were rounded, per head view: uint16 [n]
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
    def of(
        cls,
        scores: Any,
        items: Items,
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
        """What is kept of the scores [n, C]; None when only counts are kept.

        Parameters
        ----------
        keep
            ``labels`` (predictions in both head views); ``scores`` (these and the scores, rounded);
            ``counts`` (nothing here, the long table holds the counts); ``parameters`` (predictions,
            scores, parameters, buffers and exemplars: all that a probe may need that is named
            later).

        Examples
        --------
        >>> items = Items(rows=[0], task=[0], targets=[1], opening=[0, 0], visible=[[1, 1]],
        ...               classes=[4, 2])
        >>> kept = Prediction.of([[0.5, 1.5]], items, recipe="r", seed=0, stage=0, keep="labels")
        >>> kept.predicted(items, head="single").tolist()
        [1]
        """
        choose("keep", keep, KEEP)
        if keep == "counts":
            return None
        key = StageKey(recipe, int(seed), order, int(stage))
        given = as_scores(scores)
        kept: dict[str, Any] = {
            h: _pack(judging.decide(given, items, stage=stage, head=h)) for h in items.heads
        }
        if keep != "labels":
            kept |= halve(given)._asdict()
        if keep != "parameters":
            return cls(key=key, **kept)
        if parameters is None:
            raise bad("parameters", 'the parameter vector, since keep="parameters"', None)
        return cls(
            key=key, parameters=_array(parameters),
            buffers={name: _array(one) for name, one in (buffers or {}).items()},
            exemplars=None if exemplars is None else _array(exemplars), **kept,
        )  # fmt: skip

    def full(self) -> npt.NDArray[Any]:
        """The scores [n, C], up to the rounding with which they were stored."""
        if self.scores is None:
            raise RecordError(f"{self.key}: only labels were kept, no scores")
        return widen(self.scores, self.exponent)

    def predicted(self, items: Items, *, head: str, threshold: float = 0.0) -> npt.NDArray[Any]:
        """Predicted columns [n], or label sets [n, C] for multi-label items."""
        choose("head", head, HEADS)
        if head not in items.heads:
            views.open_columns(items, stage=self.key.stage, head=head)  # says why
        stored = self.single if head == "single" else self.multi
        other = threshold != 0.0 and items.multilabel
        if self.scores is not None and (stored is None or other):
            stage = self.key.stage
            return judging.decide(self.full(), items, stage=stage, head=head, threshold=threshold)
        if stored is None:
            raise RecordError(f"{self.key}: neither scores nor labels were kept")
        if threshold != 0.0 and stored.dtype == np.uint8:
            raise bad("threshold", "0, because only label sets were kept, not scores", threshold)
        if stored.dtype == np.uint8:
            return np.unpackbits(stored, axis=-1, count=items.width).astype(np.bool_)
        return stored.astype(np.int64)


def _array(value: Any) -> npt.NDArray[Any]:
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


def _pack(said: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if said.dtype == np.bool_:
        return np.packbits(said, axis=-1)
    return said.astype(np.uint16 if said.max(initial=0) <= MOST_SHORT else np.uint32)


def write_predictions(path: str | os.PathLike[str], predictions: Sequence[Prediction]) -> Path:
    """Write the predictions of some runs and stages as one part file, atomically."""
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
    return save_tensors(path, arrays, facts)


def _keys(path: Path) -> list[StageKey]:
    """The runs and stages of a part file, from its header alone."""
    facts = TensorFile(path, what="predictions file").facts
    if facts.get("format") != _FORMAT:
        raise RecordError(f"{path}: is not a predictions file of this version")
    with read_as(path, "predictions file"):
        return [stage_key(*one) for one in json.loads(facts["moments"])]


class Predictions(PartFiles[StageKey, Prediction, tuple[Path, int]]):
    """Predictions of many runs, read from part files one run and stage at a time.

    Where several parts hold the same run and stage, the last one counts.
    """

    def __init__(
        self,
        files: Iterable[Path] = (),
        *,
        memory: Iterable[Prediction | None] = (),
        marks: Marks | None = None,
    ) -> None:
        super().__init__(files, {p.key: p for p in memory if p is not None}, marks)

    def renamed(self, runs: Mapping[RunName, RunName]) -> Predictions:
        """The predictions of some runs under other names: new to old."""
        found = Predictions(memory=[
            replace(one, key=StageKey(*new, key.stage))
            for new, old in runs.items() for key, one in self._memory.items() if key[:3] == old
        ])  # fmt: skip
        stages: dict[RunName, list[tuple[int, tuple[Path, int]]]] = {}
        for key, place in self._places().items():
            stages.setdefault(key[:3], []).append((key.stage, place))
        found._index = {
            StageKey(*new, stage): place
            for new, old in runs.items() for stage, place in stages.get(old, ())
        }  # fmt: skip
        return found

    def _held(self, path: Path) -> dict[StageKey, tuple[Path, int]]:
        part, hidden = path.stem.removeprefix("predictions-"), self._marks[path.parent].hides
        return {m: (path, i) for i, m in enumerate(_keys(path)) if not hidden(m[:3], part)}

    def __repr__(self) -> str:
        return f"Predictions({len(self)} of one run and stage)"

    def get(self, recipe: str, seed: int, order: str, stage: int) -> Prediction | None:
        """The prediction of one run after one stage, None if it was not kept."""
        key = StageKey(recipe, int(seed), order, int(stage))
        if key in self._memory:
            return self._memory[key]
        place = self._places().get(key)
        return None if place is None else _load(*place, key)


def _load(path: Path, index: int, key: StageKey) -> Prediction:
    file = TensorFile(path, what="predictions file")
    names, start = set(file.keys()), f"{index}/buffers/"
    arrays = {
        field: file.get(f"{index}/{field}") for field in _FIELDS if f"{index}/{field}" in names
    }
    buffers = {name.removeprefix(start): file.get(name) for name in names if name.startswith(start)}
    return Prediction(key=key, buffers=buffers, **arrays)
