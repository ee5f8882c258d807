"""Task accuracies that were taken while the task was learnt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engram.probes.base import Probe
from engram.probes.view import StageView
from engram.records.judging import decide, figure_of, task_figure
from engram.records.stage_rows import StageRows


@dataclass(frozen=True)
class Curve(Probe):
    """Accuracy of each task at every evaluated step (see ``evaluate_every``)."""

    average: str = "micro"

    def after_stage(self, view: StageView) -> StageRows:
        rows = view.rows()
        for number, (step, _) in enumerate(view.members[0].curve):
            for head in view.items[0].heads:
                values = [self._value(view, r, number, head) for r in range(len(view))]
                figure, task = figure_of(view.items[0]), np.arange(len(values[0]))
                rows.add(figure, np.stack(values), step=step, task=task, head=head)
        return rows

    def _value(self, view: StageView, run: int, number: int, head: str) -> np.ndarray:
        one = view.members[run]
        said = decide(one.curve[number][1], one.items, stage=view.stage, head=head)
        return task_figure(
            said, one.items, stage=view.stage, figure=figure_of(one.items), average=self.average
        )
