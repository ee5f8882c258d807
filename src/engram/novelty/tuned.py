"""A detector whose options are chosen after the first stage against an outside set and then
fixed, run by run.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.errors import bad, unknown
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.learner.tensor_tree import pick, stack, tree_map
from engram.metrics.detection import auroc
from engram.novelty.detector import Detector, State
from engram.novelty.odin import ODIN
from engram.probes.stage_view import StageView
from engram.records.novelty_records import GRID, TUNING, best_index


@dataclass(frozen=True)
class Tuned(Detector):
    """Another detector, with options tuned to separate the first task from an outside set.

    After the first stage every combination scores the task's validation rows that the network gets
    right, and the validation rows of the recipe's `outside` set; that of the largest area under the
    ROC curve is kept for the rest of the stream (the first one where several are equal). Tasks to
    come are never looked at. `Result.tuned` tells what was chosen.

    Parameters
    ----------
    detector
        What to tune, with the options that stay as they are.
    grid
        Values of some of its options; without, those that it declares itself (`searched`).

    Examples
    --------
    >>> Tuned(ODIN(), {"epsilon": [0, 0.001], "temperature": [1, 1000]}).name
    'tuned odin over epsilon, temperature'
    >>> Tuned(ODIN(), {"epsilom": [0, 0.001]})
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: grid: unknown name 'epsilom', did you mean 'epsilon'? ...
    """

    detector: Detector = field(default_factory=ODIN)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.detector, Detector) or isinstance(self.detector, Tuned):
            raise bad("detector", "a detector, which is not tuned yet", self.detector)
        if self.refit != "never":
            expected = f"{type(self.detector).__name__}(refit={self.refit!r}) to be tuned"
            raise bad("refit", expected, f"Tuned(refit={self.refit!r})")
        options = [one.name for one in fields(self.detector) if one.init]
        for name, values in self.grid.items():
            if name not in options:
                raise unknown("grid", name, options)
            if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
                raise bad(f"grid.{name}", "a list of values", values)
        if not self.option_values:
            name = type(self.detector).__name__
            raise bad("grid", f"options of {name} with lists of values, it declares none", {})
        object.__setattr__(self, "grid", {name: tuple(own) for name, own in self.grid.items()})
        self.candidates  # noqa: B018 - a value that cannot be is refused here

    @property
    def name(self) -> str:
        over = f" over {', '.join(self.grid)}" if self.grid else ""
        return f"tuned {self.detector.name}{over}"

    @property
    def outside(self) -> bool:
        return True

    @property
    def option_values(self) -> Mapping[str, Sequence[Any]]:
        """Options with the values to combine."""
        return self.grid or self.detector.searched

    @cached_property
    def points(self) -> list[dict[str, Any]]:
        """All combinations of values."""
        names, values = zip(*self.option_values.items(), strict=True)
        return [dict(zip(names, point, strict=True)) for point in itertools.product(*values)]

    @cached_property
    def candidates(self) -> list[Detector]:
        """The detector with every combination."""
        return [replace(self.detector, **point) for point in self.points]

    def check(self, learner: RunLearner) -> None:
        for one in self.candidates:
            one.check(learner)
        if not len(learner.stream.tasks[0].valid):
            expected = f"validation rows to tune {self.detector.name!r} on, such as valid=0.2"
            raise bad("stream.valid", expected, 0)

    def fit_stage(self, view: StageView) -> Any:
        """For one run: the state of the detector that was chosen, and which it is."""
        own = view.select_runs(range(len(view)), view.state)
        self.after_stage(own)
        assert own.kept is not None
        return stack(own.kept)

    def calibration_scores(self, view: StageView, state: Any) -> Tensor | None:
        """Of runs of one choice."""
        return self._of(state).calibration_scores(view, state["own"])

    def outside_scores(self, view: StageView, state: Any) -> Tensor:
        """Of runs of one choice."""
        return self._of(state).outside_scores(view, state["own"])

    def _of(self, state: Any) -> Detector:
        (choice,) = set(state["choice"].tolist())
        return self.candidates[int(choice)]

    def score(self, net: Net, x: Tensor, columns: Tensor, state: State) -> Tensor:
        """As the detector that was chosen; for one run."""
        return self.candidates[int(state["choice"])].score(net, x, columns, state["own"])

    # -- over all runs ---------------------------------------------------------------------------
    def after_stage(self, view: StageView) -> Mapping[str, Any]:
        began = time.perf_counter()
        if view.stage:
            choice, own = view.state["choice"].tolist(), [None] * len(view)
        else:
            choice, own = self._choose(view)
        spent, parts = (time.perf_counter() - began) / len(view), []
        for c in sorted(set(choice)):
            began, one = time.perf_counter(), self.candidates[c]
            places = [r for r in range(len(view)) if choice[r] == c]
            here = view.select_runs(places, None)
            if view.stage:
                here = select_runs(view, places, view.state["own"])
            state = one.fit_stage(here) if view.stage else stack([own[r] for r in places])
            rows = one.record_scores(here, state, began)
            parts.append(StagePart(places, here, {**rows, "seconds": rows["seconds"] + spent}))
        found = join_parts(view, parts)
        assert view.kept is not None
        view.kept = [
            {"choice": torch.tensor(c, device=view.device), "own": state}
            for c, state in zip(choice, view.kept, strict=True)
        ]
        return found

    def _choose(self, view: StageView) -> tuple[list[int], list[Any]]:
        """For every run the best candidate, and its state after the first stage."""
        rows = [len(one.task.train) for one in view.learners]
        fitted: dict[str, Any] = {}
        known: dict[str, list[float]] = {}  # areas
        by_candidate, areas = [], np.empty((len(view), len(self.candidates)))
        for c, one in enumerate(self.candidates):
            matters = repr(one.fit_options(rows))
            if matters not in fitted:
                fitted[matters] = one.fit_stage(view)
            by_candidate.append(matters)
            also = matters + repr([getattr(one, name) for name in one.only_scores])
            if also not in known:
                known[also] = self._areas_under_curve(view, one, fitted[matters])
            areas[:, c] = known[also]
        choice = [best_index(own) for own in areas]
        view.store(TUNING, areas)
        text = np.frombuffer(json.dumps(self.points).encode(), np.uint8)
        view.store(GRID, np.tile(text, (len(view), 1)))
        return choice, [pick(fitted[by_candidate[c]], r) for r, c in enumerate(choice)]

    def _areas_under_curve(self, view: StageView, one: Detector, state: Any) -> list[float]:
        """Compute areas under the curve [R]; NaN if no validation row is classified correctly."""
        inside = one.calibration_scores(view, state)
        outside = one.outside_scores(view, state).nan_to_num(nan=-torch.inf)
        assert inside is not None  # there are validation rows
        return [
            auroc(near[~near.isnan()].cpu().numpy(), far.cpu().numpy())
            for near, far in zip(inside, outside, strict=True)
        ]


# -- splitting a view into groups of runs, and merging the results ---------------------------------


class StagePart(NamedTuple):
    """A view of some runs, and its result rows {metric: [R]}."""

    places: list[int]
    view: StageView
    rows: Mapping[str, Any]


def select_runs(view: StageView, places: Sequence[int], state: Any) -> StageView:
    """Make a view of some runs; `state` [R, ...] is that of all."""
    return view.select_runs(places, tree_map(lambda leaf: leaf[list(places)], state))


def join_parts(view: StageView, parts: Sequence[StagePart]) -> dict[str, Any]:
    """Into the view what its parts kept, stored and read; the rows of all runs.

    Arrays of unequal length are padded with NaN behind.
    """
    kept: dict[int, Any] = {}
    stored: dict[str, dict[int, np.ndarray]] = {}
    rows = {name: np.full(len(view), np.nan) for part in parts for name in part.rows}
    for part in parts:
        for i, place in enumerate(part.places):
            kept[place] = {} if part.view.kept is None else part.view.kept[i]
            for name, array in part.view.stored.items():
                stored.setdefault(name, {})[place] = array[i]
            for kind, count in part.view.reads.items():
                view.reads[kind][place] += count[i]
        for name, values in part.rows.items():
            rows[name][part.places] = values
    view.kept = [kept[place] for place in range(len(view))]
    for name, arrays in stored.items():
        view.store(name, _pad_arrays([arrays[place] for place in range(len(view))]))
    return rows


def _pad_arrays(arrays: Sequence[np.ndarray]) -> np.ndarray:
    longest = max(one.shape[-1] for one in arrays)
    if all(one.shape[-1] == longest for one in arrays):
        return np.stack(arrays)
    return np.stack([
        np.pad(one, [(0, 0)] * (one.ndim - 1) + [(0, longest - one.shape[-1])],
               constant_values=np.nan)
        for one in arrays
    ])  # fmt: skip
