"""Calibration rows are held out, kept within their budget and renewed; alarms keep their rate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import betabinom

import engram
from engram import Learner
from engram.deploy.calibration import CalibrationRows
from engram.records.novelty_records import p_values
from tests.deploy.conftest import FAST, MODEL, world

FIVE = ["Energy", "Softmax", "ODIN", "Mahalanobis", "KNN"]


def taught(learner, x, y, classes, size=2):
    """A learner that learns classes in tasks of some size."""
    for first in range(0, classes, size):
        rows = (y >= first) & (y < first + size)
        learner.learn(x[rows], y[rows])
    return learner


def held(learner):
    found = CalibrationRows.from_state(learner._portable)
    return found.x.numpy(), found.y.numpy(), found.seen.tolist()


def test_rows_of_every_class_are_held_out_and_survive_a_file(tmp_path):
    x, y, test = world(6, rows=30)
    learner = taught(Learner("IncrementalJoint", MODEL, calibration=9, **FAST), x, y, 6)
    rows, of, seen = held(learner)
    assert np.bincount(learner.snapshot.labels[of]).tolist() == [9] * 6
    assert seen == [30] * 6
    trained = {row.tobytes() for row in learner._portable.tensors["rows/x"].numpy()}
    assert len(trained) == 6 * 21
    assert not trained & {row.tobytes() for row in rows}
    assert learner.nbytes()["calibration"] == rows.nbytes + of.nbytes + 6 * 8
    found = learner.alarm(test, rate=0.1)
    assert 0 < found.alarm.mean() < 0.3
    again = Learner.load(learner.save(tmp_path / "m.engram"), device="cpu")
    for one, other in zip(again.alarm(test, rate=0.1), found, strict=True):
        assert (one == other).all()
    for one in (learner, again):  # a class that comes again, and a new one
        one.learn(x[:20] + 1, np.repeat([0, 6], 10))
    assert torch.equal(*(one._portable.tensors["calibration/x"] for one in (learner, again)))
    rows, of, seen = held(learner)
    assert np.bincount(learner.snapshot.labels[of]).tolist() == [9] * 6 + [5]
    assert seen == [40, *[30] * 5, 10]
    old = {row.tobytes() for row in x}
    own = rows[learner.snapshot.labels[of] == 0]
    assert 1 <= sum(row.tobytes() not in old for row in own) <= 3  # 9 of 40 rows are 2.25 of 10


def test_p_values_by_hand():
    x, y, test = world(4, rows=50)
    learner = taught(Learner("ER", MODEL, calibration=20, detectors=FIVE, **FAST), x, y, 4)
    rows, of, _ = held(learner)
    for detector in ("Energy", "KNN"):
        found = learner.alarm(test, 0.1, detector=detector)
        known, new = (learner.novelty(one, detector=detector) for one in (rows, test))
        assert (found.novelty == new).all()
        by_hand = (1 + (known[None] >= new[:, None]).sum(1)) / (len(of) + 1)
        assert np.allclose(found.p_value, by_hand, rtol=1e-12)
        assert (found.alarm == (by_hand <= 0.1)).all()
        assert (found.compared == 80).all()
        own = learner.alarm(test, 0.1, detector=detector, per_class=True)
        predicted, before = learner.predict(test), learner.predict(rows)
        for c in range(4):
            same = known[before == c]
            if len(same) >= 9:
                these = predicted == c
                assert (own.compared[these] == len(same)).all()
                assert np.allclose(own.p_value[these], p_values(-new[these], -same))
        few = learner.alarm(test, 0.02, detector=detector, per_class=True)
        assert (few.compared[few.compared < 80] >= 49).all()


def test_where_no_alarm_can_be_raised():
    x, y, test = world(4, rows=12)
    learner = taught(Learner("ER", MODEL, calibration=5, **FAST), x, y, 2)
    with pytest.raises(engram.EngramError, match=r"at least 0\.0909, for 10 calibration rows"):
        learner.alarm(test)
    with pytest.raises(engram.BadArgument, match="rate"):
        learner.alarm(test, rate=0)
    learner.learn(x[24:37], y[24:37])  # 12 rows of a class and one of another
    with pytest.raises(engram.EngramError, match=r"of \['3'\] there are none"):
        learner.alarm(test, rate=0.2)
    with pytest.raises(engram.EngramError, match="calibration=50"):
        Learner("ER", MODEL, **FAST).learn(x, y).alarm(test)
    with pytest.raises(engram.BadArgument, match="calibration: expected 0 for sets of labels"):
        Learner("ER", MODEL, calibration=5, **FAST).learn(x, [[f"{c}", "all"] for c in y])
    with pytest.raises(engram.BadArgument, match="calibration"):
        Learner("ER", MODEL, calibration=-1, **FAST)


def test_damaged_calibration_rows(tmp_path):
    x, y, _ = world(2)
    learner = Learner("ER", MODEL, calibration=4, **FAST).learn(x, y)
    learner._portable.tensors["calibration/y"][0] = 2
    with pytest.raises(engram.EngramError, match=r"m\.engram"):
        Learner.load(learner.save(tmp_path / "m.engram"), device="cpu")


def test_false_alarms_stay_at_the_rate_after_every_task():
    """The full version, on digits, is benchmarks/novelty/alarms.py."""
    rate, seeds, rows, kept = 0.1, 3, 60, 30
    alarms = {(name, task): [] for name in FIVE for task in range(3)}
    stale = []
    for seed in range(seeds):
        x, y, test = world(8, rows=rows, seed=seed)
        learner = Learner("ER", MODEL, calibration=kept, detectors=FIVE, seed=seed, **FAST)
        for task in range(3):
            now = (y >= 2 * task) & (y < 2 * task + 2)
            learner.learn(x[now], y[now])
            known = y < 2 * task + 2
            for name in FIVE:
                found = learner.alarm(test, rate, detector=name)
                alarms[name, task].append(int(found.alarm[known].sum()))
            if not task:
                first = -learner.novelty(held(learner)[0])
        # calibrated after the first task, and never again
        frozen = p_values(-learner.novelty(test[y < 6]), first) <= rate
        stale.append(int(frozen.sum()))
    rng = np.random.default_rng(0)

    def band(task):
        n, size = 2 * kept * (task + 1), 2 * rows * (task + 1)
        least = int(rate * (n + 1))
        drawn = betabinom.rvs(size, least, n + 1 - least, size=(20_000, seeds), random_state=rng)
        return np.quantile(drawn.sum(1), [0.0005, 0.9995])

    for (name, task), counts in alarms.items():
        low, high = band(task)
        assert low <= sum(counts) <= high, (name, task, counts)
    low, high = band(2)
    assert not low <= sum(stale) <= high, "scores of the first task would do as well"
