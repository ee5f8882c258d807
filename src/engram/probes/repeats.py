"""Test rows that the training data holds as well."""

from __future__ import annotations

from dataclasses import dataclass

from engram.probes.base import Probe
from engram.probes.view import StageView
from engram.records.stage_rows import StageRows
from engram.streams.repeats import repeated_test_rows


@dataclass(frozen=True)
class RepeatedSamples(Probe):
    """How many test rows are also trained on; told once, if there are any."""

    def after_stage(self, view: StageView) -> StageRows:
        rows = view.rows()
        if view.stage == 0 and repeated_test_rows(view.streams[0]):
            rows.add("repeated_samples", [float(repeated_test_rows(s)) for s in view.streams])
        return rows
