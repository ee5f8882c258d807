"""Whether the loss stopped being finite."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engram.probes.base import Probe
from engram.probes.view import StageView
from engram.records.stage_rows import StageRows


@dataclass(frozen=True)
class Divergence(Probe):
    """``diverged`` for runs that did, in the stage in which they did."""

    def after_stage(self, view: StageView) -> StageRows:
        rows = view.rows()
        if view.members[0].diverged:
            rows.add("diverged", np.ones(len(view)))
        return rows
