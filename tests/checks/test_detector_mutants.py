"""Mistakes that are easily made with detectors: each is made on purpose, and a rule notices it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from engram import novelty
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet
from engram.metrics.detection import auroc
from engram.novelty import mahalanobis
from engram.probes import stage_view as views
from engram.records import novelty_records as records
from tests.novelty import test_detectors, test_thresholds
from tests.novelty.test_detectors import scores, train


def killed(rule: Callable[[], None]) -> None:
    with pytest.raises(AssertionError):
        rule()


def sides() -> None:
    """Inside items are more familiar than those of tasks to come."""
    table = train(novelty.Mahalanobis(), method="Joint", epochs=10).novelty()
    chosen = table[(table["stage"] == 1) & (table["metric"] == "mean_auroc")]
    assert chosen["mean"].item() > 0.8


def test_sign_flipped(monkeypatch):
    usual = novelty.Mahalanobis.score
    sides()
    monkeypatch.setattr(novelty.Mahalanobis, "score", lambda *args: -usual(*args))
    killed(sides)


def test_old_means_refreshed(monkeypatch):
    rule = test_detectors.TestWorkedExamples().test_old_means_are_not_renewed
    rule()
    usual = mahalanobis.update_gaussians

    def fresh(state, shrink):
        return usual({**state, "known": state["known"] & (state["counts"] == 0)}, shrink)

    monkeypatch.setattr(mahalanobis, "update_gaussians", fresh)
    killed(rule)


def test_step_not_divided_by_the_deviation(monkeypatch):
    rule = test_detectors.TestWorkedExamples().test_odin_divides_its_step_by_the_deviation
    rule()
    usual = novelty.ODIN.score

    def raw(self, net, x, columns, state):
        return usual(self, net, x, columns, {**state, "std": torch.ones_like(state["std"])})

    monkeypatch.setattr(novelty.ODIN, "score", raw)
    killed(rule)


def own_stage_decides() -> None:
    """Forgotten is what was right after its own stage, also of the second task."""
    result = train(seeds=1, head="single", epochs=5)
    run, items = result.runs[0], result.items(result.runs[0].recipe)
    said = [result.predictions.get(*run, k).predicted(items, head="single") for k in (1, 2)]
    count = len(said[0])  # after the second task, of it and the first
    then, now = (one[:count] == items.targets[:count, 0] for one in said)
    lost = np.flatnonzero((items.task[:count] == 1) & then & ~now)
    assert len(lost)
    assert result.sets(0, stage=2).forgotten[1].tolist() == lost.tolist()


def test_forgotten_since_stage_1(monkeypatch):
    rule = own_stage_decides
    rule()
    usual = records._load_right

    def first(result, run, items, head, stage):
        found = usual(result, run, items, head, stage)
        return usual(result, run, items, head, 0) if stage == 1 else found

    monkeypatch.setattr(records, "_load_right", first)
    killed(rule)


def test_outside_under_the_newest_head_only(monkeypatch):
    rule = test_detectors.TestSets().test_heads
    rule()
    usual = records._inside_outside

    def newest(inside, outside):
        return usual(inside, [outside[-1]] * len(outside))

    monkeypatch.setattr(records, "_inside_outside", newest)
    killed(rule)


def test_combined_with_each_outside_item_once(monkeypatch):
    rule = test_detectors.TestSets().test_heads
    rule()
    usual = records._inside_outside

    def once(inside, outside):
        pools = np.concatenate(inside), np.concatenate(outside[-1])
        return usual(inside, outside) | {"combined_auroc": auroc(*pools)}

    monkeypatch.setattr(records, "_inside_outside", once)
    killed(rule)


def distinct() -> None:
    """ODIN at T=1000 keeps its scores apart."""
    detector = novelty.ODIN()
    result = train(detector, seeds=1)
    found = scores(result, detector, 0, 0)[0]
    assert found.dtype == np.float32
    assert len(np.unique(found)) > len(found) * 0.9


def test_scores_in_float16(monkeypatch):
    distinct()
    usual = views.StageView.store

    def half(self, name, values):
        return usual(self, name, values.half())

    monkeypatch.setattr(views.StageView, "store", half)
    killed(distinct)


class Normed(torch.nn.Module):
    """A backbone with batch norm."""

    def __init__(self, sample_shape):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(sample_shape[0], 8), torch.nn.BatchNorm1d(8)
        self.features = 8

    def forward(self, x):
        return torch.relu(self.norm(self.first(x)))


def same_as_recorded() -> None:
    """Softmax of the network in eval mode is what the recorded scores say."""
    detector = novelty.Softmax()
    result = train(detector, seeds=1, head="single", model=Normed)
    run = result.runs[0]
    recorded = torch.from_numpy(result.predictions.get(*run, 2).full().astype(np.float32))
    wanted = recorded.softmax(-1).amax(-1)
    assert np.allclose(scores(result, detector, 0, 2)[0], wanted, atol=5e-3)


def test_batch_norm_in_training_mode(monkeypatch):
    same_as_recorded()
    monkeypatch.setattr(
        RunLearner,
        "net",
        lambda self: FunctionalNet(self.networks, self.vector, self.buffers, training=True),
    )
    killed(same_as_recorded)


def test_calibration_on_test_items(monkeypatch):
    """A threshold that looks at the test items is seen in the ledger and in the rows."""
    rule = test_thresholds.test_reads_are_counted
    rule()

    def peek(self, size=256):
        for part, x in self.inputs(size):
            batch = next(self.batches(1))
            y = self.targets[:, part]
            yield batch._replace(x=x, y=y, w=torch.ones(y.shape[:2]))

    monkeypatch.setattr(views.StageView, "validation", peek)
    killed(rule)
