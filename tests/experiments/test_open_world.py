"""The open-world loop: who is flagged, what is spent, what is learnt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import engram
from engram.cli import app
from engram.experiments.open_world import ArrivalProbe
from engram.novelty.softmax import Softmax
from engram.records.novelty_records import FAMILIARITY, balanced_p_values, p_values

DATA = engram.load("blobs", classes=6)
OPTIONS = {"known": 2, "budget": 8, "epochs": 5, "lr": 0.01, "novel_share": 0.25, "device": "cpu"}


@dataclass(frozen=True)
class Content(engram.Detector):
    """Finds everything familiar."""

    def score(self, net, x, columns, state):
        return torch.ones(len(x))


@pytest.fixture(scope="module")
def world():
    return engram.open_world(DATA, detector="KNN", **OPTIONS)


def test_labels_are_spent_within_the_budget_and_alike(world):
    table = world.table
    assert table["flags"].unique().tolist() == ["knn", "random"]
    assert table["round"].tolist() == [1, 2] * 2
    assert table["classes"].tolist() == [2, 4] * 2
    own, random = (table[table["flags"] == one] for one in ("knn", "random"))
    assert 0 < own["labels"].max() <= 8
    assert random["labels"].tolist() == own["labels"].tolist()
    assert random["flagged"].tolist() == own["labels"].tolist()
    assert (own["flagged"] >= own["labels"]).all()


def test_a_detector_finds_more_than_chance(world):
    summary = world.summary()
    assert summary.loc["knn", "novel_labels"] > 1.5 * summary.loc["random", "novel_labels"]
    assert summary.loc["knn", "found"] >= 3
    assert summary.loc["knn", "labels"] == summary.loc["random", "labels"]
    assert "knn" in str(world)


def test_labelled_rows_become_tasks(world):
    for (flags, seed), stream in world.streams.items():
        lines = world.table[(world.table["flags"] == flags) & (world.table["seed"] == seed)]
        spent = [len(task.train) + len(task.valid) for task in stream][1:]
        assert spent == [n for n in lines["labels"] if n]
        rows = torch.cat([torch.cat([task.train, task.valid]) for task in stream])
        assert len(rows.unique()) == len(rows)  # nothing is labelled twice
        assert torch.isin(rows, DATA.train).all()
        first = DATA.labels[torch.cat([stream[0].train, stream[0].valid])]
        assert first.bincount().max() == 40  # half of the rows of a known class
        assert len(stream[0].new) == 2


def test_accuracies_are_those_of_the_run(world):
    for place, stream in world.streams.items():
        result = world.results[place]
        last = world.table[world.table["flags"] == place[0]].iloc[-1]
        assert last["kept"] == result.matrix[0, -1, 0]
        right = sum(len(task.test) * share for task, share in
                    zip(stream, result.matrix[0, -1], strict=True) if len(task.test))  # fmt: skip
        assert last["accuracy"] == pytest.approx(right / len(DATA.test))


def test_a_longer_run_begins_as_a_shorter_one(world):
    stream = world.streams["knn", 0]
    options = {key: OPTIONS[key] for key in ("epochs", "lr", "device")}
    short = engram.run(stream[:2], method="ER", **options)
    found = world.results["knn", 0].matrix[0, :2, :2]
    np.testing.assert_array_equal(short.matrix[0], found)


def test_nothing_flagged_nothing_spent():
    world = engram.open_world(DATA, **{**OPTIONS, "detector": Content(), "epochs": 1})
    assert world.table[["flagged", "labels", "found"]].to_numpy().sum() == 0
    assert [len(stream) for stream in world.streams.values()] == [1, 1]
    assert (world.table["accuracy"] <= 0.5).all()  # classes without a label are never right


def test_a_scout_scores_rows_as_its_detector_scores_items():
    stream = engram.class_incremental(DATA, classes_per_task=3, valid=0.2)
    test, held = (torch.cat([getattr(task, part) for task in stream]) for part in ("test", "valid"))
    scout = ArrivalProbe(Softmax(), tuple(test.tolist()), tuple(held.tolist()))
    result = engram.run(stream, probes=[scout], epochs=2, device="cpu", seeds=2, together=True)
    arrays = result.arrays("scout", 1)
    np.testing.assert_allclose(arrays["arrived"], arrays[FAMILIARITY][0], rtol=1e-5)
    assert "arrived" not in result.arrays("scout", 1, stage=0)  # after the last task only
    assert len(arrays["held"]) == len(held)  # also those of the first task, which is forgotten
    assert np.isfinite(arrays["held"]).all()


def test_every_class_has_the_same_weight():
    rng = np.random.default_rng(0)
    scores, held = rng.normal(size=50), rng.normal(size=12)
    even, uneven = np.arange(12) % 3, np.repeat([0, 1, 2], [8, 3, 1])
    usual = p_values(scores, held)
    np.testing.assert_allclose(balanced_p_values(scores, held, even), usual)
    found = balanced_p_values(scores, held, uneven)
    shares = [(held[uneven == c] <= scores[:, None]).mean(1) for c in range(3)]
    np.testing.assert_allclose(found, (np.mean(shares, 0) * 12 + 1) / 13)
    assert balanced_p_values([np.nan], held, even) == 1 / 13


def test_a_detector_that_is_fitted_again():
    asked = {"name": "KNN", "refit": "memory"}
    world = engram.open_world(DATA, detector=asked, **OPTIONS)
    assert world.table["flags"].unique().tolist() == ["knn refit=memory", "random"]
    with pytest.raises(engram.BadArgument, match="refit"):
        engram.open_world(DATA, detector=asked, method="LwF", **OPTIONS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"known": 6}, "known: expected fewer than the 6 classes"), ({"budget": 0}, "budget"),
        ({"rate": 1.5}, "rate"), ({"valid": 0.0}, "valid"), ({"novel_share": 0.0}, "novel_share"),
        ({"seeds": []}, "seeds"), ({"detector": "Softmx"}, "did you mean 'Softmax'"),
        ({"out": "here"}, "sets by itself"), ({"classes_per_round": 0}, "classes_per_round"),
        ({"valid": 0.1}, "valid: expected at least 9 held-out rows for a rate of 0.1"),
        ({"rate": 0.0}, "rate"),
        ({"detector": "Tuned"}, "outside: expected an outside data set on which to tune 'tuned"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_options(options, message):
    with pytest.raises(engram.BadArgument, match=message):
        engram.open_world(DATA, **{**OPTIONS, **options})


def test_the_command_line():
    words = ["open-world", "--data", "blobs", "--set", "epochs=2", "--known", "8", "--labels", "5"]
    done = CliRunner().invoke(app, [*words, "--detector", "KNN", "--set", "KNN.k=3", "--csv"])
    assert done.exit_code == 0, done.output
    lines = done.output.strip().splitlines()
    assert [line.split(",")[0] for line in lines] == ["flags", "knn k=3", "random"]
    refused = CliRunner().invoke(app, [*words, "--set", "valid=0.2", "--set", "keep=labels"])
    assert "got ['keep', 'stream.valid']" in refused.output + str(refused.exception)
    assert CliRunner().invoke(app, [*words, "--rate", "0"]).exit_code == 2
    shown = CliRunner().invoke(app, words)
    assert "open world after 1 round, one seed" in shown.output
    random = shown.output.strip().splitlines()[-1].split()
    assert random[2].isdigit(), "counts are whole numbers"
    assert random[-1].isdigit()
