"""Predictions, late labels, and what a monitor makes of them."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score

from engram import Learner, ModelStore, Monitor
from engram.deploy.drift_tests import compare_column, compare_novelty, describe_columns, spend
from engram.deploy.line_journal import LineJournal
from engram.deploy.monitor import PERIODS
from engram.metrics import expected_calibration_error
from engram.report.monitor_page import build_monitor_page, find_problems, monitor_sections
from tests.deploy.conftest import FAST
from tests.forks import FORKS
from tests.refusals import refuses

WEEK = PERIODS["week"]
SMALL = {"name": "mlp", "hidden": [16]}
CENTRES = 3 * np.eye(4)


def draw(rows, seed, classes=3, shift=0.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, rows)
    x = np.float32(CENTRES[y] + rng.normal(size=(rows, 4)))
    x[:, 1] += np.float32(shift)
    return x, y


@pytest.fixture(scope="module")
def learner():
    made = Learner("ER", SMALL, **{**FAST, "epochs": 8, "calibration": 30})
    return made.learn(*draw(300, 0))


@pytest.fixture(scope="module")
def watched(learner, tmp_path_factory):
    """Six weeks, of which the fourth has drifted and the last has no labels."""
    monitor = Monitor(tmp_path_factory.mktemp("monitor") / "of")
    monitor.record_learning(learner, *draw(300, 0), time=0)
    truth = {}
    for week in range(6):
        x, y = draw(100, week + 1, shift=2.0 * (week == 3))
        found = monitor.predict(learner, x, time=week * WEEK + 60)
        truth |= dict(zip(found["id"], y.tolist()))
        if week < 5:
            monitor.label(found["id"].tolist(), y, time=(week + 1) * WEEK)
    return monitor, truth


def test_numbers_are_those_of_the_rows(watched):
    monitor, truth = watched
    frame = monitor.observations()
    assert len(frame) == 600
    known = frame[frame["truth"].notna()]
    assert known["truth"].tolist() == [truth[one] for one in known["id"]]
    assert frame["period"].value_counts().to_dict() == dict.fromkeys(range(1, 7), 100)
    right = accuracy_score(known["truth"].astype(int), known["label"].astype(int))
    whole = monitor.accuracy().loc["all"]
    assert whole[["rows", "labelled", "right"]].tolist() == [600, 500, round(500 * right)]
    interval = stats.binomtest(int(whole["right"]), 500).proportion_ci(0.95, "exact")
    assert (whole["low"], whole["high"]) == pytest.approx((interval.low, interval.high))
    each = monitor.accuracy(["period", "class"])
    assert each["rows"].sum() == 500
    part = known[(known["period"] == 2) & (known["truth"] == 1)]
    assert each.loc[(2, 1), "accuracy"] == part["right"].astype(float).mean()
    weekly = monitor.accuracy("period")
    assert weekly.loc[6, "labelled"] == 0
    assert np.isnan(weekly.loc[6, "accuracy"])
    shares = monitor.shares("truth")
    np.testing.assert_allclose(shares.sum(axis="columns"), 1)
    assert shares.loc[1, "2"] == (known[known["period"] == 1]["truth"] == 2).mean()
    alarms = monitor.alarms("period")
    assert alarms["alarms"].sum() == (frame["p_value"] <= 0.05).sum()
    assert alarms["expected"].tolist() == pytest.approx([0.05] * 6)


def test_calibration_error_is_that_of_the_metrics(watched):
    monitor, _ = watched
    known = monitor.observations().dropna(subset="right")
    confidence = known["probability"].to_numpy()
    scores = np.stack([confidence, np.zeros_like(confidence)], 1)
    wrong = 1 - known["right"].to_numpy(int)
    found = monitor.calibration().loc["all", "calibration_error"]
    assert found == expected_calibration_error(scores, wrong, 15)
    bins = monitor.calibration("bin")
    gaps = (bins["probability"] - bins["accuracy"]).abs() * bins["labelled"]
    assert gaps.sum() / len(known) == pytest.approx(found)


def test_the_week_that_drifted_is_found_and_no_other(watched):
    monitor, _ = watched
    drift = monitor.drift()
    assert drift[drift["drift"]]["period"].tolist()[:1] == [4]
    assert set(drift[drift["drift"]]["period"]) == {4}
    assert "column 2" in set(drift[drift["drift"]]["what"])
    assert sorted(set(drift["period"])) == [1, 2, 3, 4, 5]  # the sixth is not over
    assert drift["level"].tolist() == [spend(0.05, k) for k in drift["period"]]
    numbers = monitor.numbers()
    assert numbers["drifted_columns"] == 0
    assert numbers["rows"] == 600
    assert numbers["accuracy"] == monitor.accuracy().loc["all", "accuracy"]
    assert np.isnan(numbers["accuracy_last_period"])
    assert numbers["label_delay_seconds"] == WEEK - 60
    assert all(isinstance(value, float) for value in numbers.values())


def test_looking_often_changes_nothing(watched, learner, tmp_path):
    monitor = Monitor(tmp_path / "m", period="day")
    monitor.record_learning(learner, *draw(200, 0), time=0)
    before = monitor.drift()
    for hour in range(0, 72, 8):
        monitor.predict(learner, draw(20, hour)[0], time=3600.0 * hour)
        now = monitor.drift()
        assert now.to_dict("records")[: len(before)] == before.to_dict("records")
        before = now
    assert sorted(set(before["period"])) == [1, 2]
    monitor.predict(learner, draw(50, 99, shift=9)[0], time=1.0)  # too late for the first day
    assert monitor.drift().equals(before)


def test_labels_come_early_late_twice_and_for_nobody(tmp_path):
    monitor = Monitor(tmp_path / "m")
    monitor.label(["a", "z"], ["cat", "cat"], time=5)
    monitor.observe(["cat", "dog"], [0.5, 0.5], ids=["a", "b"], time=10)
    monitor.observe(["emu"], [0.9], ids=["a"], time=11)  # asked again: the first counts
    monitor.label(["b"], ["cat"], time=20)
    monitor.label(["b"], ["dog"], time=30)  # corrected
    frame = monitor.observations().set_index("id")
    assert frame["right"].to_dict() == {"a": True, "b": True}
    assert frame["delay"].to_dict() == {"a": -5, "b": 20}
    assert monitor.numbers()["unmatched_labels"] == 1
    again = Monitor(tmp_path / "m")
    pd.testing.assert_frame_equal(again.observations(), monitor.observations())


def test_inputs_are_recorded_by_bins_only(learner, tmp_path):
    monitor = Monitor(tmp_path / "m")
    x, y = draw(50, 3)
    frame = pd.DataFrame({"secret": 10 * x[:, 0], "kind": np.where(y, "x", "y")})
    monitor.record_learning(learner, frame, y, time=0)
    monitor.observe(y, np.ones(50), x=frame, model=1, time=1)
    text = "".join(one.read_text() for one in (tmp_path / "m").glob("rows-*"))
    line = json.loads(text)
    assert set(line["codes"][0]) <= set(range(12))
    assert not any(f"{value:.4f}"[:6] in text for value in frame["secret"])
    with refuses("x"):
        monitor.observe(y, np.ones(50), x=frame[["kind"]], model=1)
    with refuses("x"):
        monitor.observe(y, np.ones(50), x=frame, model=7)
    table = pd.DataFrame({"secret": [None] * 40, "kind": ["new"] * 40})
    monitor.observe(y[:40], np.ones(40), x=table, model=1, time=WEEK)
    monitor.observe(y[:1], [1.0], time=2 * WEEK)
    drift = monitor.drift()
    assert drift[drift["period"] == 2]["drift"].tolist() == [True, True]


def test_wrong_arguments_are_refused_before_anything_is_written(tmp_path):
    monitor = Monitor(tmp_path / "m")
    wrong = {
        "labels": lambda: monitor.observe([], []),
        "probabilities": lambda: monitor.observe(["a"], [1.5]),
        "ids": lambda: monitor.observe(["a", "b"], [1, 1], ids=["x", "x"]),
        "compared": lambda: monitor.observe(["a"], [1], p_values=[0.5]),
        "time": lambda: monitor.observe(["a"], [1], time="yesterday"),
        "period": lambda: Monitor(tmp_path / "n", period="fortnight"),
        "model": lambda: Monitor.of(tmp_path / "absent.engram"),
        "by": lambda: monitor.accuracy("week"),
    }
    for argument, call in wrong.items():
        with refuses(argument):
            call()
    assert not (tmp_path / "m").exists()
    monitor.observe(["a"], [1.0], time=datetime(1970, 1, 2, tzinfo=UTC))
    assert monitor.observations()["time"].tolist() == [86_400]
    with refuses("period"):
        Monitor(tmp_path / "m", period="day")
    with refuses("y"):
        monitor.label(["x"], [1])
    with refuses("labels"):
        monitor.observe([True], [1.0])


def test_forgetting_on_kept_rows(tmp_path):
    learner = Learner("Finetune", SMALL, **{**FAST, "epochs": 10, "calibration": 10})
    monitor = Monitor(tmp_path / "m")
    x, y = draw(200, 0, classes=2)
    monitor.record_learning(learner.learn(x, y), x, y, time=0)
    later = draw(200, 1, classes=4)
    only = later[1] >= 2
    monitor.record_learning(learner.learn(later[0][only], later[1][only]), time=1)
    found = monitor.forgetting()
    assert found["forgotten"].idxmax() in ("0", "1")
    assert found["forgotten"].max() > 0.5
    assert found.loc["3", "forgotten"] == 0
    assert monitor.numbers()["forgetting"] == found["forgotten"].clip(lower=0).mean()
    assert monitor.learnings()["kept"].tolist() == ["calibration"] * 2
    assert monitor.learnings()["rows"].tolist() == [200, 0]


def test_a_store_has_a_monitor(learner, tmp_path):
    store = ModelStore.create(tmp_path / "store", learner, gate=None)
    x, y = draw(40, 5)
    found = store.monitor.predict(store, x, time=0)
    store.monitor.label(found["id"].tolist(), y, time=1)
    store.learn(x, y)
    store.monitor.record_learning(store, x, y, time=2)
    again = Monitor.of(tmp_path / "store")
    assert again.observations()["model"].unique().tolist() == [1]
    assert again.learnings()["model"].tolist()[-1] == 2
    assert again.folder == tmp_path / "store" / "monitor"
    path = learner.save(tmp_path / "model.engram")
    assert Monitor.of(path).folder.name == "model.engram.monitor"


def test_page_has_every_number(watched, tmp_path):
    monitor, _ = watched
    path = build_monitor_page(monitor, tmp_path / "page.html", title="Watched <b>")
    text = path.read_text()
    assert "Watched &lt;b&gt;" in text
    assert f"{monitor.accuracy().loc['all', 'accuracy']:.3f}" in text
    sections, tables = monitor_sections(monitor)
    assert all(one.panels for one in sections)
    assert set(tables) == {"accuracy", "classes", "drift", "alarms", "calibration", "kept"}
    problems = find_problems(monitor)
    assert any("Period 4: drift of column 2" in one for one in problems)
    empty = Monitor(tmp_path / "none")
    assert not any(one.panels for one in monitor_sections(empty)[0])
    assert find_problems(empty) == []
    build_monitor_page(empty, tmp_path / "empty.html")


# Journals.


def test_a_journal_is_bounded_and_forgets_the_oldest(tmp_path):
    monitor = Monitor(tmp_path / "m", most=100, period="hour")
    for hour in range(30):
        monitor.observe([hour] * 10, np.ones(10), time=3600 * hour)
    frame = monitor.observations()
    assert 100 <= len(frame) <= 135
    assert frame["label"].max() == 29
    assert len(list((tmp_path / "m").glob("rows-*"))) <= 5


def test_half_a_line_does_not_count_and_hinders_nobody(tmp_path):
    journal = LineJournal(tmp_path, "rows", most=100)
    journal.append({"k": 1}, items=1)
    (path,) = tmp_path.glob("rows-*")
    with open(path, "ab") as file:
        file.write(b'{"k": 2, "ite')
    assert [one["k"] for one in journal.read()] == [1]
    LineJournal(tmp_path, "rows", most=100).append({"k": 3}, items=1)
    assert [one["k"] for one in journal.read()] == [1, 3]
    assert journal.damaged == 1


def _append(folder, name, count):
    journal = LineJournal(folder, "rows", most=10_000, synced=False)
    for k in range(count):
        journal.append({"who": name, "k": k}, items=1)


def test_processes_append_side_by_side(tmp_path):
    workers = [
        FORKS.Process(target=_append, args=(tmp_path, name, count))
        for name, count in (("a", 200), ("b", 200), ("killed", 10**9))
    ]
    for one in workers:
        one.start()
    for one in workers[:2]:
        one.join()
    assert [one.exitcode for one in workers[:2]] == [0, 0]
    os.kill(workers[2].pid, signal.SIGKILL)
    workers[2].join()
    journal = LineJournal(tmp_path, "rows", most=10_000)
    journal.append({"who": "c", "k": 0}, items=1)
    found = pd.DataFrame(journal.read())
    for name, group in found.groupby("who"):
        assert group["k"].tolist() == list(range(group["k"].min(), group["k"].max() + 1)), name
    assert found.iloc[-1]["who"] == "c"
    assert journal.damaged <= 1


# How often tests are wrong, and how often they see something.


def _binomial_high(rate, count):
    return stats.binom.ppf(0.999, count, rate) / count


@pytest.mark.parametrize("kind", ["numbers", "rounded", "flags", "categories", "gaps"])
def test_columns_that_do_not_drift_are_seldom_called_so(kind):
    draws = {
        "numbers": lambda rng, n: rng.normal(size=n),
        "rounded": lambda rng, n: rng.exponential(size=n).round(),
        "flags": lambda rng, n: (rng.random(n) < 0.3).astype(float),
        "categories": lambda rng, n: rng.zipf(1.5, n).astype(str),
        "gaps": lambda rng, n: np.where(rng.random(n) < 0.2, np.nan, rng.normal(size=n)),
    }[kind]
    wrong, runs = 0, 150
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        (one,) = describe_columns(pd.DataFrame({"c": draws(rng, 120)}))
        codes = one.encode(draws(rng, 60))
        wrong += compare_column(one, codes).p_value <= 0.1
    assert wrong / runs <= _binomial_high(0.1, runs)


def test_novelty_keeps_its_rate_though_calibration_rows_are_few():
    wrong, seen, runs = 0, 0, 400
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        held, same, more = rng.normal(size=40), rng.normal(size=100), rng.normal(0.8, size=100)
        for rows, alternative in ((same, False), (more, True)):
            p = (1 + (held >= rows[:, None]).sum(1)) / 41
            found = compare_novelty(p, 40).p_value <= 0.1
            wrong += found and not alternative
            seen += found and alternative
    assert wrong / runs <= _binomial_high(0.1, runs)
    assert seen / runs > 0.9
