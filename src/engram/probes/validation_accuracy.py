"""Scores on validation rows, by which hyper-parameters are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engram.probes.probe import Probe
from engram.probes.stage_view import StageView
from engram.records import head_views, prediction_scoring
from engram.records.long_table import Rows
from engram.records.run_metrics import HELD_OUT
from engram.records.scored_items import EvaluationItems
from engram.records.stage_result import StageResult
from engram.records.stage_rows import make_counts, stack_scores
from engram.records.stage_rows import stacking_key as form_of


@dataclass(frozen=True)
class HeldOut(Probe):
    """Record the score on validation rows: of each task, and with task -1 of all tasks so far.

    Uses post-task validation rows if the stream has them (``post_valid_score``), which are not seen
    in training; otherwise in-task ones (``valid_score``), by which training may have stopped.
    The score is the accuracy in the stream's own head view (and its mean over tasks), or the
    precision-weighted Jaccard score of label sets (over all rows of these tasks, each once).
    """

    average: str = "micro"

    def after_stage(self, view: StageView) -> Rows:
        rows = view.rows()
        if not view.members[0].diverged and view.members[0].held is not None:
            values = self._values(view.members)  # [R, T + 1]
            name = HELD_OUT[view.members[0].stream.held_out]
            rows.add(name, values, task=np.arange(-1, values.shape[1] - 1))
        return rows

    def _values(self, members: Sequence[StageResult]) -> np.ndarray:
        """Compute the scores of all tasks so far and of each, [R, T + 1], grouping similar runs."""
        stage = members[0].stage
        every = [EvaluationItems.of_stream(one.stream, one.stream.held_out) for one in members]
        items = [own.up_to(stage) for own in every]
        alike: dict[Any, list[int]] = {}
        for place, (one, own) in enumerate(zip(members, items, strict=True)):
            form = form_of(own, stage)
            key: Any = place if form is None else (form, one.stream.head)
            alike.setdefault(key, []).append(place)
        found = np.empty((len(members), items[0].tasks + 1))
        for places in alike.values():
            found[places] = self._together([members[p] for p in places], [items[p] for p in places])
        return found

    def _together(
        self, members: Sequence[StageResult], items: Sequence[EvaluationItems]
    ) -> np.ndarray:
        stage, first = members[0].stage, items[0]
        counts, figure = make_counts(items, stage), prediction_scoring.figure_of(first)
        predicted = counts.decide(
            stack_scores([one.held for one in members]), members[0].stream.head
        )
        if self.average == "macro" and figure == "accuracy":
            each = head_views.macro_average(counts.class_accuracy(predicted))
        else:
            each = counts.task_figure(predicted, figure)
        each = np.where(np.arange(first.tasks) <= stage, each, np.nan)  # [R, T]
        whole = counts.overall(predicted, figure) if first.multilabel else _mean_of_known(each)
        return np.column_stack([whole, each])


def _mean_of_known(values: np.ndarray) -> np.ndarray:
    """Compute the mean of each row without NaN, [R]; NaN for a row without numbers."""
    known = [row[~np.isnan(row)] for row in values]
    return np.array([one.mean() if len(one) else np.nan for one in known])
