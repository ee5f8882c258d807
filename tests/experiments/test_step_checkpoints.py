"""Interrupted inside a task, a run goes on at the step of its last checkpoint, bit for bit."""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

import engram
from engram import keys, methods
from engram.checks import toy_runs
from engram.engine.checkpoints import ResumePoint, StepSlices, load_state_dict, state_dict
from engram.engine.engine import Engine
from engram.experiments import Callback, Recipe
from engram.experiments.checkpointing import StepSaver
from engram.experiments.order_study import orders
from engram.experiments.run_plans import execute
from engram.memory import Memory
from engram.methods.method import Method, Phase
from tests.forks import FORKS, speak_into
from tests.probes import test_probes as probes

METHODS = (
    "Finetune", "ER", "EWC", "SI", "RWalk", "LwF", "AGEM", "GEM", "ICaRL", "DERpp", "ERACE",
    "GDumb", "SLDA", "LatentReplay", "Joint", "DGR", "LGR", "BiC", "GSS",
)  # fmt: skip
ROOM = Memory(total=7, policy="admit")
CHANGED = {  # a prologue of few steps; a memory that is soon full
    "GSS": methods.GSS(memory=ROOM, size=5),
    "LatentReplay": methods.LatentReplay(root_iterations=6),
    "LGR": methods.LGR(root_iterations=9, noise=4),
}


class Crash(BaseException):
    """As a kill: nothing cleans up behind it."""


@dataclass(frozen=True, kw_only=True)
class TwoPhases(Method):
    memory: Memory = field(default=Memory(total=12))

    def phases(self, stage):
        head = Phase(rows="memory", trainable=("net.head",), epochs=2, before=self.halve)
        return Phase(), head

    def start(self, learner, task):
        learner.exemplars = self.memory.update(learner, task.train)

    def halve(self, learner, task):
        free = learner.free.clone()
        learner.layout(free)["net.head.bias"].fill_(False)
        learner.free = free
        learner.params["net.head.weight"].mul_(0.5)  # a second time would be seen


SLICES = "engram.engine.checkpoints.SliceLength"


def run(out, method, *, seeds=1, together=None, rerun=False, **training):
    settings = {"epochs": 2, "batch_size": 8, "lr": 0.01} | training
    return engram.run(
        toy_runs.make_streams()[1],
        method=method,
        seeds=seeds,
        together=together,
        out=out,
        device="cpu",
        rerun=rerun,
        model={"name": "mlp", "hidden": (8,)},
        **settings,
    )


@pytest.fixture
def every_slice(monkeypatch):
    """Save after every slice, and let slices be a step or two."""
    monkeypatch.setattr(StepSaver, "due", lambda self: True)
    monkeypatch.setattr(f"{SLICES}.took", lambda self, *_: None)
    monkeypatch.setattr(f"{SLICES}.__init__.__defaults__", (1.0, 2))


def crash_after(monkeypatch, saves):
    """Die behind the given number of saves."""
    original, count = StepSaver.save, [0]

    def save(self, *args):
        original(self, *args)
        count[0] += 1
        if count[0] == saves:
            raise Crash

    monkeypatch.setattr(StepSaver, "save", save)
    return lambda: monkeypatch.setattr(StepSaver, "save", original)


def same(first, second):
    columns = ["label", "seed", "stage", "task", "cls", "step", "head", "metric", "value"]
    frames = [r.frame() for r in (first, second)]
    kept = [f[~f["metric"].isin(["seconds"])] for f in frames]
    shown = [f[[c for c in columns if c in f]].reset_index(drop=True) for f in kept]
    assert len(shown[0]) == len(shown[1])
    by = [c for c in shown[0].columns if c != "value"]
    ordered = [f.sort_values(by).reset_index(drop=True) for f in shown]
    assert ordered[0].equals(ordered[1])
    assert first.ledger[0]["runs"] == second.ledger[0]["runs"]
    for key in first.predictions:
        one, two = (r.predictions.get(*key) for r in (first, second))
        assert np.array_equal(one.scores, two.scores)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_goes_on_at_the_step(name, together, tmp_path, monkeypatch, every_slice):
    method = toy_runs.shrink_settings(CHANGED.get(name) or getattr(methods, name)())
    seeds = 3 if together else 1
    whole = run(tmp_path / "whole", method, seeds=seeds, together=together)
    saves = 1 + int(keys.randint(keys.fold(5, name, int(together)), 12, 1))
    heal = crash_after(monkeypatch, saves)
    try:
        run(tmp_path / "cut", method, seeds=seeds, together=together)
        crashed = False
    except Crash:
        crashed = True
    heal()
    assert crashed or name == "SLDA"  # few steps, so perhaps fewer saves
    again = run(tmp_path / "cut", method, seeds=seeds, together=together)
    same(whole, again)
    assert not list((tmp_path / "cut" / "checkpoint" / "steps").glob("*"))


