"""How well validation rows are known: what to choose hyper-parameters by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engram.probes.base import Probe
from engram.probes.run_stage import RunStage
from engram.probes.view import StageView
from engram.records import judging, views
from engram.records.half import as_scores
from engram.records.items import Items
from engram.records.stage_rows import StageRows
from engram.records.summary import HELD_OUT


@dataclass(frozen=True)
class HeldOut(Probe):
    """The score of validation rows: of each task, and with task -1 of all tasks so far.

    Post-task validation rows where the stream has such (``post_valid_score``), which nobody sees
    while training; otherwise in-task ones (``valid_score``), by which training may have stopped.
    It is the accuracy in the stream's own head view (and its mean over tasks), or the
    precision-weighted Jaccard score of label sets (over all rows of these tasks, each once).
    """

    average: str = "micro"

    def after_stage(self, view: StageView) -> StageRows:
        rows = view.rows()
        if not view.members[0].diverged and view.members[0].held is not None:
            values = np.stack([self._values(one) for one in view.members])  # [R, T + 1]
            name = HELD_OUT[view.members[0].stream.held_out]
            rows.add(name, values, task=np.arange(-1, values.shape[1] - 1))
        return rows

    def _values(self, one: RunStage) -> np.ndarray:
        stage, head = one.stage, one.stream.head
        items = Items.of_stream(one.stream, one.stream.held_out)
        said = judging.decide(as_scores(one.held), items, stage=stage, head=head)
        figure = judging.figure_of(items)
        each = judging.task_figure(said, items, stage=stage, figure=figure, average=self.average)
        each = np.where(np.arange(len(each)) <= stage, each, np.nan)
        if items.multilabel:
            whole = views.overall_set_score(said, items, stage=stage, score=figure)
        else:
            known = each[~np.isnan(each)]
            whole = float(known.mean()) if len(known) else float("nan")
        return np.array([whole, *each])
