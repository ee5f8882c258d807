"""Processes that die while they train: nothing recorded is lost, changed or left unreadable."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open

import engram
from engram.experiments import Callback, checkpointing
from engram.records import COLUMNS, RunDirectory
from tests.forks import FORKS, die_at_file

KILLS = 8  # `make faults` has many more
STAGES = 8
KEY = [name for name in COLUMNS if name != "value"]
LIMIT = 120.0  # seconds for anything a child does; only a fault takes as long


@cache
def stream(stages):
    data = engram.load("blobs", classes=2 * stages, per_class=20)
    return engram.class_incremental(data, classes_per_task=2)


def train(out, seeds, callback=None):
    # One run after the other: a run in lockstep differs in its last bits from one alone, and a seed
    # that is added below may be alone.
    return engram.run(
        stream(STAGES), method=["ER", "EWC"], model={"name": "mlp", "hidden": [16]}, seeds=seeds,
        out=out, device="cpu", epochs=2, batch_size=8, together=False, callback=callback,
    )  # fmt: skip


def train_in_lockstep(out):
    return engram.run(
        stream(2), method="ER", model={"name": "mlp", "hidden": [16]}, seeds=2, out=out,
        device="cpu", batch_size=8, together=True,
    )  # fmt: skip


class Telling(Callback):
    """Tells another process of every recorded stage."""

    def __init__(self, pipe):
        self.pipe = pipe

    def stage(self, plan, stage, rows):
        self.pipe.send(stage)


def work(out, seeds, pipe):
    import torch

    torch.set_num_threads(1)
    train(out, seeds, callback=Telling(pipe))


def killed(out, seeds, *, after, delay):
    """Kill a training child `delay` seconds after its `after`-th stage; False if it was done."""
    ours, theirs = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=work, args=(str(out), seeds, theirs))
    child.start()
    theirs.close()
    try:
        for _ in range(after):
            if not ours.poll(LIMIT):
                pytest.fail("a child neither trained nor ended")
            ours.recv()
        time.sleep(delay)
    except EOFError:  # it ended before
        pass
    child.kill()
    child.join(LIMIT)
    ours.close()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


def recorded(out):
    """Every number in a directory by its key, after a look into every file."""
    for path in Path(out).rglob("*.safetensors"):
        if not path.name.startswith("."):
            with safe_open(path, framework="np") as handle:
                assert all(handle.get_tensor(name) is not None for name in handle.keys())  # noqa: SIM118
    for path in Path(out).glob("[!.]*.json"):
        json.loads(path.read_text("utf-8"))
    if not RunDirectory(out).result_files():
        return pd.Series(dtype=float)
    result = engram.read(out)
    assert result.problems == ()
    return values_of(result)


def values_of(result):
    plain = dict.fromkeys(("recipe", "label", "order", "head", "metric"), str)
    return result.frame().astype(plain).set_index(KEY)["value"]


def nothing_lost(known, now):
    """What was recorded is there still, the seconds of each stage too: none was trained twice."""
    assert not now.index.has_duplicates
    if len(known):
        pd.testing.assert_series_equal(now.reindex(known.index), known, check_exact=True)


def same_numbers(result, expected):
    """Bitwise the same, except for the time it took."""
    np.testing.assert_array_equal(result.matrix, expected.matrix)
    found, wanted = (
        values_of(one).drop("seconds", level="metric").sort_index() for one in (result, expected)
    )
    pd.testing.assert_series_equal(found, wanted, check_exact=True)
    for run in expected.runs:
        for stage in expected.stages[run]:
            kept, own = (one.predictions.get(*run, stage) for one in (result, expected))
            assert kept.scores.tobytes() == own.scores.tobytes()


def test_kills_at_random_moments(tmp_path):
    chance = random.Random(7)
    kills, seeds, known = 0, 2, recorded(tmp_path)
    while kills < KILLS:
        after = chance.choice((0, 1, 1, 2, 3))
        # Before its first stage a child reads the directory and opens the runs: that takes longer.
        delay = chance.uniform(0.0, 0.06 if after else 0.6)
        if killed(tmp_path, seeds, after=after, delay=delay):
            kills += 1
        else:  # faster than we are: give it more to do
            seeds += 1
        now = recorded(tmp_path)
        nothing_lost(known, now)
        known = now
    assert len(known)
    whole = train(tmp_path, seeds)
    nothing_lost(known, values_of(whole))
    assert whole.matrix.shape == (2 * seeds, STAGES, STAGES)
    same_numbers(whole, train(None, seeds))


def die_at(out, number):
    """Train, and die when file `number` is written but does not bear its name yet."""
    die_at_file(number)
    train_in_lockstep(out)


def survived(out, number):
    """What a run in lockstep gives that died at one of its files and went on."""
    child = FORKS.Process(target=die_at, args=(str(out), number))
    child.start()
    child.join(LIMIT)
    assert child.exitcode == -signal.SIGKILL, number
    known = recorded(out)
    whole = train_in_lockstep(out)
    nothing_lost(known, recorded(out))
    return whole


# Items, recipe, list of recipes and environment; checkpoints or weights of two seeds, predictions
# and results of two stages; ledger, which is written before the last results; environment anew.
FILES = 4 + 2 * 4 + 1 + 1


def test_death_at_every_file(tmp_path):
    whole = train_in_lockstep(tmp_path / "whole")
    for number in range(1, FILES + 1):
        found = survived(tmp_path / str(number), number)
        same_numbers(found, whole)
        # also when it died at the results of the last stage: the ledger is written before them
        runs = Counter((run["recipe"], run["seed"]) for one in found.ledger for run in one["runs"])
        assert set(runs.values()) == {1}, number


# -- groups of more runs than get a file each ------------------------------------------------------
ALONE, MANY = 4, 12  # in place of 32, so that few are many


def train_many(out, callback=None):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointing, "MOST_SEPARATE_FILES", ALONE)
        return engram.run(
            stream(3), method="EWC", model={"name": "mlp", "hidden": [8]}, seeds=MANY, out=out,
            device="cpu", batch_size=16, together=True, callback=callback,
        )  # fmt: skip


@cache
def undisturbed():
    return train_many(None)


class Dying(Callback):
    """Ends the process when all runs have recorded a stage."""

    def __init__(self, stage):
        self.at, self.count = stage, 0

    def stage(self, plan, stage, rows):
        self.count += stage == self.at
        if self.count == MANY:
            os.kill(os.getpid(), signal.SIGKILL)


class Noting(Callback):
    """Keeps which stages were trained."""

    def __init__(self):
        self.trained = Counter()

    def stage(self, plan, stage, rows):
        self.trained[stage] += 1


def die_after(out, stage, never):
    if never:  # as if its state were too large to be written
        checkpointing.ALWAYS_WRITTEN_BYTES = checkpointing.MOST_WRITING_SHARE = 0
    train_many(out, Dying(stage))


def died_after(out, stage, *, never=False):
    child = FORKS.Process(target=die_after, args=(str(out), stage, never))
    child.start()
    child.join(LIMIT)
    assert child.exitcode == -signal.SIGKILL
    return recorded(out)


def test_a_large_group_goes_on_after_its_last_stage(tmp_path):
    for stage in (0, 1):
        out = tmp_path / str(stage)
        known = died_after(out, stage)
        assert len(list(out.glob("checkpoint/groups/*"))) == stage + 1
        noting = Noting()
        again = train_many(out, noting)
        assert noting.trained == dict.fromkeys(range(stage + 1, 3), MANY)
        nothing_lost(known, recorded(out))
        same_numbers(again, undisturbed())
        assert not list(out.glob("checkpoint/groups/*"))  # nobody will need them


def test_a_large_group_without_checkpoint_is_repeated_to_the_same_numbers(tmp_path):
    died_after(tmp_path, 1, never=True)
    assert not list(tmp_path.glob("checkpoint/groups/*"))
    noting = Noting()
    again = train_many(tmp_path, noting)
    assert noting.trained == dict.fromkeys(range(3), MANY)
    assert not recorded(tmp_path).index.has_duplicates
    same_numbers(again, undisturbed())


def die_at_many(out, number):
    die_at_file(number)
    train_many(out)


# Four files of the directory; checkpoint, predictions and results of two stages, the last without
# checkpoint and with the ledger; environment.
@pytest.mark.parametrize("number", [5, 6, 7, 8, 13])
def test_death_of_a_large_group_at_a_file(tmp_path, number):
    child = FORKS.Process(target=die_at_many, args=(str(tmp_path), number))
    child.start()
    child.join(LIMIT)
    assert child.exitcode == -signal.SIGKILL
    known = recorded(tmp_path)
    whole = train_many(tmp_path)
    nothing_lost(known, recorded(tmp_path))
    same_numbers(whole, undisturbed())


def test_runs_that_are_run_anew_do_not_find_their_old_state(tmp_path):
    died_after(tmp_path, 1)
    keys = [*RunDirectory(tmp_path).finished_runs()]
    RunDirectory(tmp_path).supersede(keys[:1])
    assert not list(tmp_path.glob("checkpoint/groups/*"))
    noting = Noting()
    same_numbers(train_many(tmp_path, noting), undisturbed())
    assert noting.trained[0] >= 1
