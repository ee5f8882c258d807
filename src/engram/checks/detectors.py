"""Rules for novelty detectors, besides those for probes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from engram.checks.probes import KEY, fresh, measured, stages_of_runs
from engram.checks.report import require
from engram.checks.toys import CLOSE, gap
from engram.novelty import Detector
from engram.probes import RunStage, StageView


def _asked(detector: Detector, run: RunStage, state: Any, rows: slice) -> torch.Tensor:
    """Scores of some test rows of one run."""
    view = StageView([run], needs=detector.needs)
    _, x = next(view.inputs(64))
    one = torch.utils._pytree.tree_map(lambda leaf: leaf[None], state)
    found: torch.Tensor = view.map(detector.score, x[:, rows], view.open, one)
    return found[0]


def check_scores_row_by_row(detector: Detector) -> None:
    """A row's score does not depend on the rows beside it."""
    states = fresh()
    for runs in stages_of_runs():
        _, states = measured(detector, runs, states)
        whole = _asked(detector, runs[0], states[0][KEY], slice(0, 12))
        require(whole.shape == (12,), f"score gives {tuple(whole.shape)} for 12 rows, not (12,)")
        some = _asked(detector, runs[0], states[0][KEY], slice(3, 8))
        require(gap(whole[3:8], some) <= CLOSE, "score mixes rows: use no statistics of the batch")


def check_finite_on_constant_features(detector: Detector) -> None:
    """A network that answers the same to everything has finite scores, however dull."""
    states = fresh()
    for runs in stages_of_runs():
        for run in runs:
            assert run.learner is not None  # live runs have one
            run.learner.vector = torch.zeros_like(run.learner.vector)
        dull = [replace(run, scores=run.scores * 0) for run in runs]
        _, states = measured(detector, dull, states)
        found = _asked(detector, dull[0], states[0][KEY], slice(0, 12))
        require(bool(torch.isfinite(found).all()), "a score is no number, or infinite")


DETECTOR_CHECKS = (check_scores_row_by_row, check_finite_on_constant_features)
