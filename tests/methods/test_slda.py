"""Streaming linear discriminant analysis against textbook formulas over all rows so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from engram.methods import SLDA
from engram.models.forward_pass import Output
from tests.engine.plain_loop import Twin, away, beside
from tests.engine.test_plain_loop import DECAYED
from tests.refusals import refuses

SHRINKAGE = 0.05


@dataclass
class SLDATwin(Twin):
    """Trains the first task; keeps every row's features, as no streaming method could."""

    features: list[np.ndarray] = field(default_factory=list)
    labels: list[np.ndarray] = field(default_factory=list)

    def run(self, stage: int) -> None:
        if stage == 0:
            super().run(0)
        self.net.eval()
        rows = self.stream.tasks[stage].train
        self.features.append(self.of(rows))
        self.labels.append(self.y(rows).numpy())

    def of(self, rows: Tensor) -> np.ndarray:
        with torch.no_grad():
            h = self.net.trunk(self.x(rows).flatten(1))
            return torch.relu(h if self.net.norm is None else self.net.norm(h)).numpy()

    def scores(self, rows: Tensor) -> np.ndarray:
        """[n, classes so far] by the inverse of the pooled covariance."""
        features, labels = np.concatenate(self.features), np.concatenate(self.labels)
        count = labels.max() + 1
        means = np.stack([features[labels == c].mean(0) for c in range(count)])
        away = features - means[labels]
        covariance = sum(np.outer(row, row) for row in away) / len(away)
        unit = np.eye(len(covariance))
        inverse = np.linalg.inv((1 - SHRINKAGE) * covariance + SHRINKAGE * unit)
        found = self.of(rows)
        bias = [mean @ inverse @ mean / 2 for mean in means]
        return found @ inverse @ means.T - np.array(bias)


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["plain", "normed"])
def test_scores_are_those_of_the_textbook(model, together):
    method, count = SLDA(shrinkage=SHRINKAGE), 0
    for twin, stage in beside(method, SLDATwin, DECAYED, model=model, together=together):
        learner = stage.learner
        assert away(twin, learner) < 1e-10
        rows = learner.stream.tasks[0].test
        wanted = twin.scores(rows)
        features = torch.as_tensor(twin.of(rows))
        logits = torch.zeros(len(rows), len(learner.opened)).double()
        made = Output(features, logits)
        net = lambda _, made=made: made  # noqa: E731
        scores = method.answer(net, rows, learner.state, torch.tensor(-1)).logits.numpy()
        assert np.abs(scores[:, : wanted.shape[1]] - wanted).max() < 1e-10
        given = stage.scores[: len(rows), : wanted.shape[1]].astype(float)
        assert np.abs(given - wanted).max() < 1e-2 * np.abs(wanted).max()  # kept in few digits
        count += 1
    assert count == 9


def test_the_network_may_keep_its_initial_weights():
    stages = [s for _, s in beside(SLDA(train_first=False), SLDATwin, DECAYED, model="normed",
                                   together=False)]  # fmt: skip
    for stage in stages:
        vector, buffers = stage.learner.networks.initial()
        assert torch.equal(stage.learner.vector, vector)
        assert all(torch.equal(stage.learner.buffers[k], v) for k, v in buffers.items())
        assert stage.steps == 0


def test_it_keeps_no_exemplars_and_its_state_does_not_grow():
    sizes = set()
    for _, stage in beside(SLDA(), SLDATwin, DECAYED, model="plain", together=False):
        assert len(stage.learner.exemplars) == 0
        sizes.add(stage.learner.nbytes()["state"])
    assert len(sizes) == 1


@pytest.mark.parametrize("shrinkage", [0.0, -1.0, 1.5])
def test_bad_values(shrinkage):
    with refuses("shrinkage"):
        SLDA(shrinkage=shrinkage)
