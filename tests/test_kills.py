"""A process that is killed at any moment goes on by the same call, with equal numbers.

At files and at random moments; one run after the other, in lockstep, in groups that share a file,
with probes, in a pool, and inside training of methods that forget nothing. Beside this: a killed
writer (`records/test_killed_writer.py`), the step at which a run goes on inside a task
(`experiments/test_step_checkpoints.py`), notes and tries of a pool (`experiments/pools`), disks and
files that fail (`tests/faults`).
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open

import engram
from benchmarks.kills.__main__ import summary
from benchmarks.kills.trial import orders, trial
from benchmarks.kills.work import Work
from engram.engine.trainers.step import TrainingStep
from engram.experiments import Callback, checkpointing
from engram.records import COLUMNS, RunDirectory
from tests.forks import FORKS, die_at_file
from tests.loose_files import journal_files
from tests.probes import test_probes as probes

KILLS = 8  # `make faults` has many more
STAGES = 8
KEY = [name for name in COLUMNS if name != "value"]
LIMIT = 120.0  # seconds for anything a child does; only a fault takes as long
MANY, MOST_SEPARATE = 12, 4  # runs of a group; 4 in place of 32, so that few are many


# -- what is trained -------------------------------------------------------------------------------
@cache
def stream(stages):
    data = engram.load("blobs", classes=2 * stages, per_class=20)
    return engram.class_incremental(data, classes_per_task=2)


def train_one_by_one(out, seeds, callback=None):
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


def train_many(out, callback=None):
    """A group of more runs than get a file each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointing, "MOST_SEPARATE_FILES", MOST_SEPARATE)
        return engram.run(
            stream(3), method="EWC", model={"name": "mlp", "hidden": [8]}, seeds=MANY, out=out,
            device="cpu", batch_size=16, together=True, callback=callback,
        )  # fmt: skip


def train_with_probes(out, together):
    return probes.train(out=out, together=together)


# -- what must be left -----------------------------------------------------------------------------
def recorded(out):
    """Every number in a directory by its key, after a look into every file."""
    for path in Path(out).rglob("*.safetensors"):
        if not path.name.startswith("."):
            with safe_open(path, framework="np") as handle:
                assert all(handle.get_tensor(name) is not None for name in handle.keys())  # noqa: SIM118
    for path in Path(out).glob("[!.]*.json"):
        json.loads(path.read_text("utf-8"))
    for content in journal_files(Path(out), "ledger").values():
        json.loads(content)
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


# -- at a file -------------------------------------------------------------------------------------
# Of two runs in lockstep: items, recipe, list of recipes; checkpoints or weights of two seeds and a
# block of the journal for each of two stages. A large group has one checkpoint for all, and none of
# its last stage.
TRAINED = {
    "lockstep": (train_in_lockstep, range(1, 3 + 2 * (2 + 1) + 1)),
    "large group": (train_many, (4, 5, 6, 7, 8)),
    "probes": (partial(train_with_probes, together=False), (4, 5, 8, 9, 20, 21)),
    "probes in lockstep": (partial(train_with_probes, together=True), (4, 7, 9, 11, 14, 15)),
}
MEASURED = {"probes": 6, "probes in lockstep": 8}  # the first files at which a probe is recorded


@cache
def undisturbed(name):
    return TRAINED[name][0](None)


def die_at(name, out, number):
    """Train, and die when file `number` is written but does not bear its name yet."""
    import torch

    torch.set_num_threads(1)
    die_at_file(number)
    TRAINED[name][0](out)


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, (_, files) in TRAINED.items() for number in files]
)
def test_death_at_a_file(name, number, tmp_path):
    child = FORKS.Process(target=die_at, args=(name, str(tmp_path), number))
    child.start()
    child.join(LIMIT)
    assert child.exitcode == -signal.SIGKILL
    known = recorded(tmp_path)
    found = TRAINED[name][0](tmp_path)
    nothing_lost(known, recorded(tmp_path))
    same_numbers(found, undisturbed(name))
    # also when it died at the results of the last stage: the ledger is written before them
    runs = [run for one in found.ledger for run in one["runs"]]
    assert set(Counter((run["recipe"], run["seed"]) for run in runs).values()) == {1}
    if name in MEASURED:
        metrics = known.index.get_level_values("metric") if len(known) else ()
        assert ("entropy/mean" in metrics) == (number >= MEASURED[name])
        assert [run["stages"]["2"]["probe"] for run in runs] == [32] * 3


