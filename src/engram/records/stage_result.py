"""What one run gave in one stage: from the evaluation to what is written of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    """What one run gave in one stage.

    `engram.engine.evaluation.evaluate` makes it from the test items. The training loop adds the
    losses, the curve and what they cost, the engine yields it, `prepare_results` adds the names
    under which it is recorded, `engram.probes.measure` the rows, and the recorder writes these. For
    a finished run it is filled from the records instead.

    Parameters
    ----------
    stage, stream, method, seed
        The stage, and which run it is of.
    items
        The test items, to which rows of `scores` belong.
    scores
        [n, C] of the test items in single precision; columns are classes in order of introduction.
    features
        [n, F] of the test items, where a probe needs them.
    held
        [m, C] scores of validation items, where there are any.
    trained
        The learner after the stage; None where a finished run is measured from records that hold
        no parameters. `learner` is the same for those who must have one.
    losses
        (step, mean of every term since the last entry).
    curve
        (step, scores [n, C]) at the steps that ``evaluate_every`` asks for.
    seconds, steps
        What the training took.
    run, last_of_group
        The place in the engine's list of runs, and whether all runs that trained together have been
        yielded.
    recipe, label, order
        The names under which the numbers are kept.
    facts
        Seconds, steps and bytes, by the names of their metrics.
    decided
        What was recorded as predicted, by head view, in place of what `scores` would give.
    outside
        The outside set, where probes have one.
    states
        What probes keep between stages, by their keys: as it was before `measure`, then after it.
    rows, reads, arrays
        What probes found: rows of the long table, how many rows of data they read to fit on, by
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
    seconds: float = 0.0
    steps: int = 0
    run: int = 0
    last_of_group: bool = True
    recipe: str = ""
    label: str = ""
    order: str = ""
    facts: Mapping[str, float] = field(default_factory=dict)
    decided: Mapping[str, npt.NDArray[Any]] | None = None
    outside: OODData | None = None
    states: Mapping[str, Any] = field(default_factory=dict)
    rows: Rows = field(default_factory=Rows)
    reads: dict[str, int] = field(default_factory=dict)
    arrays: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def learner(self) -> RunLearner:
        """The learner after the stage."""
        if self.trained is None:
            raise EngramError(f"stage {self.stage}: no parameters were kept of the run")
        return self.trained

    @property
    def key(self) -> StageKey:
        """The run and the stage, as records name them."""
        return StageKey(self.recipe, self.seed, self.order, self.stage)

    @property
    def diverged(self) -> bool:
        """Whether the run left all measure, in this stage or before."""
        return self.trained is not None and self.trained.diverged >= 0

    @property
    def is_last(self) -> bool:
        """Whether the run is through: it was the last stage, or it diverged."""
        return self.stage == len(self.stream) - 1 or self.diverged

    def predict(self, head: str) -> npt.NDArray[Any]:
        """Predicted columns [n], or label sets [n, C], of the test items in a head view."""
        if self.decided is not None:
            return self.decided[head]
        scores = as_float32_scores(self.scores)
        return np.asarray(decide_predictions(scores, self.items, stage=self.stage, head=head))
