"""Learners that are given data sets: rows by the names of their classes, scales of the first."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import engram
from engram.errors import BadArgument

FEW = {"epochs": 20, "lr": 0.01, "device": "cpu"}


def table(classes, rows=30, seed=0):
    """A table with a number, a number with gaps on another scale, and a word."""
    rng = np.random.default_rng(seed)
    kind = np.repeat(classes, rows)
    place = np.repeat([ord(name[0]) - ord("a") for name in classes], rows)
    size = rng.normal(size=len(kind)) + 3 * place
    weight = 1000.0 * (rng.normal(size=len(kind)) - 2 * place)
    weight[::7] = np.nan
    colour = np.where(rng.random(len(kind)) < 0.5, "red", "blue")
    return pd.DataFrame({"size": size, "weight": weight, "colour": colour, "kind": kind})


def of(frame, **options):
    return engram.Data.from_frame(frame, label="kind", missing="mean", standardize=True, **options)


def test_classes_are_known_by_their_names():
    """The only class of the second set has id 0, as another one of the first has."""
    learner = engram.Learner("ER", **FEW).learn(of(table(["ant", "bee"])))
    learner.learn(of(table(["cat"], seed=1)))
    assert learner.classes_.tolist() == ["ant", "bee", "cat"]
    for names in (["ant", "bee"], ["cat"]):  # by ids, ants or cats would all be wrong
        assert learner.score(of(table(names, seed=1))) > 0.7


def test_it_learns_what_a_run_learns_from_the_same_data():
    data = of(table(["ant", "bee", "cat"]))
    stream = engram.class_incremental(data, classes_per_task=3)
    wanted = engram.run(stream, method="ER", epochs=20, lr=0.01, device="cpu").model()
    learner = engram.Learner("ER", capacity=3, **FEW).learn(data)
    new = table(["cat", "ant"], seed=5)
    np.testing.assert_array_equal(learner.predict_proba(new), wanted.predict_proba(new))
    about, other = learner.snapshot.facts["inputs"], wanted.snapshot.facts["inputs"]
    assert about == other
    for name in ("fill", "std", "columns"):
        assert about[name]


def test_scales_are_those_of_the_first_task():
    learner = engram.Learner("Finetune", **FEW).learn(of(table(["ant", "bee"])))
    before = learner.snapshot.facts["inputs"]
    far = table(["cat"], seed=1).assign(size=lambda t: t["size"] + 500)
    learner.learn(of(far))
    assert learner.snapshot.facts["inputs"] == before


def test_missing_values_are_filled_after_further_tasks():
    """Of a model that a run has left, too."""
    data, gaps = of(table(["ant", "bee"])), table(["ant", "bee"], seed=2)
    run = engram.run(data, method="ER", device="cpu").model()
    for learner in (run, engram.Learner("ER", **FEW).learn(data)):
        learner.learn(table(["cat"]).drop(columns="kind"), ["cat"] * 30)
        assert learner.snapshot.facts["inputs"]["fill"]
        assert len(learner.predict(gaps)) == 60


def test_other_columns_are_refused():
    learner = engram.Learner("Finetune", **FEW).learn(of(table(["ant", "bee"])))
    with pytest.raises(BadArgument, match=r"columns of .*: expected 'colour' among them"):
        learner.learn(of(table(["cat"]).drop(columns="colour")))
    assert learner.tasks == 1


def test_numbers_stay_numbers_and_validation_rows_come_along():
    data = engram.load("digits")
    stream = engram.class_incremental(data, classes_per_task=10, valid=0.2)
    held = stream.tasks[0].valid
    own = torch.isin(data.train, held)
    data = engram.data.Data(x=data.x, y=data.y, train=data.train[~own], valid=held, test=data.test,
                            classes=data.classes)  # fmt: skip
    learner = engram.Learner("Finetune", patience=1, **FEW).learn(data)
    assert learner.classes_.tolist() == list(range(10))
    assert learner.score(data) == learner.score(data.x[data.test], data.labels[data.test])


def test_complaints():
    data = of(table(["ant", "bee"]))
    learner = engram.Learner("Finetune", **FEW)
    with pytest.raises(BadArgument, match="y: expected None, because data has its own labels"):
        learner.learn(data, data.labels)
    learner.learn(data)
    with pytest.raises(BadArgument, match="y: expected None, because data has its own labels"):
        learner.score(data, data.labels)
