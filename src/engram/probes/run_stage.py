"""One run after one stage: what a view of several is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from engram.learner.learner import Learner
from engram.methods.base import Method
from engram.probes.outside import Outside
from engram.records.half import as_scores
from engram.records.items import Items
from engram.records.judging import decide
from engram.streams.core import Stream


@dataclass(frozen=True, eq=False, kw_only=True)
class RunStage:
    """One run after one stage.

    `learner` is None where a finished run is measured from its records without parameters, and
    holds parameters, buffers and exemplars only where there are some. `probes` are the states that
    probes kept after the stage before, by their keys.
    """

    stage: int
    stream: Stream
    method: Method
    seed: int
    items: Items  # the test items
    scores: np.ndarray  # [n, C]
    learner: Learner | None = None
    features: Tensor | None = None  # [n, F]
    held: np.ndarray | None = None  # [m, C] scores of post-task validation items
    losses: Sequence[tuple[int, Mapping[str, float]]] = ()
    curve: Sequence[tuple[int, np.ndarray]] = ()
    facts: Mapping[str, float] = field(default_factory=dict)  # seconds, steps, bytes
    probes: Mapping[str, Any] = field(default_factory=dict)
    said: Mapping[str, np.ndarray] | None = None  # what was recorded as predicted, by head view
    outside: Outside | None = None

    def decided(self, head: str) -> np.ndarray:
        """Predicted columns [n] or label sets [n, C]: what was recorded, else from the scores."""
        if self.said is not None:
            return self.said[head]
        return decide(as_scores(self.scores), self.items, stage=self.stage, head=head)

    @property
    def diverged(self) -> bool:
        return self.learner is not None and self.learner.diverged >= 0
