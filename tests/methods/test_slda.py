"""Streaming linear discriminant analysis against textbook formulas over all rows so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from engram.checks.toy_runs import make_clouds, make_streams
from engram.methods import SLDA
from engram.models.forward_pass import Output
from tests.engine.plain_loop import Twin, away, beside
from tests.engine.test_plain_loop import DECAYED
from tests.methods.fixed_features import stages
from tests.plain.closed_forms import discriminant
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


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
def test_relative_shrinkage_is_that_of_the_formula(together):
    method = SLDA(shrinkage=0.2, relative=True)
    for seen in stages(method, together=together):
        wanted = discriminant(seen.z, seen.y, seen.test, 0.2)
        scores = seen.scores(method)[:, : seen.classes]
        assert (scores - wanted).abs().max() < 1e-9 * wanted.abs().max()


def test_relative_shrinkage_does_not_depend_on_the_scale_of_features():
    data, answers = make_clouds(), []
    for factor in (1.0, 1024.0):
        scaled = replace(data, x=data.x * factor)
        (stream,) = make_streams(scaled, [range(6)])
        method = SLDA(shrinkage=0.2, relative=True)
        *_, last = stages(method, together=False, model=Linearly, on=[stream])
        answers.append(last.scores(method)[:, :6].softmax(1))
    assert (answers[0] - answers[1]).abs().max() < 1e-9


class Linearly(nn.Module):
    """A network whose features are the inputs."""

    features = 6

    def __init__(self, sample_shape: tuple[int, ...]) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


@pytest.mark.parametrize("shrinkage", [0.0, -1.0, 1.5])
def test_bad_values(shrinkage):
    with refuses("shrinkage"):
        SLDA(shrinkage=shrinkage)


def test_under_a_frozen_backbone_nothing_is_trained():
    scores = []
    for first in (True, False):
        found = list(stages(SLDA(train_first=first), together=False))
        assert [seen.stage.steps for seen in found] == [0] * 9
        scores.append(found[-1].scores(SLDA()))
    assert torch.equal(*scores)
