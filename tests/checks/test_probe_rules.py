"""The checks of probes: good ones pass, each fault is found by the check that names it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import engram
from engram.checks import check
from tests.probes.own_probes import ClassDistance, Entropy

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "own-probe.md"


@pytest.mark.parametrize("probe", [Entropy, ClassDistance(), "tests.probes.own_probes:Silent"])
def test_good_probes_pass(probe):
    report = check(probe)
    assert report.ok, str(report)
    assert len(report) == 7


@dataclass(frozen=True)
class FitsOnTests(engram.Probe):
    def after_stage(self, view):
        view.keep({"mean": view.scores.mean((1, 2))})
        return {"mean": view.state.get("mean", torch.zeros(len(view)))}


@dataclass(frozen=True)
class AcrossRuns(engram.Probe):
    def after_stage(self, view):
        mean = view.scores.mean((1, 2))
        return {"mean": mean - mean.mean()}


@dataclass(frozen=True)
class InPlace(engram.Probe):
    needs = ("networks",)

    def after_stage(self, view):
        for learner in view.learners:
            learner.vector.mul_(0.5)
        return {"mean": view.scores.mean((1, 2))}


@dataclass(frozen=True)
class Throws(engram.Probe):
    def after_stage(self, view):
        return {"noise": torch.rand(len(view))}


@dataclass(frozen=True)
class ForgetsWeights(engram.Probe):
    needs = ("networks",)

    def after_stage(self, view):
        total = sum(batch.x.flatten(1).sum(1) for batch in view.batches(size=7))
        return {"sum": total}


@dataclass(frozen=True)
class Endless(engram.Probe):
    def after_stage(self, view):
        return {"odds": 1 / torch.zeros(len(view))}


@dataclass(frozen=True)
class Remembers(engram.Probe):
    def after_stage(self, view):
        calls.append(1)
        return {"calls": torch.full((len(view),), len(calls))}


calls: list[int] = []


class Undecorated(engram.Probe):
    def after_stage(self, view):
        return {"stage": torch.full((len(view),), view.stage)}


@pytest.mark.parametrize(
    ("probe", "name"),
    [
        (FitsOnTests(), "test rows change no state"),
        (AcrossRuns(), "each run as if alone"),
        (InPlace(), "measuring is pure"),
        (Throws(), "measuring is pure"),
        (Remembers(), "measuring is pure"),
        (ForgetsWeights(), "each run as if alone"),
        (Endless(), "measures after every stage"),
        (Undecorated(), "frozen dataclass with options"),
    ],
)
def test_faults_are_found(probe, name):
    assert name in [finding.check for finding in check(probe).failed]


def test_the_probes_of_the_guide_pass(tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.M | re.S)
    (tmp_path / "guide_probes.py").write_text("\n".join(blocks), "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = ["guide_probes:Confidence", "guide_probes:Distance"]
    for name in names:
        report = check(name)
        assert report.ok, str(report)
    found = engram.run(engram.load("blobs"), method="ER", seeds=2, probes=names).probes()
    assert set(found["metric"]) == {"confidence/mean", "distance/known", "distance/unknown"}
    known, unknown = (
        found[found["metric"] == f"distance/{k}"]["mean"] for k in ("known", "unknown")
    )
    assert known.iloc[0] < unknown.iloc[0]
