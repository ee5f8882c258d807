"""Mahalanobis distances of FeCAM against plain formulas over all rows so far."""

from __future__ import annotations

import pytest
import torch

from engram.checks.toy_runs import make_clouds
from engram.methods import FeCAM
from engram.methods.fecam import whiten
from engram.streams import class_incremental
from tests.methods.fixed_features import stages
from tests.plain.closed_forms import mahalanobis
from tests.refusals import refuses

OPTIONS = {"power": 0.6, "shrink_diagonal": 0.7, "shrink_rest": 0.3}


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
def test_scores_are_those_of_the_formula(together):
    method, count = FeCAM(**OPTIONS), 0
    for seen in stages(method, together=together):
        wanted = mahalanobis(seen.z, seen.y, seen.test, power=0.6, diagonal=0.7, rest=0.3)
        scores = seen.scores(method)
        assert (scores[:, : seen.classes] - wanted).abs().max() < 1e-9 * wanted.abs().max()
        if seen.classes < scores.shape[1]:
            assert (scores[:, seen.classes :].amax(1) < wanted.amin(1)).all()
        assert seen.stage.steps == 0
        count += 1
    assert count == 9


def test_a_matrix_that_cannot_be_inverted_has_its_pseudo_inverse():
    rows = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]).double()
    found = whiten(torch.cov(rows.T))
    wanted = torch.linalg.pinv(torch.ones(2, 2).double())
    assert (found @ found.T - wanted).abs().max() < 1e-9


def test_a_class_of_one_row_has_distances_of_unit_covariance():
    method, stream = FeCAM(power=1.0), class_incremental(make_clouds((1, 8)), classes_per_task=2)
    (seen,) = stages(method, together=False, on=[stream])
    one = int((seen.y.bincount() == 1).nonzero())
    unit = torch.nn.functional.normalize
    away = unit(seen.test, dim=1) - unit(seen.z[seen.y == one], dim=1)
    assert (seen.scores(method)[:, one] + away.square().sum(1)).abs().max() < 1e-9


@pytest.mark.parametrize(
    "bad", [{"power": 0.0}, {"power": 1.5}, {"shrink_diagonal": -1.0}, {"shrink_rest": -0.1}]
)
def test_bad_values(bad):
    (name,) = bad
    with refuses(name):
        FeCAM(**bad)
