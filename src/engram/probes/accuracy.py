"""How well each task and class is known: accuracy, or the scores of label sets."""

from __future__ import annotations

from dataclasses import dataclass

from engram.probes.base import Probe
from engram.probes.view import StageView
from engram.records.stage_rows import StageRows
from engram.records.stages import add_stage


@dataclass(frozen=True)
class Accuracy(Probe):
    """Accuracy of tasks and classes and the share of predictions by class, in both head views."""

    average: str = "micro"

    def after_stage(self, view: StageView) -> StageRows:
        rows = view.rows()
        if not view.members[0].diverged:
            scores = [one.scores for one in view.members]
            add_stage(rows, scores, view.items, stage=view.stage, average=self.average)
        return rows
