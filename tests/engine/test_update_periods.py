"""`Update.every` names the steps that end a period: alone, in lockstep, joined, compiled."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch

from engram.checks.toy_runs import (
    CLOSE,
    EXACT,
    copy_stage,
    enter_task,
    largest_gap,
    make_clouds,
    make_runs,
    make_streams,
    train_runs,
    trees_equal,
)
from engram.engine.engine import Engine
from engram.engine.trainers import compiled, lockstep
from engram.engine.trainers.lockstep import LockstepTrainer
from engram.learner.tensor_tree import leaves
from engram.memory import Memory
from engram.methods import ER, Finetune, Join, RWalk
from engram.methods.method import Method, Phase
from engram.streams import class_incremental
from tests.methods.plain_rwalk import Stepwise, Ticks

MEMORY = Memory(total=12)
VARIANTS = {
    "default": {},
    "every step": {"every": 1},
    "seven": {"every": 7},
    "seven without flush": {"every": 7, "flush": False},
    "agem": {"impl": "agem", "kl_half": False, "avg": "agem_accumulate", "every": 3},
    "agem every step": {"impl": "agem", "every": 1},
    "agem from zero": {"impl": "agem", "every": 3, "init": "zero"},
    "clamp": {"clamp": "task", "every": 3},
    "total": {"grad": "total", "every": 3},
    "alpha": {"alpha_on": "running", "alpha": 0.3, "every": 4},
    "samples": {"every": 3, "memory": MEMORY},
}
LONG = replace(EXACT, iterations=22, evaluate_every=5)  # longer than ten steps, cut into chunks
EQUAL = [class_incremental(make_clouds(), order=list(range(6)))] * 2
KINDS = {"equal": EQUAL, "unequal": make_streams()}
compiler = pytest.mark.skipif(
    not any(map(shutil.which, compiled.COMPILERS)), reason="no C++ compiler to test with"
)


def stepwise(method: Method) -> Method:
    """The same with Stepwise in place of RWalk."""
    if isinstance(method, Join):
        return Join(*map(stepwise, method.parts))
    if not isinstance(method, RWalk):
        return method
    return Stepwise(**{f.name: getattr(method, f.name) for f in fields(method)})


def is_stepwise(method, kind, together, training=EXACT):
    mine, twins = (
        train_runs(make_runs(one, KINDS[kind], training=training), together=together)
        for one in (method, stepwise(method))
    )
    assert mine.keys() == twins.keys()
    for key, twin in twins.items():
        assert trees_equal(mine[key].tensors, twin.tensors), key


# alone, a run knows nothing of the sizes of others
@pytest.mark.parametrize(
    ("kind", "together"), [("unequal", False), ("equal", True), ("unequal", True)],
    ids=["alone", "equal in lockstep", "unequal in lockstep"],
)  # fmt: skip
class TestRWalk:
    @pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
    def test_is_bitwise_its_stepwise_form(self, options, kind, together):
        is_stepwise(RWalk(strength=0.1, **options), kind, together)

    def test_in_chunks(self, kind, together):
        is_stepwise(RWalk(strength=0.1), kind, together, LONG)

    def test_with_old_moments(self, kind, together):
        """The optimiser's count goes on from task to task, that of intervals does not."""
        training = replace(EXACT, optimizer="adam", lr=1e-3, optim_reset=False, epochs=3)
        is_stepwise(RWalk(strength=0.1, every=4), kind, together, training)

    def test_joined(self, kind, together):
        parts = ER(memory=MEMORY), RWalk(strength=0.1, every=3), RWalk(strength=0.2, every=7)
        is_stepwise(Join(*parts), kind, together)


def test_a_twin_can_differ():
    off = train_runs(make_runs(RWalk(strength=0.1, every=3), EQUAL), together=True)
    twin = train_runs(make_runs(Stepwise(strength=0.1, every=4), EQUAL), together=True)
    assert not any(trees_equal(off[key].tensors, twin[key].tensors) for key in off)


# -- how often -------------------------------------------------------------------------------------
def counts(found, part=None):
    """(steps, ends, calls) of every run and stage."""
    states = {key: one.state if part is None else one.state[part] for key, one in found.items()}
    return {key: tuple(int(s[n]) for n in ("steps", "ends", "calls")) for key, s in states.items()}


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
def test_no_more_often_than_needed(together):
    for steps, ends, calls in counts(
        train_runs(make_runs(Ticks(), EQUAL), together=together)
    ).values():
        assert ends == calls == steps // 2


def test_unequal_numbers_of_steps():
    alone = train_runs(make_runs(Ticks(every=3), make_streams()))
    mapped = train_runs(make_runs(Ticks(every=3), make_streams()), together=True)
    assert len({steps for (_, stage), (steps, *_) in counts(alone).items() if stage == 0}) > 1
    for key, (steps, ends, calls) in counts(mapped).items():
        assert ends == steps // 3 == counts(alone)[key][1]
        assert ends <= calls <= steps
        assert largest_gap(mapped[key].state["seen"], alone[key].state["seen"]) < CLOSE
    assert any(calls > ends for _, ends, calls in counts(mapped).values())


