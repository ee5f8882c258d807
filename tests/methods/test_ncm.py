"""Nearest class means against plain formulas over all rows so far."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engram.checks.toy_runs import make_clouds
from engram.methods import NCM
from engram.streams import domain_incremental
from tests.methods.fixed_features import Backbone, stages
from tests.plain.closed_forms import nearest_mean
from tests.refusals import refuses


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_scores_are_those_of_the_formula(distance, together):
    method, count = NCM(distance=distance), 0
    for seen in stages(method, together=together):
        wanted = nearest_mean(seen.z, seen.y, seen.test, cosine=distance == "cosine")
        scores = seen.scores(method)[:, : seen.classes]
        assert (scores - wanted + (distance == "cosine")).abs().max() < 1e-9
        assert seen.stage.steps == 0
        count += 1
    assert count == 9


def test_unseen_classes_come_last():
    for distance in ("cosine", "euclidean"):
        seen = next(stages(NCM(distance=distance), together=False))
        scores = seen.scores(NCM(distance=distance))
        assert (scores[:, seen.classes :] < scores[:, : seen.classes].amin(1, keepdim=True)).all()


def test_classes_that_come_back_are_averaged_over_all_their_rows():
    clouds = make_clouds((12, 9, 15))
    data = replace(clouds, attributes={"place": torch.arange(len(clouds)) % 2})
    for seen in stages(NCM(), together=False, on=[domain_incremental(data, by="place")]):
        wanted = nearest_mean(seen.z, seen.y, seen.test)
        assert (seen.scores(NCM()) - wanted + 1).abs().max() < 1e-9


@pytest.mark.parametrize("first", [False, True])
def test_a_backbone_that_is_not_frozen_is_trained_on_the_first_task_alone(first):
    method = NCM(train_first=first)
    steps = [seen.stage.steps for seen in stages(method, together=False, model=Backbone)]
    assert [count > 0 for count in steps] == [first, False, False] * 3


def test_bad_values():
    with refuses("distance"):
        NCM(distance="manhattan")
