"""`StageResult`: everything that one stage of one run produced, from evaluation to record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engram.errors import EngramError
from engram.records.long_table import Rows
from engram.records.prediction_scoring import decide_predictions
from engram.records.predictions import StageKey, as_float32_scores
from engram.records.scored_items import EvaluationItems

if TYPE_CHECKING:
    from torch import Tensor

    from engram.learner.learner import RunLearner
    from engram.methods.method import Method
    from engram.probes.ood_data import OODData
    from engram.streams.stream import Stream


@dataclass(eq=False, kw_only=True)
class StageResult:
    """Results of one stage of one run.

    `engram.engine.evaluation.evaluate` makes it from the test items. The training loop adds the
    losses, the curve and the cost, the engine yields it, the recorder adds the names under which
    it is recorded, `engram.probes.measure` adds the rows, and the recorder writes these. For
    a finished run it is filled from the records instead.

    Parameters
    ----------
    stage, stream, method, seed
        The stage, and the run it belongs to.
    items
        The test items that were scored: those of the tasks learnt so far, or of all tasks.
    scores
        [n, C] scores of the test items in float32; columns are classes in order of introduction.
    features
        [n, F] features of the test items, if a probe needs them.
    held
        [m, C] scores of validation items, if there are any.
    trained
        The learner after the stage; None where a finished run is measured from records that hold
        no parameters. `learner` is the same, but raises if there is none.
    losses
        List of (step, mean of every loss term since the last entry).
    curve
        List of (step, scores [m, C]) at the steps given by ``evaluate_every``.
    curve_rows
        Largest number of items of a task that were scored at those steps; 0: all.
    seconds, steps
        Time and steps of the training.
    run, last_of_group
        The index in the engine's list of runs, and whether all runs that trained together have been
        yielded.
    recipe, label, order
        The names under which the numbers are recorded.
    facts
        Seconds, steps and bytes, by the names of their metrics.
    decided
        Recorded predictions by head view, which take the place of those from `scores`.
    records_unseen
        Whether scores of tasks to come are recorded; they may also be there for a probe only.
    outside
        The outside set, if probes use one.
    states
        States of probes between stages by their keys: before `measure`, then after it.
    rows, reads, arrays
        Results of probes: rows of the long table, numbers of rows of data that they read by
        kind, and arrays by the probe's key.
    """

    stage: int
    stream: Stream
    method: Method
    seed: int
    items: EvaluationItems
    scores: npt.NDArray[Any]
    features: Tensor | None = None
    held: npt.NDArray[Any] | None = None
    trained: RunLearner | None = None
    losses: Sequence[tuple[int, Mapping[str, float]]] = ()
    curve: Sequence[tuple[int, npt.NDArray[Any]]] = ()
    curve_rows: int = 0
    seconds: float = 0.0
    steps: int = 0
    run: int = 0
    last_of_group: bool = True
    recipe: str = ""
    label: str = ""
    order: str = ""
    facts: Mapping[str, float] = field(default_factory=dict)
    decided: Mapping[str, npt.NDArray[Any]] | None = None
    records_unseen: bool = False
    outside: OODData | None = None
    states: Mapping[str, Any] = field(default_factory=dict)
    rows: Rows = field(default_factory=Rows)
    reads: dict[str, int] = field(default_factory=dict)
    arrays: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def learner(self) -> RunLearner:
        """The learner after the stage; raises if none was kept."""
        if self.trained is None:
            raise EngramError(f"stage {self.stage}: no parameters were kept of the run")
        return self.trained

    @property
    def key(self) -> StageKey:
        """The run and the stage as a key of records."""
        return StageKey(self.recipe, self.seed, self.order, self.stage)

    @property
    def diverged(self) -> bool:
        """Whether the run diverged, in this stage or before."""
        return self.trained is not None and self.trained.diverged >= 0

    @property
    def is_last(self) -> bool:
        """Whether the run has ended: this is the last stage, or it diverged."""
        return self.stage == len(self.stream) - 1 or self.diverged

    @property
    def learnt(self) -> StageResult:
        """The result without scores of tasks to come."""
        items = self.items.up_to(self.stage)
        n = len(items)
        if n == len(self.items):
            return self
        return replace(
            self, items=items, scores=self.scores[:n],
            features=None if self.features is None else self.features[:n],
            decided=None if self.decided is None else {k: v[:n] for k, v in self.decided.items()},
        )  # fmt: skip

    @property
    def recorded(self) -> StageResult:
        """The result with the scores that are recorded."""
        return self if self.records_unseen else self.learnt

    def predict(self, head: str) -> npt.NDArray[Any]:
        """Return predicted columns [n], or label sets [n, C], of the test items in a head view."""
        if self.decided is not None:
            return self.decided[head]
        scores = as_float32_scores(self.scores)
        return np.asarray(decide_predictions(scores, self.items, stage=self.stage, head=head))