# -- at random moments -----------------------------------------------------------------------------
class Telling(Callback):
    """Tells another process of every recorded stage."""

    def __init__(self, pipe):
        self.pipe = pipe

    def stage(self, plan, stage, rows):
        self.pipe.send(stage)


def work(out, seeds, pipe):
    import torch

    torch.set_num_threads(1)
    train_one_by_one(out, seeds, callback=Telling(pipe))


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


def test_kills_between_and_inside_stages(tmp_path):
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
    whole = train_one_by_one(tmp_path, seeds)
    nothing_lost(known, values_of(whole))
    assert whole.matrix.shape == (2 * seeds, STAGES, STAGES)
    same_numbers(whole, train_one_by_one(None, seeds))


@pytest.mark.parametrize(("method", "way"), [("RWalk", "single"), ("DERpp", "lockstep of 48")])
def test_little_work_is_lost(method, way, tmp_path):
    """No stage is lost or trained twice, and no more seconds than between two checkpoints."""
    training = Work(method=method, way=way)
    planned = orders(training, 2, turn=0)
    found = trial(training, planned, random.Random(way), tmp_path)
    assert found.differences == []
    assert [one.order for one in found.deaths] == planned
    rows = found.rows(seed=0)
    assert [row["signal"] for row in rows] == [one.sent.name for one in planned]
    assert not any(row["stages lost"] or row["stages again"] for row in rows)
    assert all(one.seconds_lost <= one.allowed for one in found.deaths)
    assert summary(pd.DataFrame(rows), "way").loc[way, "kills"] == 2


# -- inside training of methods that forget nothing ------------------------------------------------
def train_given_the_task(method, out, together):
    """Three tasks of two runs, with the task of a row given; 16 steps a task, 4 more to retrain."""
    data = engram.load("blobs", classes=6, per_class=20)
    return engram.run(
        engram.task_incremental(data, classes_per_task=2), method=method, seeds=2, out=out,
        model={"name": "mlp", "hidden": [16, 16]}, device="cpu", epochs=4, batch_size=8, lr=0.01,
        together=together, checkpoint_every=0.001,
    )  # fmt: skip


def die_at_step(method, out, together, number):
    """Train, and die when a step of the second task has its gradient, but has moved no weight."""
    import torch

    torch.set_num_threads(1)
    apply = TrainingStep._apply

    def apply_or_die(self, *args):
        taken = int(self.tensors.taken.max())
        if self.learners[0].stage == 1 and taken == number:
            os.kill(os.getpid(), signal.SIGKILL)
        apply(self, *args)

    TrainingStep._apply = apply_or_die
    train_given_the_task(method, str(out), together)


def saved_inside(out):
    """The facts of the runs that can go on inside a task."""
    (path,) = (out / "checkpoint" / "steps").glob("*.safetensors")
    with safe_open(path, framework="np") as handle:
        return list(json.loads(handle.metadata()["facts"]).values())


