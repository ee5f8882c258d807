"""Which classes the exemplar memory holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from engram.probes.base import Probe
from engram.probes.view import StageView
from engram.records.stage_rows import StageRows


@dataclass(frozen=True)
class MemoryCount(Probe):
    """Exemplars by class."""

    needs: ClassVar[tuple[str, ...]] = ("networks",)

    def after_stage(self, view: StageView) -> StageRows:
        rows, width = view.rows(), view.items[0].width
        columns = [one.exemplars.columns for one in view.learners]
        if len(columns[0]):
            run = np.repeat(np.arange(len(view)), [len(one) for one in columns])
            column = torch.cat(columns).numpy()
            place = (run * width + column)[column >= 0]
            counts = np.bincount(place, minlength=len(view) * width).reshape(len(view), width)
            rows.add("memory_count", counts, cls=np.stack([one.classes for one in view.items]))
        return rows
