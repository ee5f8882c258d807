"""Detectors that are fitted anew after every task to the rows of the memory, and what they keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import engram
from engram import Learner, novelty
from engram.checks import check
from engram.deploy.calibration import CalibrationRows
from engram.experiments.build_methods import build_method
from engram.methods.method import rereads_rows
from tests.deploy.conftest import FAST, MODEL, world
from tests.novelty.test_detectors import train
from tests.refusals import refuses

EVERY = (
    novelty.Mahalanobis(refit="memory"), novelty.KNN(k=3, refit="memory"),
    novelty.KNN(k=3, per_class=8, refit="memory"),
    novelty.VAE(latent=2, epochs=2, batch_size=16, steps=0, refit="memory"),
    novelty.Mahalanobis(epsilon=0.01, layers=("lower.0",), refit="memory"),
)  # fmt: skip


def taught(learner, x, y, classes=6):
    for first in range(0, classes, 2):
        rows = (y >= first) & (y < first + 2)
        learner.learn(x[rows], y[rows])
    return learner


def mahalanobis(fitted, labels, asked):
    """Minus novelty, from class means and their shared covariance."""
    means = {c: fitted[labels == c].mean(0) for c in np.unique(labels)}
    away = np.concatenate([fitted[labels == c] - mean for c, mean in means.items()])
    precision = np.linalg.pinv(away.T @ away / len(away), rcond=1e-6, hermitian=True)
    far = [(((asked - mean) @ precision) * (asked - mean)).sum(1) for mean in means.values()]
    return np.min(far, 0) / 2


@pytest.mark.parametrize("method", ["ER", "IncrementalJoint"])
def test_a_learner_fits_to_its_memory_and_the_task_by_the_present_network(method):
    x, y, test = world(6, rows=30)
    detectors = [{"name": "Mahalanobis", "right": False}, {"name": "KNN", "k": 1}]
    memory = {"memory": 20} if method == "ER" else {}
    learner = taught(
        Learner(method, MODEL, detectors=detectors, calibration=5, **memory, **FAST), x, y
    )
    kept = learner._portable.tensors
    rows, labels = kept["rows/x"].numpy(), learner.snapshot.labels[kept["rows/y"][:, 0].numpy()]
    before = labels < 4
    held = {row.tobytes() for row in CalibrationRows.from_state(learner._portable).x.numpy()}
    now = np.array([y[i] >= 4 and row.tobytes() not in held for i, row in enumerate(x)])
    assert (now.sum(), before.sum()) == (50, 12 if method == "ER" else 100)
    fitted = np.concatenate([learner.features(one) for one in (rows[before], x[now])])
    labels, asked = np.concatenate([labels[before], y[now]]), learner.features(test)
    wanted = mahalanobis(*(np.float64(fitted), labels, np.float64(asked)))
    found = learner.novelty(test, detector=detectors[0])
    np.testing.assert_allclose(found, wanted, rtol=2e-3)
    fitted, asked = (one / np.linalg.norm(one, axis=1)[:, None] for one in (fitted, asked))
    nearest = np.linalg.norm(asked[:, None] - fitted, axis=-1).min(1)
    np.testing.assert_allclose(learner.novelty(test, detector=detectors[1]), nearest, atol=1e-5)


def test_what_a_learner_keeps_does_not_grow_with_its_tasks(tmp_path):
    x, y, test = world(6, rows=30)
    for method, refit in (("ER", None), ("ER", "never"), ("EWC", None)):
        learner = Learner(method, MODEL, detectors=["KNN"], refit=refit, capacity=4, **FAST)
        learner = taught(learner, x, y)  # made wider by the third task
        size = learner.nbytes()["probes"]
        assert size == 8 * 50 * (16 + 1) * 4 + 8
        taught(learner, x + 1, y, classes=2)
        assert learner.nbytes()["probes"] == size
        again = Learner.load(learner.save(tmp_path / "m.engram"), device="cpu")
        assert again.refit == refit
        for one in (learner, again):
            taught(one, x + 2, y, classes=4)
        assert (again.novelty(test) == learner.novelty(test)).all()


def test_old_statistics_stay_where_that_is_asked_for():
    x, y, test = world(6, rows=30)
    new, old, bare = (
        taught(Learner(method, MODEL, detectors=["Mahalanobis"], refit=refit, **FAST), x, y)
        for method, refit in (("ER", "memory"), ("ER", "never"), ("EWC", None))
    )
    assert not np.allclose(new.novelty(test), old.novelty(test))
    states = [next(iter(one.snapshot.probes.values())) for one in (new, old, bare)]
    assert [int(one["rows"]) for one in states] > [0, 0, 0]
    assert all(int(one["known"].sum()) == 6 for one in states)


def test_a_run_goes_on_as_a_learner_with_what_it_kept(tmp_path):
    """A file of a run, whose detectors kept old features: fitted anew, or carried on."""
    x, y, test = world(6)
    data = engram.Data.from_arrays(x, y, test=(test, y))
    stream = engram.class_incremental(data, classes_per_task=2)
    for method, slots in (("EWC", (3 * 20, 16)), ("ER", (12, 50, 16))):
        result = engram.run(stream, method=method, model=MODEL, out=tmp_path / method,
                            detectors=[{"name": "KNN", "keep": 20}], **FAST)  # fmt: skip
        (path,) = (tmp_path / method).rglob("model.engram")
        learner = Learner.load(path, device="cpu")
        assert np.isfinite(learner.novelty(test)).all()
        assert len(result.runs) == 1
        learner.learn(x[:20] + 1, [6, 7] * 10)
        (state,) = learner.snapshot.probes.values()
        wanted = (4 * 20, 16) if method == "EWC" else slots
        assert tuple(state["rows"]["features"].shape) == wanted
        again = Learner.load(learner.save(tmp_path / f"{method}.engram"), device="cpu")
        again.learn(x[:20] + 1, [6, 7] * 10)
        assert np.isfinite(again.novelty(test)).all()


def test_runs_together_alone_and_from_records(tmp_path):
    memory = {"method": engram.methods.ER(memory=engram.Memory(total=20))}
    together, alone = (train(*EVERY, together=t, head="single", **memory) for t in (True, False))
    train(out=tmp_path, keep="parameters", head="single", seeds=1, **memory)
    later = train(*EVERY, out=tmp_path, keep="parameters", head="single", seeds=1, **memory)
    for detector in EVERY:
        for stage in range(3):
            place = detector.name, 0
            one, two, three = (
                result.arrays(*place, stage=stage)["familiarity"]
                for result in (together, alone, later)
            )
            assert np.allclose(one, two, atol=2e-5, rtol=1e-4), detector
            assert np.array_equal(two, three), detector
    stale = train(novelty.Mahalanobis(), head="single", seeds=1, **memory)
    names = EVERY[0].name, novelty.Mahalanobis().name
    first, last = (
        [r.arrays(n, 0, stage=stage)["familiarity"]
         for r, n in zip((alone, stale), names, strict=True)]
        for stage in (0, 2)
    )  # fmt: skip
    assert np.array_equal(*first)
    assert not np.allclose(*last)


def test_the_contract_holds():
    report = check(EVERY[2])
    assert report.ok, str(report)


def test_tuned_once_and_fitted_anew():
    detector = novelty.Tuned(EVERY[1], {"k": [1, 3]})
    stream = engram.class_incremental(
        engram.load("blobs", classes=6), classes_per_task=2, valid=0.2
    )
    result = engram.run(stream, method="ER", detectors=[detector], epochs=1, device="cpu",
                        outside={"data": "blobs", "data_options": {"seed": 1}})  # fmt: skip
    assert result.tuned()["value"].isin([1, 3]).all()


def test_which_methods_have_rows_to_fit_to():
    names = ("ER", "ICaRL", "Joint", "ER+EWC", "LwF", "Finetune", "LatentReplay", "DGR")
    kept = [name for name in names if rereads_rows(build_method(name))]
    assert kept == ["ER", "ICaRL", "Joint", "ER+EWC"]


def test_refused_before_anything_is_learnt():
    for detector, options in (
        (novelty.Softmax(refit="memory"), {"method": "ER"}),
        (novelty.KNN(k=3, refit="always"), {"method": "ER"}),
        (EVERY[0], {"method": "LwF"}),
    ):
        with refuses("refit"):
            train(detector, **options)
    for options in (
        {"method": "LwF", "refit": "memory"}, {"refit": "always"},
        {"detectors": [{"name": "Softmax", "refit": "memory"}]},
        {"method": "LwF", "detectors": [{"name": "KNN", "refit": "memory"}]},
    ):  # fmt: skip
        with refuses("refit"):
            Learner(**options)
    with refuses("refit"):
        novelty.Tuned(novelty.KNN(), {"k": [1]}, refit="memory")
    with refuses("k"):
        novelty.KNN(k=10, per_class=5)


def test_fewer_rows_than_neighbours():
    """A learner may be taught a few rows at a time."""
    x, y, _ = world(2, rows=30)
    learner = Learner("ER", MODEL, memory=4, detectors=["KNN"], **FAST).learn(x, y)
    learner.learn(x[:2], y[:2])
    assert torch.isfinite(torch.tensor(learner.novelty(x))).all()