@pytest.mark.parametrize(
    "training",
    [
        {"iterations": 23}, {"evaluate_every": 3}, {"batch_size": 0, "epochs": 7},
        {"optim_reset": False, "optimizer": "sgd"}, {"schedule": "step", "milestones": (1,)},
        {"incomplete_batch": "wrap"}, {"precision": "float64"}, {"steps_per_epoch": 7},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(
    "method", [methods.ER(), TwoPhases(), methods.RWalk(strength=0.1)], ids=str
)
def test_every_setting(method, training, tmp_path, monkeypatch, every_slice):
    saves = 1 + int(keys.randint(keys.fold(3, str(method), str(training)), 9, 1))
    whole = run(tmp_path / "whole", method, **training)
    heal = crash_after(monkeypatch, saves)
    with pytest.raises(Crash):
        run(tmp_path / "cut", method, **training)
    heal()
    same(whole, run(tmp_path / "cut", method, **training))


@pytest.mark.parametrize("saves", [2, 7])
def test_validation_plateau_stopping_and_best_epoch(saves, tmp_path, monkeypatch, every_slice):
    stream = engram.class_incremental(toy_runs.make_clouds((40, 30, 36, 44)), valid=0.3)
    options = {
        "epochs": 6, "batch_size": 8, "lr": 0.02, "schedule": "plateau", "plateau_patience": 0,
        "patience": 3, "restore_best": True, "seeds": 3, "together": True, "device": "cpu",
    }  # fmt: skip
    whole = engram.run(stream, method="ER", out=tmp_path / "whole", **options)
    heal = crash_after(monkeypatch, saves)
    with pytest.raises(Crash):
        engram.run(stream, method="ER", out=tmp_path / "cut", **options)
    heal()
    same(whole, engram.run(stream, method="ER", out=tmp_path / "cut", **options))


class Saves:
    """Saves every slice, and goes on."""

    every, should_stop = 9.0, False

    def __init__(self):
        self.saved = {}

    def due(self):
        return True

    def save(self, places, learners, points):
        for place, learner, point in zip(places, learners, points, strict=True):
            tensors, facts = state_dict(learner)
            more, where = point.packed()
            self.saved.setdefault(place, []).append((tensors | more, {**facts, "resume": where}))


def test_where_slices_end_does_not_matter(monkeypatch, every_slice):
    """Runs of unequal length: in the last steps of an epoch some of them stand still."""
    method = methods.CBRS(memory=ROOM, size=5)
    training = replace(toy_runs.EXACT, batch_size=8, epochs=1)
    group = toy_runs.make_runs(method, toy_runs.make_streams(), training=training)
    saves = Saves()

    def train(**options):
        stages = Engine(group, device="cpu", together=True).stages(**options)
        return {(one.run, one.stage): one.learner.vector.clone() for one in stages}

    whole, cut = train(), train(checkpointer=saves)
    for number in (1, 8):

        def resume(place, learner, number=number):
            tensors, facts = saves.saved[place][number]
            load_state_dict(learner, tensors, facts)
            learner.resume_point = ResumePoint.unpacked(tensors, facts["resume"])
            return facts["stage"]

        again = train(resume=resume)
        assert again
        for key, vector in again.items():
            assert torch.equal(vector, whole[key])
            assert torch.equal(vector, cut[key])


def test_a_large_group_and_one_more_seed(tmp_path, monkeypatch, every_slice):
    """48 runs in lockstep; those that are new begin, the others go on."""
    whole = run(tmp_path / "whole", "ER", seeds=49, together=True)
    heal = crash_after(monkeypatch, 8)
    with pytest.raises(Crash):
        run(tmp_path / "cut", "ER", seeds=48, together=True)
    heal()
    loaded = []
    original = StepSaver.load

    def load(self, place, learner, finished):
        loaded.append(original(self, place, learner, finished))
        return loaded[-1]

    monkeypatch.setattr(StepSaver, "load", load)
    cut = run(tmp_path / "cut", "ER", seeds=49, together=True)
    assert sum(one is not None for one in loaded) == 48
    assert np.allclose(whole.matrix, cut.matrix, equal_nan=True)


def test_probes_keep_what_they_kept_before(tmp_path, monkeypatch):
    steps = []
    usual = StepSaver.save

    def save(self, places, learners, midways):
        usual(self, places, learners, midways)
        steps.append(learners[0].stage)
        if 1 in steps:
            raise Crash

    monkeypatch.setattr(StepSaver, "due", lambda self: True)
    monkeypatch.setattr(StepSaver, "save", save)
    with pytest.raises(Crash):
        probes.train(out=tmp_path, epochs=3)
    monkeypatch.undo()
    assert any((tmp_path / "checkpoint" / "steps").glob("*.safetensors"))
    found, whole = (probes.train(out=out, epochs=3) for out in (tmp_path, None))
    probes.equal(probes.values(found), probes.values(whole))


def position(path):
    """Where the runs of a directory would go on inside a task."""
    with safe_open(path, framework="pt") as handle:
        return {run: facts["resume"]["position"] for run, facts in
                json.loads(handle.metadata()["facts"]).items()}  # fmt: skip


def test_who_goes_on_takes_nothing_from_the_others(tmp_path, monkeypatch, every_slice):
    """Some runs of a group finish the task; the rest still goes on where it was."""
    whole = run(tmp_path / "whole", "ER", seeds=4, together=True)
    heal = crash_after(monkeypatch, 3)
    with pytest.raises(Crash):
        run(tmp_path / "cut", "ER", seeds=4, together=True)
    heal()
    (first,) = (tmp_path / "cut" / "checkpoint" / "steps").glob("*.safetensors")
    run(tmp_path / "cut", "ER", seeds=2, together=True)
    assert first.is_file()
    began = []
    original = StepSaver.load

    def load(self, place, learner, finished):
        began.append(original(self, place, learner, finished))
        return began[-1]

    monkeypatch.setattr(StepSaver, "load", load)
    found = run(tmp_path / "cut", "ER", seeds=4, together=True)
    assert began == [0, 0]
    assert not first.exists()
    assert np.allclose(whole.matrix, found.matrix, equal_nan=True)


def test_of_two_files_the_later_position_counts(tmp_path, monkeypatch, every_slice):
    heal = crash_after(monkeypatch, 2)
    with pytest.raises(Crash):
        run(tmp_path, "ER", seeds=3, together=True)
    heal()
    heal = crash_after(monkeypatch, 4)
    with pytest.raises(Crash):
        run(tmp_path, "ER", seeds=2, together=True)
    heal()
    files = sorted((tmp_path / "checkpoint" / "steps").glob("*.safetensors"))
    assert len(files) == 2
    latest = {}
    for path in files:
        for name, where in position(path).items():
            latest[name] = max(latest.get(name, [-1]), where)
    found = {}
    original = StepSaver.load

    def load(self, place, learner, finished):
        stage = original(self, place, learner, finished)
        found[self._names[place]] = list(learner.resume_point.position)
        return stage

    monkeypatch.setattr(StepSaver, "load", load)
    run(tmp_path, "ER", seeds=3, together=True)
    assert found == latest
    assert len(set(map(tuple, latest.values()))) == 2
    assert not list((tmp_path / "checkpoint" / "steps").glob("*"))


def test_a_run_that_was_inside_a_task_may_be_led_by_another(tmp_path, monkeypatch, every_slice):
    """Orders that begin alike are trained once; here the interrupted one comes second."""
    recipe = Recipe.of({
        "stream": {"data": "blobs", "data_options": {"classes": 6, "per_class": 12}},
        "method": "ER", "training": {"epochs": 1, "batch_size": 8}, "label": "ER",
    })  # fmt: skip
    whole = orders(recipe, task_orders=[(0, 2, 1), (0, 1, 2)], out=tmp_path / "whole", device="cpu")
    heal = crash_after(monkeypatch, 2)
    with pytest.raises(Crash):
        orders(recipe, task_orders=[(0, 1, 2)], out=tmp_path / "cut", device="cpu")
    heal()
    both = orders(recipe, task_orders=[(0, 2, 1), (0, 1, 2)], out=tmp_path / "cut", device="cpu")
    assert np.allclose(whole.result.matrix, both.result.matrix, equal_nan=True)
    rows = [one.result.frame() for one in (whole, both)]
    steps = [f[f["metric"] == "steps"]["value"].tolist() for f in rows]
    assert steps[0] == steps[1]


def test_sigterm_between_stages_ends_the_call(tmp_path, monkeypatch):
    """Nothing is asked for a checkpoint after the last step, yet who was told to end must end."""
    whole = engram.run(
        toy_runs.make_streams()[1], method="ER", device="cpu", out=tmp_path / "whole"
    )
    for at in (0, len(toy_runs.make_streams()[1]) - 1):
        out = tmp_path / str(at)

        class Telling(Callback):
            def stage(self, plan, stage, rows, at=at):
                if stage == at:
                    os.kill(os.getpid(), signal.SIGTERM)

        settings = {"method": "ER", "device": "cpu", "out": out}
        with pytest.raises(KeyboardInterrupt):
            engram.run(toy_runs.make_streams()[1], callback=Telling(), **settings)
        assert max(engram.read(out).frame()["stage"]) == at
        found = engram.run(toy_runs.make_streams()[1], **settings)
        same(found, whole)


def test_again_does_not_go_on(tmp_path, monkeypatch, every_slice):
    heal = crash_after(monkeypatch, 3)
    with pytest.raises(Crash):
        run(tmp_path, "ER")
    heal()
    steps = tmp_path / "checkpoint" / "steps"
    assert list(steps.glob("*.safetensors"))
    found = []
    original = StepSaver.load
    monkeypatch.setattr(StepSaver, "load", lambda *args: found.append(original(*args)))
    run(tmp_path, "ER", rerun=True)
    assert found == [None]


def test_nothing_is_sliced_without_a_directory(monkeypatch):
    monkeypatch.setattr(f"{SLICES}.took", lambda *_: pytest.fail("nobody asked for checkpoints"))
    engram.run(toy_runs.make_streams()[0], method="Finetune", device="cpu")


class Slow(Method):
    """Steps that take as long as the environment says, and are told in a file that it names."""

    def loss(self, net, batch, state):
        time.sleep(float(os.environ.get("SECONDS_OF_A_STEP", "0")))
        if told := os.environ.get("FILE_OF_STEPS"):
            with open(told, "a") as file:
                file.write(".")
        return {"task": net.task(batch)}


def train_slow(out):
    engram.run(
        toy_runs.make_streams()[0], method=Slow(), epochs=6, batch_size=4, device="cpu", out=out
    )


def train_slowly(out, said):
    torch.set_num_threads(1)
    speak_into(said, said)
    os.environ |= {"SECONDS_OF_A_STEP": "0.05", "FILE_OF_STEPS": f"{said}.steps"}
    train_slow(out)


def test_sigterm_saves_and_stops(tmp_path):
    out, whole, said = tmp_path / "out", tmp_path / "whole", tmp_path / "said"
    child = FORKS.Process(target=train_slowly, args=(out, said))
    child.start()
    deadline, steps = time.monotonic() + 120, tmp_path / "said.steps"
    while time.monotonic() < deadline and (not steps.exists() or steps.stat().st_size < 10):
        time.sleep(0.02)  # of the 3 seconds that the first task takes
    os.kill(child.pid, signal.SIGTERM)
    child.join(60)
    assert "engram.process.Ended: 15" in said.read_text()
    assert child.exitcode == 1
    (kept,) = (out / "checkpoint" / "steps").glob("*.safetensors")
    assert [where[0] for where in position(kept).values()] == [0]
    train_slow(out)
    train_slow(whole)
    assert len(list((out / "recipes").iterdir())) == 1  # it went on, and did not begin another
    same(*(engram.records.read(path) for path in (out, whole)))


class Pressing(Callback):
    """Ctrl-C, so many times, at the first steps that are told of."""

    def __init__(self, times):
        self.times = times

    def step(self, plans, stage, done, total):
        for _ in range(self.times):
            signal.raise_signal(signal.SIGINT)
        self.times = 0


def test_ctrl_c_saves_and_stops_and_twice_it_stops_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{SLICES}.took", lambda self, *_: None)
    monkeypatch.setattr(f"{SLICES}.__init__.__defaults__", (1.0, 2))  # steps in a slice
    train = functools.partial(
        engram.run, toy_runs.make_streams()[0], method="ER", epochs=3, batch_size=4, device="cpu"
    )
    out = tmp_path / "out"
    # a test started in the background would inherit that Ctrl-C is ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as ended:
            train(out=out, callback=Pressing(1))
        with pytest.raises(KeyboardInterrupt):
            train(out=tmp_path / "twice", callback=Pressing(2))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert type(ended.value) is KeyboardInterrupt
    (kept,) = (out / "checkpoint" / "steps").glob("*.safetensors")
    assert [where[0] for where in position(kept).values()] == [0]
    assert not (tmp_path / "twice" / "checkpoint").exists()
    same(train(out=out), train(out=tmp_path / "whole"))


def time_is_up_after(monkeypatch, asked):
    """Let a deadline pass when the saver is asked as often; what it returns heals."""
    original, count = StepSaver.should_stop, [0]

    def stops(self):
        count[0] += 1
        self.deadline = 0.0 if count[0] >= asked else None
        return original.fget(self)

    monkeypatch.setattr(StepSaver, "should_stop", property(stops))
    return lambda: monkeypatch.setattr(StepSaver, "should_stop", original)


@pytest.mark.parametrize(
    ("name", "seeds", "asked"),
    [("ER", 1, 5), ("RWalk", 3, 14), ("DERpp", 3, 19), ("LGR", 2, 9), ("LGR", 2, 21)],
)
def test_time_that_is_up_stops_inside_a_task(
    name, seeds, asked, tmp_path, monkeypatch, every_slice
):
    """Alone, in lockstep, in a prologue and behind one: nothing that was done is lost."""
    taken, original = [], StepSlices.took
    monkeypatch.setattr(
        StepSlices, "took", lambda self, steps: (taken.append(steps), original(self, steps))
    )
    method = toy_runs.shrink_settings(CHANGED.get(name) or getattr(methods, name)())
    how = {"seeds": seeds, "together": name == "RWalk"}
    whole = run(tmp_path / "whole", method, **how)
    once = sum(taken)
    monkeypatch.setattr(StepSaver, "due", lambda self: self.should_stop)
    heal = time_is_up_after(monkeypatch, asked)
    cut = run(tmp_path / "cut", method, **how)
    heal()
    assert len(cut) == 0 or len(cut.frame()) < len(whole.frame())
    assert list((tmp_path / "cut" / "checkpoint" / "steps").glob("*"))
    assert once < sum(taken) < 2 * once
    same(whole, run(tmp_path / "cut", method, **how))
    assert sum(taken) == 2 * once  # none was taken twice
    assert not list((tmp_path / "cut" / "checkpoint" / "steps").glob("*"))


def test_a_budget_is_kept_within_a_slice(tmp_path, monkeypatch):
    monkeypatch.setenv("SECONDS_OF_A_STEP", "0.03")
    now = [0.0]  # a clock that only steps move, so that a busy machine decides nothing
    late = functools.partial(execute, deadline=0.5)
    with monkeypatch.context() as limited:
        limited.setattr("engram.experiments.run_methods.execute", late)
        limited.setattr(time, "sleep", lambda seconds: now.append(now[-1] + seconds))
        for clock in ("monotonic", "perf_counter"):
            limited.setattr(time, clock, lambda: now[-1])
        train_slow(tmp_path / "out")
    assert 0.5 < now[-1] < 1.6  # of 3 that the first task takes
    (kept,) = (tmp_path / "out" / "checkpoint" / "steps").glob("*.safetensors")
    assert all(where[1:] > [0, 0] for where in position(kept).values())
    monkeypatch.setenv("SECONDS_OF_A_STEP", "0")
    train_slow(tmp_path / "out")
    train_slow(tmp_path / "whole")
    same(*(engram.records.read(tmp_path / name) for name in ("out", "whole")))


def test_positions_survive_a_file(tmp_path):
    one = ResumePoint(
        (1, 2, 3), {"done": 7, "lr": 0.1}, {"trainer": {"sums": {}}, "a": (torch.ones(2),)}
    )
    tensors, facts = one.packed()
    two = ResumePoint.unpacked(tensors, facts)
    assert replace(one, tensors={}) == replace(two, tensors={})
    assert toy_runs.trees_equal(one.tensors, two.tensors)