def test_a_run_that_waits_is_left_alone():
    for steps, ends, calls in counts(
        train_runs(make_runs(Ticks(every=1), make_streams()), together=True)
    ).values():
        assert steps == ends == calls


def test_runs_that_meet_again():
    """Optimisers that have taken equal numbers of steps, of which unequal ones in this stage."""
    data = make_clouds((8, 8, 16, 16, 32, 32, 16, 16))  # tasks of 1, 2, 4 and 2 steps per epoch
    orders = (0, 1, 4, 5, 2, 3, 6, 7), (2, 3, 6, 7, 0, 1, 4, 5)
    training = replace(EXACT, optim_reset=False, epochs=2, evaluate_every=1)
    runs = make_runs(Ticks(every=3), make_streams(data, orders), training=training)
    mapped = counts(train_runs(runs, together=True))
    assert [mapped[run, stage][0] for stage in (0, 1) for run in (0, 1)] == [2, 4, 8, 4]
    for steps, ends, _ in mapped.values():
        assert ends == steps // 3


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("kind", KINDS)
def test_joined_paces(kind, together):
    join = Join(Ticks(every=4), Finetune(), Ticks(every=6))
    found = train_runs(make_runs(join, KINDS[kind], training=LONG), together=together)
    single = train_runs(make_runs(Ticks(every=4), KINDS[kind], training=LONG), together=together)
    for key, (steps, ends, calls) in counts(found, "0").items():
        assert ends == steps // 4
        assert calls == ends if kind == "equal" else calls >= ends
        assert trees_equal(found[key].state["0"]["seen"], single[key].state["seen"])
    for steps, ends, calls in counts(found, "2").values():
        assert ends == steps // 6
        assert calls == ends if kind == "equal" else calls >= ends


def test_periods_count_on_from_phase_to_phase():
    """The steps of a task count, not those of a phase."""

    @dataclass(frozen=True, kw_only=True)
    class Twice(Ticks):
        def phases(self, stage):
            return Phase(iterations=4), Phase(iterations=7)

    for together in (False, True):
        found = train_runs(make_runs(Twice(every=3), EQUAL), together=together)
        assert set(counts(found).values()) == {(11, 3, 3)}


# -- captured --------------------------------------------------------------------------------------
class Recorded:
    """Stands in for a CUDA graph, and counts calls."""

    def __init__(self, step):
        self.step, self.calls = step, 0

    def __call__(self):
        self.calls += 1
        self.step()


def test_captured_by_the_periods_that_end_and_at_fixed_addresses(monkeypatch):
    recorded = []

    def record(step, pool):
        recorded.append(Recorded(step))
        return recorded[-1]

    monkeypatch.setattr(lockstep, "CapturedStep", record)
    at = enter_task(Ticks(every=2))
    trainer = LockstepTrainer(at.learners, [at.method] * 2, EXACT, capture=True)
    trainer.load(at.rows, fixed=False)
    steps = at.rows.live.shape[1]
    places = [leaf.data_ptr() for leaf in leaves(trainer.tensors.state)]
    rates = trainer.tensors.lr.numpy().copy()[:, None].repeat(steps, 1)
    everyone = np.ones((2, steps), dtype=bool)
    for _ in range(3):
        trainer.run(0, steps, rates, everyone)
    assert [one.calls for one in recorded] == [3 * steps - 3 * steps // 2, 3 * steps // 2]
    assert [leaf.data_ptr() for leaf in leaves(trainer.tensors.state)] == places
    trainer.run(0, steps, rates, everyone & [[True], [False]])  # steps with a mask are others
    assert len(recorded) == 4


# -- compiled --------------------------------------------------------------------------------------
@compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_compiled(kind, monkeypatch):
    graphs = []
    real = torch.compile

    def spy(graph, **how):  # one kind is compiled for real, of the other the trace runs
        graphs.append(graph)
        return real(graph, **how) if kind == "unequal" else graph

    monkeypatch.setattr(torch, "compile", spy)
    monkeypatch.setattr(compiled, "_KNOWN", {})
    runs = make_runs(Join(RWalk(strength=0.1, every=3), Ticks(every=2)), KINDS[kind], training=LONG)
    engine = Engine(runs, device="cpu", together=True, compile=True)
    fused = {(s.run, s.stage): copy_stage(s) for s in engine.stages()}
    plain = train_runs(runs, together=True)
    for key, one in plain.items():
        assert largest_gap(fused[key].tensors, one.tensors) < CLOSE, key
    assert counts(fused, "1") == counts(plain, "1")
    sizes = sorted(len(graph.__self__.graph.nodes) for graph in graphs)
    assert sizes[0] < sizes[-1], "steps that end no period do less"


@compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_traces_are_kept_apart(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda graph, **how: graph)  # they are told by the trace
    monkeypatch.setattr(compiled, "_KNOWN", {})
    runs = make_runs(Ticks(), EQUAL)
    engine = Engine(runs, device="cpu", together=True, compile=True)
    list(engine.stages())
    due = {key[0][-1] for key in engine._factory.networks(runs[0]).traces}
    assert due == {(), (2,)}