def changed_scores(result):
    """How many scores of learnt tasks are others after a later task."""
    changed = 0
    for run in result.runs:
        items = result.items(run.recipe, run.order)
        own = items.visible[items.task]  # [n, C] the columns of a row's task
        kept = [result.predictions.get(*run, stage).scores for stage in result.stages[run]]
        for stage, scores in enumerate(kept):
            rows = items.task[: len(scores)] == stage
            for later in kept[stage + 1 :]:
                differs = later[: len(scores)] != scores
                changed += int(differs[rows][own[: len(scores)][rows]].sum())
    return changed


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize(
    ("method", "step"),
    [("HAT", 7), ("PackNet", 6), ("PackNet", 18), ("SupSup", 10), ("PNN", 13)],
)
def test_nothing_is_forgotten_after_a_kill_inside_training(method, step, together, tmp_path):
    child = FORKS.Process(target=die_at_step, args=(method, tmp_path, together, step))
    child.start()
    child.join(LIMIT)
    assert child.exitcode == -signal.SIGKILL
    known = recorded(tmp_path)
    assert set(known.index.get_level_values("stage")) == {0}  # the second task was not over
    left = saved_inside(tmp_path)
    assert len(left) == (2 if together else 1)
    for facts in left:  # some steps of it were behind the runs that died
        point = facts["resume"]["facts"]
        assert facts["stage"] == 1
        assert 0 < point["earlier"]["steps"] + point["steps"] <= step
    found = train_given_the_task(method, tmp_path, together)
    nothing_lost(known, recorded(tmp_path))
    same_numbers(found, train_given_the_task(method, None, together))
    assert (found.matrix.diagonal(axis1=1, axis2=2) > 0.8).all()
    assert (found.metric("forgetting") == 0).all()
    assert changed_scores(found) == 0


def test_scores_of_a_method_that_forgets_are_others():
    assert changed_scores(train_given_the_task("Finetune", None, True)) > 0


# -- in a pool -------------------------------------------------------------------------------------
def train_in_a_pool(out, pool="processes", callback=None):
    recipes = [
        {"stream": {"data": "blobs", "data_options": {"classes": 6, "per_class": 20}},
         "method": name, "model": {"name": "mlp", "hidden": [16]},
         "training": {"epochs": 2, "batch_size": 8}}
        for name in ("ER", "EWC")
    ]  # fmt: skip
    return engram.sweep(recipes, pool=pool, out=out, workers=2, device="cpu", callback=callback)


class DyingFirst(Callback):
    """Ends the process that leads a pool when it hears of the first stage."""

    def stage(self, plan, stage, rows):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_pool_whose_leading_process_is_killed(tmp_path):
    """Its workers end by themselves; until then, their runs are left to them."""
    child = FORKS.Process(target=train_in_a_pool, args=(str(tmp_path), "processes", DyingFirst()))
    child.start()
    child.join(LIMIT)
    assert child.exitcode == -signal.SIGKILL
    known, end = recorded(tmp_path), time.monotonic() + LIMIT
    assert len(known)
    expected = train_in_a_pool(tmp_path / "whole", "serial")
    while len(found := train_in_a_pool(tmp_path)) < len(expected):
        assert time.monotonic() < end
    nothing_lost(known, recorded(tmp_path))
    same_numbers(found, expected)


# -- a large group, after a stage ------------------------------------------------------------------
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
        same_numbers(again, undisturbed("large group"))
        assert not list(out.glob("checkpoint/groups/*"))  # nobody will need them


def test_a_large_group_without_checkpoint_is_repeated_to_the_same_numbers(tmp_path):
    died_after(tmp_path, 1, never=True)
    assert not list(tmp_path.glob("checkpoint/groups/*"))
    noting = Noting()
    again = train_many(tmp_path, noting)
    assert noting.trained == dict.fromkeys(range(3), MANY)
    assert not recorded(tmp_path).index.has_duplicates
    same_numbers(again, undisturbed("large group"))


def test_runs_that_are_run_anew_do_not_find_their_old_state(tmp_path):
    died_after(tmp_path, 1)
    keys = [*RunDirectory(tmp_path).finished_runs()]
    RunDirectory(tmp_path).supersede(keys[:1])
    assert not list(tmp_path.glob("checkpoint/groups/*"))
    noting = Noting()
    same_numbers(train_many(tmp_path, noting), undisturbed("large group"))
    assert noting.trained[0] >= 1
