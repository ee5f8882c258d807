"""Probes: what is measured after every stage, one file each."""

from __future__ import annotations

import functools

from engram.probes.accuracy import Accuracy
from engram.probes.base import NEEDS, Probe
from engram.probes.chance import Chance
from engram.probes.cost import Cost
from engram.probes.curve import Curve
from engram.probes.divergence import Divergence
from engram.probes.features import Features
from engram.probes.generated import Generated
from engram.probes.held_out import HeldOut
from engram.probes.losses import Losses
from engram.probes.measure import Measured, measure
from engram.probes.memory import MemoryCount
from engram.probes.repeats import RepeatedSamples
from engram.probes.run_stage import RunStage
from engram.probes.threshold import Threshold
from engram.probes.view import StageView

__all__ = [
    "NEEDS",
    "Accuracy",
    "Chance",
    "Cost",
    "Curve",
    "Divergence",
    "Features",
    "Generated",
    "HeldOut",
    "Losses",
    "Measured",
    "MemoryCount",
    "Probe",
    "RepeatedSamples",
    "RunStage",
    "StageView",
    "Threshold",
    "measure",
    "standard",
]


@functools.cache  # asked for every run after every stage
def standard(average: str = "micro") -> tuple[Probe, ...]:
    """What is measured of every run, whoever asks."""
    return (
        Divergence(), Accuracy(average=average), HeldOut(average=average), Curve(average=average),
        Cost(), Losses(), MemoryCount(), Chance(), RepeatedSamples(), Generated(),
    )  # fmt: skip
