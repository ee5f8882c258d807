"""Label sets predicted at a threshold chosen on in-task validation rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from engram import metrics
from engram.errors import bad, check_choice, check_int
from engram.learner.learner import RunLearner
from engram.methods.method import Method, compute_answer
from engram.probes.probe import Probe
from engram.probes.stage_view import StageView
from engram.records.head_views import SET_SCORES, overall_set_score
from engram.records.long_table import Rows
from engram.records.prediction_scoring import decide_predictions
from engram.records.predictions import as_float32_scores

FIGURE = SET_SCORES[-1]


@dataclass(frozen=True)
class Threshold(Probe):
    """Measure label sets at the threshold that is best on the task's in-task validation rows.

    ``threshold/at`` is that threshold (0 where none is better), and
    ``threshold/precision_weighted_jaccard`` the score over the test rows of all tasks so far.

    Parameters
    ----------
    among
        Predicted labels that count on validation rows: those of the ``task``, since the others are
        hidden there and would count as mistakes, or all ``seen`` ones.
    steps
        Number of thresholds to try, from the lowest to the highest score of a validation row.
    """

    needs: ClassVar[tuple[str, ...]] = ("networks",)

    among: str = "task"
    steps: int = 200

    def __post_init__(self) -> None:
        check_choice("among", self.among, ("task", "seen"))
        check_int("steps", self.steps, 2)

    def check(self, learner: RunLearner) -> None:
        if learner.stream.labels != "set":
            raise bad("probes", "streams with label sets, since Threshold is for these", "labels")
        if any(not len(task.valid) for task in learner.stream.tasks):
            expected = "in-task validation rows to choose a threshold by (valid=0.1, say)"
            raise bad("stream", expected, "a task without any")

    def after_stage(self, view: StageView) -> Rows:
        chosen, scores = [], []
        for one, learner in zip(view.members, view.learners, strict=True):
            at = self.choose(learner, one.method)
            predicted = decide_predictions(
                as_float32_scores(one.scores),
                one.items,
                stage=view.stage,
                head="single",
                threshold=at,
            )
            chosen.append(at)
            scores.append(overall_set_score(predicted, one.items, stage=view.stage, score=FIGURE))
        rows = view.rows()
        rows.add("at", chosen)
        rows.add(FIGURE, scores)
        return rows

    @torch.no_grad()
    def choose(self, learner: RunLearner, method: Method) -> float:
        """Choose the threshold best on validation rows; of equal ones, the one nearest to 0."""
        batch = learner.batch(learner.task.valid)
        answered = compute_answer(method, learner.net(), batch.x, learner.state)
        scores = answered.logits.double().cpu().numpy()
        mask = learner.seen if self.among == "seen" else learner.stream.visible[learner.stage]
        open_ = mask.cpu().numpy()
        columns = np.arange(scores.shape[1])
        truth = (batch.y.cpu().numpy()[:, :, None] == columns).any(axis=1) & open_
        shown = scores[:, open_]
        tried = np.linspace(shown.min(), shown.max(), self.steps, endpoint=False)
        tried = np.array(sorted([0.0, *tried], key=abs))
        known = truth.any(axis=1)
        found = [
            metrics.precision_weighted_jaccard(truth[known], (scores[known] > at) & open_)
            for at in tried
        ]
        return float(tried[int(np.argmax(found))])
