"""Learners of label sets: taught one label of a row at a time, scored on all they have met."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import engram
from engram import Learner, Memory, methods
from engram.deploy.program_export import Program
from engram.metrics import precision_weighted_jaccard
from tests.deploy.conftest import FAST, MODEL
from tests.refusals import refuses

KINDS = {"ant": "insect", "bee": "insect", "carp": "fish", "dace": "fish"}
LR = {**FAST, "epochs": 12, "lr": 0.03}


def rows(seed):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(9).normal(size=(4, 8)) * 3
    fine = np.repeat(np.arange(4), 20)
    return np.float32(centres[fine] + rng.normal(size=(80, 8))), np.array(list(KINDS))[fine]


@pytest.fixture(scope="module")
def tree():
    """Insects and fish, then their kinds."""
    (x, fine), test = rows(0), rows(1)
    data = engram.Data.from_arrays(x, fine, test=test)
    below = {kind: [one for one in KINDS if KINDS[one] == kind] for kind in ("fish", "insect")}
    return engram.hierarchical(
        data, hierarchy=below, tasks=[["fish", "insect"], ["ant", "carp"], ["bee", "dace"]],
        valid=0.0, post_valid=0.0,
    )  # fmt: skip


def shown(stream, stage):
    """The rows of a task, and the labels that it shows."""
    task, data = stream.tasks[stage], stream.data
    every = data.y[task.train].tolist()
    return data.x[task.train], [[data.classes[c] for c in y if c in task.shown] for y in every]


def taught(learner, stream, stages):
    for stage in stages:
        learner.learn(*shown(stream, stage))
    return learner


def weights(learner):
    return learner._portable.tensors["net.head.weight"]


@pytest.mark.parametrize(
    "method",
    [
        methods.ER(memory=Memory(total=20)),
        methods.ICaRL(variant="cnn", memory=Memory(per_class=4, policy="herding")),
        methods.BiC(variant="sigmoid", memory=Memory(per_class=4)),
        methods.LUCIR(memory=Memory(per_class=4)),
    ],
)
def test_it_learns_goes_on_and_scores_as_a_run_does(tree, method, tmp_path):
    settings = {k: v for k, v in LR.items() if k != "device"}
    run = engram.run(tree, method=method, model=MODEL, device="cpu", **settings)
    learner = taught(Learner(method, MODEL, capacity=6, **LR), tree, [0])
    learner = Learner.load(learner.save(tmp_path / "m.engram"), device="cpu")
    taught(learner, tree, [1, 2])
    wanted = run.model()
    assert learner._portable.tensors.keys() == wanted._portable.tensors.keys()
    assert torch.equal(weights(learner), weights(wanted))
    test = tree.data.x[tree.data.test]
    assert learner.predict(test) == wanted.predict(test)
    last = run.curve("precision_weighted_jaccard")[0, -1]
    assert learner.score(tree.data) == pytest.approx(float(last), abs=1e-12)


def test_it_predicts_sets_and_scores_labels_met_so_far(tree):
    learner = taught(Learner("ER", MODEL, **LR), tree, [0, 1])
    x, fine = rows(1)
    truth = [[f"superclass/{KINDS[one]}", f"fine/{one}"] for one in fine]
    said, share = learner.predict(x), learner.predict_proba(x)
    assert learner.classes_.tolist() == sorted(
        ["superclass/insect", "superclass/fish", "fine/ant", "fine/carp"]
    )
    names = learner.classes_.tolist()
    assert said[:3] == [
        [n for n in learner.snapshot.labels.tolist() if row[names.index(n)] > 0.5]
        for row in share[:3]
    ]
    hot = [[[n in one for n in names] for one in sets] for sets in (truth, said)]
    assert learner.score(x, truth) == pytest.approx(precision_weighted_jaccard(*hot), abs=1e-12)
    assert learner.score(x, truth) > 0.4  # nothing named: 0; one of two labels: a half
    with refuses("y"):
        learner.score(x[:2], [["fine/bee"], ["fine/dace"]])  # to come
    with refuses("sample_weight"):
        learner.score(x, truth, np.ones(80))


def test_room_doubles_and_single_labels_are_sets_of_one(tree):
    learner = taught(Learner("ER", MODEL, capacity=2, **LR), tree, [0])
    assert len(weights(learner)) == 2
    x, sets = shown(tree, 1)
    other = taught(Learner("ER", MODEL, capacity=2, **LR), tree, [0])
    learner.learn(x, sets)
    other.learn(x, [one for (one,) in sets])
    assert len(weights(learner)) == 4
    assert torch.equal(weights(learner), weights(other))


def test_rows_of_a_run_hide_labels_of_its_later_tasks(tree):
    """A class that the learner meets gets the column that the run had for another one."""
    learner = engram.run(tree[:1], method="ER", model=MODEL, **LR).model()
    whole = engram.run(tree, method="ER", model=MODEL, **LR)
    assert whole.model()._portable.tensors["rows/y"].shape[1] == 2
    x = rows(3)[0]
    learner.learn(x[:20] + 30, [["new", "other"]] * 20)
    kept = learner._portable.tensors
    old = kept["rows/stage"] == 0
    assert old.any()
    assert int(kept["rows/y"][old].max()) < 2  # insects and fish; columns 2 and 3 are new


def test_numbers_matrices_and_validation_rows():
    x, fine = rows(0)
    ids = np.array([list(KINDS).index(one) for one in fine])
    pairs = np.stack([ids, 4 + ids // 2], 1)
    hot = np.eye(6, dtype=bool)[ids] | np.eye(6, dtype=bool)[4 + ids // 2]
    asked = {"epochs": 3, "restore_best": True}
    found = [
        Learner("Finetune", MODEL, **{**FAST, **asked}).learn(x, y, valid=(x[::5], y[::5]))
        for y in (pairs, pairs.tolist(), hot)
    ]
    assert found[0].classes_.tolist() == list(range(6))
    assert all(torch.equal(weights(found[0]), weights(one)) for one in found[1:])
    assert found[0].predict(x) == found[2].predict(x)


def test_novelty_by_detectors_that_suppose_no_single_label(tree):
    learner = taught(Learner("ER", MODEL, detectors=["Energy", {"name": "KNN", "k": 3}], **LR),
                     tree, [0, 1, 2])  # fmt: skip
    x = rows(1)[0]
    far = x + 50
    assert (learner.novelty(far, detector={"name": "KNN", "k": 3}) > -1).all()
    assert learner.novelty(x).shape == (80,)
    with refuses("detectors"):
        learner.novelty(x, detector="Softmax")
    further = ["MaxLogit", "ReAct", "ASH", "DICE", "NNGuide", "ViM"]
    learner = taught(Learner("ER", MODEL, detectors=further, **{**LR, "epochs": 1}), tree, [0, 1])
    assert all(np.isfinite(learner.novelty(x, detector=one)).all() for one in further)
    for name in ("Mahalanobis", "RMD", "SHE", "GEN", "KLMatching", "GradNorm", "FDBD"):
        with refuses("detectors"):
            taught(Learner("ER", MODEL, detectors=[name], **LR), tree, [0])


def test_the_program_that_is_exported_gives_the_same_probabilities(tree):
    learner = taught(Learner("ER", MODEL, **LR), tree, [0, 1])
    x = rows(1)[0]
    said = Program(learner.snapshot).eval()(torch.from_numpy(x)).detach()
    np.testing.assert_allclose(said.numpy(), learner.predict_proba(x), atol=1e-6)
    assert float(said.sum(1).max()) > 1.05  # no softmax


def test_what_is_refused_leaves_it_as_it_was(tree):
    x, fine = rows(0)
    sets = [[one, KINDS[one]] for one in fine]
    single = Learner("ER", MODEL, **FAST).learn(x, fine)
    with refuses("y"):
        single.learn(x, sets)
    learner = Learner("ER", MODEL, **FAST)
    for wrong in (
        [*sets[1:], []],
        [*sets[1:], "ant"],
        [*sets[1:], ["ant", "ant"]],
        [*sets[1:], ["ant", 3]],
        sets[1:],
        np.zeros((80, 1), np.int64),
    ):
        with refuses("y"):
            learner.learn(x, wrong)
    with refuses("valid"):
        learner.learn(x, sets, valid=(x[:1], [["ant", "eel"]]))
    with refuses("y"):
        learner.partial_fit(x, sets, classes=["ant", "insect"])
    with refuses("method"):
        Learner("BiC", MODEL, **FAST).learn(x, sets)
    assert learner.tasks == 0
    learner.learn(x, sets)
    with refuses("y"):
        learner.learn(x, [[0, 1]] * 80)


def test_data_sets_have_the_labels_of_their_rows(tree):
    learner = Learner("ER", MODEL, **LR).learn(tree.data)
    assert set(learner.classes_) == set(tree.data.classes)
    assert learner.score(tree.data) > 0.5
    x, fine = rows(0)  # of one label each
    learner.learn(engram.Data.from_arrays(x[:20] + 30, ["new"] * 20))
    assert "new" in learner.classes_
    with refuses("y"):
        Learner("ER", MODEL, **LR).learn(x, fine).learn(tree.data)
