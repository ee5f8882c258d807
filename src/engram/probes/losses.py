"""What was minimised, term by term."""

from __future__ import annotations

from dataclasses import dataclass

from engram.probes.base import Probe
from engram.probes.view import StageView
from engram.records.stage_rows import StageRows


@dataclass(frozen=True)
class Losses(Probe):
    """The terms of the loss at the logged steps."""

    def after_stage(self, view: StageView) -> StageRows:
        rows = view.rows()
        terms = [(f"loss/{name}", step) for step, of in view.members[0].losses for name in of]
        if terms:
            values = [[v for _, of in one.losses for v in of.values()] for one in view.members]
            names, steps = zip(*terms, strict=True)
            rows.add(names, values, step=steps)
        return rows
