"""Probes: measurements after every stage, over all runs that trained together.

Not here: novelty detectors, which are probes too (engram.novelty), metrics over stages
(engram.metrics), files (engram.records). Begin with probe.Probe, the contract, and
stage_view.StageView, what a probe sees; measure.measure calls the probes.
"""

from __future__ import annotations

import functools

from engram.probes.feature_statistics import Features
from engram.probes.fisher_distance import DivergenceForms, FisherDistance, compare_divergence
from engram.probes.generated_samples import Generated
from engram.probes.label_threshold import Threshold
from engram.probes.measure import measure
from engram.probes.probe import NEEDS, Probe
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
    "DivergenceForms",
    "Features",
    "FisherDistance",
    "Generated",
    "HeldOut",
    "Losses",
    "MemoryCount",
    "Probe",
    "RepeatedSamples",
    "StageView",
    "Threshold",
    "compare_divergence",
    "measure",
    "standard",
]


@functools.cache  # called for every run after every stage
def standard(average: str = "micro") -> tuple[Probe, ...]:
    """Return the probes that measure every run."""
    return (
        Divergence(), Accuracy(average=average), HeldOut(average=average), Curve(average=average),
        Cost(), Losses(), MemoryCount(), Chance(), RepeatedSamples(), Generated(),
    )  # fmt: skip
