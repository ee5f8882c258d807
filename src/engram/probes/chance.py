"""What guessing gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engram.probes.base import Probe
from engram.probes.view import StageView
from engram.records.stage_rows import StageRows


@dataclass(frozen=True)
class Chance(Probe):
    """One over the number of competing classes, by task and head view; recorded once.

    Nobody knows what guessing sets of labels would give.
    """

    def after_stage(self, view: StageView) -> StageRows:
        rows, items = view.rows(), view.items
        if view.stage > 0 or items[0].multilabel:
            return rows
        tasks = np.arange(items[0].tasks)
        opening = np.stack([one.opening for one in items])  # [R, C]
        opened = np.stack([(opening <= k).sum(1) for k in tasks], axis=1)
        visible = np.stack([one.visible for one in items])  # [R, T, C]
        rows.add("chance", 1 / opened, task=tasks, head="single")
        rows.add("chance", 1 / visible.sum(2), task=tasks, head="multi")
        return rows
