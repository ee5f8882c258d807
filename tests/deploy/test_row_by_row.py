"""A learner that is given one row at a time, with river and without."""

from __future__ import annotations

import importlib.util
import pickle

import numpy as np
import pandas as pd
import pytest

from engram import Learner
from engram.deploy.row_by_row import RowByRow
from tests.deploy.conftest import FAST, world
from tests.refusals import refuses

SMALL = {"name": "mlp", "hidden": [8]}


def make(rows=12, **settings):
    return RowByRow(Learner("ER", SMALL, **{**FAST, **settings}), rows=rows)


@pytest.fixture(scope="module")
def rows():
    x, y, _ = world(3, 20)
    order = np.random.default_rng(0).permutation(len(y))
    return [(dict(zip("abcdefgh", x[row].tolist())), f"kind {y[row]}") for row in order]


def test_every_so_many_rows_are_a_task(rows):
    model = make(rows=12, epochs=10)
    assert model.predict_one(rows[0][0]) is None
    assert model.predict_proba_one(rows[0][0]) == {}
    for count, (x, y) in enumerate(rows, start=1):
        model.learn_one(x, y)
        assert model.tasks == count // 12
        assert y in model.predict_proba_one(x)
    twin = Learner("ER", SMALL, **{**FAST, "epochs": 10})
    for begin in range(0, 60, 12):
        some = rows[begin : begin + 12]
        twin.learn(np.array([list(x.values()) for x, _ in some]), [y for _, y in some])
    x = np.array([list(x.values()) for x, _ in rows])
    assert (model.learnt.predict_proba(x) == twin.predict_proba(x)).all()
    assert np.mean([model.predict_one(x) == y for x, y in rows]) > 0.9


def test_before_the_first_task_the_commonest_label_is_said(rows):
    model = make()
    for label in ("cat", "dog", "dog"):
        model.learn_one(rows[0][0], label)
    assert model.predict_proba_one({"a": 1}) == {"cat": 1 / 3, "dog": 2 / 3}
    assert model.predict_one({}) == "dog"
    assert model.tasks == 0
    model.learn_now()
    model.learn_now()
    assert model.tasks == 1
    model.learn_one(rows[0][0], "emu")
    assert model.predict_proba_one({})["emu"] == 0


def test_frames_and_rows_are_the_same(rows):
    one, many = make(), make()
    frame = pd.DataFrame([x for x, _ in rows], index=np.arange(60) + 7)
    labels = pd.Series([y for _, y in rows], index=frame.index)
    for x, y in rows:
        one.learn_one(x, y)
    many.learn_many(frame[sorted(frame, reverse=True)], labels)
    share = many.predict_proba_many(frame)
    assert share.index.equals(frame.index)
    np.testing.assert_allclose(share.sum(axis="columns"), 1)
    for (x, _), row, said in zip(rows, share.to_dict("records"), many.predict_many(frame)):
        assert one.predict_proba_one(x) == pytest.approx(row)
        assert said == one.predict_one(x)
    with refuses("y"):
        many.learn_many(frame, labels[:3])


def test_features_come_and_go(rows):
    model = make(rows=4)
    for k, (x, y) in enumerate(rows[:4]):
        model.learn_one({"b": x["b"], "a": k} if k else {"b": x["b"], "c": float("nan")}, y)
    assert model.features == ["a", "b"]
    lacking, means = (
        model.predict_proba_one({"b": 0.5}),
        model.predict_proba_one({"b": 0.5, "a": 2}),
    )
    assert lacking == means
    assert model.predict_proba_one({"b": 0.5, "z": 1e9}) == lacking
    with refuses("feature 'b'"):
        model.learn_one({"b": "red"}, "cat")
    again = pickle.loads(pickle.dumps(model))
    assert again.predict_proba_one({"b": 0.5}) == lacking
    with refuses("learner"):
        RowByRow(model.learnt)
    empty = make(rows=1)
    with refuses("x"):
        empty.learn_one({}, "cat")


def test_the_given_learner_stays_as_it_is(rows):
    learner = Learner("ER", SMALL, **FAST)
    model = RowByRow(learner, rows=3)
    for x, y in rows[:3]:
        model.learn_one(x, y)
    assert (learner.tasks, model.tasks) == (0, 1)


def _river_checks():
    if importlib.util.find_spec("river") is None:
        return [pytest.param(None, marks=pytest.mark.skip("needs the extra river"))]
    from river import checks

    from engram.deploy.river_learner import RiverLearner

    (given,) = RiverLearner._unit_test_params()
    model = RiverLearner(**given)
    return [
        pytest.param((check, model), id=f"{place}-{check.__name__}")
        for place, check in enumerate(checks.yield_checks(model))
    ]


@pytest.mark.parametrize("case", _river_checks())
def test_checks_of_river(case):
    check, model = case
    check(model.clone())
