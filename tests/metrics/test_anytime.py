"""Metrics of accuracies during training, against their formulas written as loops."""

from __future__ import annotations

import numpy as np
import pytest

import engram
from engram import metrics
from engram.report.report_data import build_report_data
from engram.report.report_inputs import from_result
from tests.refusals import refuses

NAMES = ("minimum_accuracy", "worst_case_accuracy", "average_anytime_accuracy", "stability_gap")


def invent(points=(3, 1, 4), seed=0):
    stages = np.repeat(np.arange(len(points)), points)
    trace = np.random.default_rng(seed).random((len(stages), len(points)))
    trace[np.arange(len(points)) > stages[:, None]] = np.nan
    return trace, stages


def by_hand(trace, stages, k):
    rows = [(row, s) for row, s in zip(trace.tolist(), stages.tolist(), strict=True) if s <= k]
    lowest = [min(row[j] for row, s in rows if s > j) for j in range(k)]
    newest = rows[-1][0][k]
    regained = []
    for i in range(1, k + 1):
        own = [row for row, s in rows if s == i]
        regained += [own[-1][j] - min(row[j] for row in own) for j in range(i)]
    return {
        "minimum_accuracy": np.mean(lowest) if k else np.nan,
        "worst_case_accuracy": (newest + sum(lowest)) / (k + 1),
        "average_anytime_accuracy": np.mean([np.mean(row[: s + 1]) for row, s in rows]),
        "stability_gap": np.mean(regained) if k else np.nan,
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_formulas(name, stage):
    trace, stages = invent()
    found = getattr(metrics, name)(trace, stages, stage=stage)
    assert found == pytest.approx(by_hand(trace, stages, stage)[name], nan_ok=True)


@pytest.mark.parametrize("name", NAMES)
def test_runs_are_leading_axes(name):
    (one, stages), (two, _) = invent(seed=1), invent(seed=2)
    function = getattr(metrics, name)
    together = function(np.stack([one, two]), stages)
    assert together == pytest.approx([function(one, stages), function(two, stages)])


def test_wrong_stages_are_refused():
    trace, stages = invent()
    with refuses("stages"):
        metrics.stability_gap(trace, stages[:-1])
    with refuses("stages"):
        metrics.stability_gap(trace, stages[::-1])
    with refuses("stage"):
        metrics.stability_gap(trace, stages, stage=3)


@pytest.fixture(scope="module")
def recorded():
    return engram.run(
        engram.load("blobs"), method=["Finetune", "ER"], epochs=2, seeds=2, evaluate_every=2,
        evaluate_rows=7, device="cpu",
    )  # fmt: skip


def test_a_result_has_them(recorded):
    worst = recorded.metric("worst_case_accuracy")
    assert (worst <= recorded.metric("average_accuracy") + 1e-12).all()
    assert (recorded.metric("stability_gap") >= 0).all()
    assert np.isnan(recorded.metric("minimum_accuracy", stage=0)).all()


def test_points_are_arranged_by_time(recorded):
    """The metric of a run, recomputed from the long table by hand."""
    frame, run = recorded.frame(), recorded.runs[1]
    own = frame[
        (frame.recipe == run.recipe) & (frame.seed == run.seed) & (frame["head"] == "single")
    ]
    own = own[(own.metric == "accuracy") & (own.task >= 0)]
    taken = frame[(frame.recipe == run.recipe) & (frame.seed == run.seed)]
    steps = taken[(taken.metric == "steps")].set_index("stage")["value"]
    rows = []
    for stage in range(int(own.stage.max()) + 1):
        part = own[own.stage == stage]
        for step, point in part[part.step >= 0].groupby("step"):
            if step < steps[stage]:
                rows.append((point.set_index("task")["value"].to_dict(), stage))
        rows.append((part[part.step == -1].set_index("task")["value"].to_dict(), stage))
    wide = max(stage for _, stage in rows) + 1
    trace = np.array([[row.get(j, np.nan) for j in range(wide)] for row, _ in rows])
    expected = by_hand(trace, np.array([stage for _, stage in rows]), wide - 1)
    for name in NAMES:
        assert recorded.metric(name)[1] == pytest.approx(expected[name])


def test_the_report_has_the_same(recorded):
    runs = build_report_data(from_result(recorded)).runs
    for name in NAMES:
        shown = runs[runs["head"] == "single"].set_index(["recipe", "seed"])[name]
        own = {
            (run.recipe, run.seed): value
            for run, value in zip(recorded.runs, recorded.metric(name), strict=True)
        }
        assert shown.to_dict() == pytest.approx(own)


def test_few_rows_are_those_of_the_whole():
    """Scores of some rows within a task are those that all rows would have given."""
    options = {"method": "ER", "epochs": 2, "device": "cpu", "evaluate_every": 3}
    few = engram.run(engram.load("blobs"), evaluate_rows=1, **options)
    every = engram.run(engram.load("blobs"), evaluate_rows=10**6, **options)
    assert np.array_equal(few.matrix, every.matrix, equal_nan=True)
    frame = few.frame()
    within = frame[(frame.step >= 0) & (frame.metric == "accuracy")]
    assert set(within["value"]) <= {0.0, 1.0}  # of one row


def test_accuracies_after_tasks_alone_are_refused():
    result = engram.run(engram.load("blobs"), epochs=1, device="cpu")
    with refuses("metric"):
        result.metric("stability_gap")
    with refuses("evaluate_rows"):
        engram.run(engram.load("blobs"), epochs=1, evaluate_rows=5)
