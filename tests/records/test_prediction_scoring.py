"""Metrics of stored predictions, against scikit-learn on what the records hold."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

import engram
from engram.errors import BadArgument, RecordError
from engram.records import head_views
from tests.engine.test_evaluation import tree
from tests.refusals import refuses


@pytest.fixture(scope="module")
def result():
    stream = engram.class_incremental(engram.load("blobs", classes=6), classes_per_task=2)
    return engram.run(stream, method=["Finetune", "ER"], epochs=1, seeds=2, device="cpu")


def answers(result, number, stage, head):
    """(true columns, predicted columns, scores of open columns) of the rows of tasks so far."""
    run = result.runs[number]
    kept = result.predictions.get(*run, stage)
    items = kept.scored(result.items(run.recipe, run.order))
    seen = items.task <= stage
    among = head_views.open_columns(items, stage=stage, head=head)
    scores = np.where(among, kept.full(), -np.inf)[seen]
    return items.targets[seen, 0], kept.predicted(items, head=head)[seen], scores


@pytest.mark.parametrize("head", ["single", "multi"])
@pytest.mark.parametrize("stage", [1, None])
def test_f1(result, head, stage):
    for average in ("macro", "weighted"):
        found = result.view(head=head).metric("f1_score", stage=stage, average=average)
        for number in range(4):
            y, p, _ = answers(result, number, 2 if stage is None else stage, head)
            assert found[number] == pytest.approx(sk.f1_score(y, p, average=average))


def test_top_k(result):
    for k in (2, 3, 5):
        found = result.metric("top_k_accuracy", k=k)
        for number in range(4):
            y, _, scores = answers(result, number, 2, "single")
            ranks = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            assert found[number] == (ranks == y[:, None]).any(axis=1).mean()
    ones = result.metric("top_k_accuracy", k=1)
    for number in range(4):
        y, p, _ = answers(result, number, 2, "single")
        assert ones[number] == (y == p).mean()


def test_no_number_where_every_answer_would_be_right(result):
    assert np.isnan(result.metric("top_k_accuracy", k=6)).all()
    assert np.isnan(result.metric("top_k_accuracy", k=3, stage=0)).all()
    told = result.view(head="multi").metric("top_k_accuracy", k=2)  # two classes in each task
    assert np.isnan(told).all()
    assert np.isfinite(result.view(head="multi").metric("top_k_accuracy", k=1)).all()


def test_which_class_was_highest_was_decided_before_scores_were_rounded():
    """Two scores that are equal as stored: the second was the higher one."""
    items = head_views.EvaluationItems(
        rows=[0], task=[0], targets=[1], opening=[0, 0, 0], visible=[[1, 1, 1]], classes=[0, 1, 2]
    )
    kept = engram.records.predictions.Prediction.from_scores(
        [[1.0, 1.0 + 1e-6, 0.0]], items, recipe="r", seed=0, stage=0
    )
    assert kept.full()[0, 0] == kept.full()[0, 1]
    found = engram.records.run_metrics._top_k(kept, items, 0, "single", k=1)
    assert found == 1.0


def test_complaints(result):
    with refuses("option of f1_score"):
        result.metric("f1_score", k=3)
    with pytest.raises(BadArgument, match="k: expected a whole number of at least 1"):
        result.metric("top_k_accuracy", k=0)
    few = engram.run(engram.load("blobs"), epochs=1, keep="labels", device="cpu")
    assert np.isfinite(few.metric("f1_score")).all()
    with pytest.raises(RecordError, match='top_k_accuracy needs keep="scores"'):
        few.metric("top_k_accuracy", k=1)
    sets = engram.run(tree(), epochs=1, device="cpu")
    with pytest.raises(BadArgument, match="hierarchical_f1 or another set score"):
        sets.metric("f1_score")
