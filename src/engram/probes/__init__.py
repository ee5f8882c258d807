"""Probes: what is measured after every stage, one file each."""

from __future__ import annotations

import functools

from engram.probes.feature_statistics import Features
from engram.probes.generated_samples import Generated
from engram.probes.label_threshold import Threshold
from engram.probes.measure import Measured, measure
from engram.probes.probe import NEEDS, Probe, RunStage
from engram.probes.stage_view import StageView
from engram.probes.standard_probes import (
    Accuracy,
    Chance,
    Cost,
    Curve,
    Divergence,
    Losses,
    MemoryCount,
    RepeatedSamples,
)
from engram.probes.validation_accuracy import HeldOut

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
