"""Runs that take turns, a slice of steps each, are the runs alone."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch

from engram import methods
from engram.checks import tamed, toys
from engram.engine.engine import Engine
from engram.engine.groups.streams import Part, side_by_side
from engram.engine.trainers import cuda_graph
from engram.learner.tree import flatten

SLICES = "engram.engine.checkpoints.resume_point.Slices"


@pytest.fixture
def beside(monkeypatch):
    """As on CUDA: two runs at a time, in slices of two steps."""
    monkeypatch.setattr(Engine, "side_by_side", 2)
    monkeypatch.setattr(f"{SLICES}.took", lambda self, *_: None)
    monkeypatch.setattr(f"{SLICES}.__init__.__defaults__", (1.0, 2))


def trained(runs):
    engine = Engine(runs, device="cpu", together=False)
    found = {}
    for stage in engine.stages():
        one = stage.learner
        tree = flatten((one.vector, one.buffers, one.state, one.opt))
        found[stage.run, stage.stage] = {k: v.clone() for k, v in tree.items()}, stage.outcome
    return found


@pytest.mark.parametrize(
    ("name", "model"),
    [("ER", "normed"), ("ER", "dropped"), ("EWC", "plain"), ("DERpp", "plain"), ("GDumb", "plain")],
)
def test_side_by_side_is_one_after_the_other(name, model, request):
    method = tamed.tame(getattr(methods, name)())
    runs = toys.runs_of(method, toys.streams(orders=toys.ORDERS[:3]), model=model)
    alone = trained(runs)
    request.getfixturevalue("beside")
    turns = trained(runs)
    assert alone.keys() == turns.keys()
    for key, (tensors, outcome) in alone.items():
        mine, other = turns[key]
        assert all(torch.equal(mine[name], value) for name, value in tensors.items())
        assert (other.scores == outcome.scores).all()
        assert other.losses == outcome.losses
        assert other.steps == outcome.steps


def test_side_by_side_no_batch_norm_waits_for_blocks_of_another_run(beside, monkeypatch):
    asked = []
    stock = torch.batch_norm
    monkeypatch.setattr(torch, "batch_norm", lambda *a: (asked.append(a[5::3]), stock(*a))[1])
    streams = toys.streams(orders=toys.ORDERS[:2])
    trained(toys.runs_of(methods.Finetune(), streams, model="normed"))
    trained(toys.runs_of(methods.Finetune(), streams[:1], model="normed"))
    enabled = torch.backends.cudnn.enabled
    assert set(asked) == {(True, False), (True, enabled), (False, enabled)}  # training, cuDNN


def test_parts_of_a_group(beside):
    runs = toys.runs_of(methods.Finetune(), toys.streams(orders=toys.ORDERS[:3]))
    engine = Engine(runs, device="cpu", together=False)
    assert [part for part, _ in engine.parts()] == [[0, 1], [2]]
    assert [ways[0].mapped for _, ways in engine.parts()] == [False, False]


def test_all_that_go_on_are_saved_at_once():
    class Saver:
        clock, last, saves, stops = 0, 0, [], False

        def due(self):
            return self.clock - self.last >= 7

        def save(self, places, learners, points):
            self.saves.append((list(places), list(points)))
            self.last = self.clock

    saver = Saver()

    def turns(steps, name):
        for step in range(steps):
            saver.clock += 1
            yield None
            if saver.due():
                yield [f"{name}{step}"]
        return [name]

    lengths = {"a": 3, "b": 6, "c": 6}
    parts = [Part(turns(n, name), [k], [None]) for k, (name, n) in enumerate(lengths.items())]
    assert side_by_side(parts, torch.device("cpu"), saver) == ["a", "b", "c"]
    # each stops at its next slice; the second time the first one is at its end
    assert saver.saves == [([0, 1, 2], ["a2", "b1", "c1"]), ([1, 2], ["b5", "c4"])]
    # where training is to end, those that are through have their outcome
    saver.stops, saver.last = True, saver.clock
    parts = [
        Part(turns(n, name), [k], [None]) for k, (name, n) in enumerate({"d": 2, "e": 9}.items())
    ]
    assert side_by_side(parts, torch.device("cpu"), saver) == ["d", None]
    assert saver.saves[2:] == [([1], ["e4"])]


def test_an_error_in_one_ends_all():
    closed = []

    def turns(fails):
        try:
            yield None
            if fails:
                raise torch.OutOfMemoryError("no room")
            yield None
        finally:
            closed.append(fails)
        return []

    parts = [Part(turns(fails), [0], [None]) for fails in (False, True)]
    with pytest.raises(torch.OutOfMemoryError):
        side_by_side(parts, torch.device("cpu"))
    del parts
    assert set(closed) == {False, True}


def test_a_run_with_a_stream_of_its_own_is_recorded_in_it(monkeypatch):
    """What cuBLAS adds up in is kept by stream: recordings of one stream must not run at once."""
    streams, seen = SimpleNamespace(present="own"), []

    class Graph:
        replay = staticmethod(lambda: None)

    @contextlib.contextmanager
    def record(graph, *, pool, stream, capture_error_mode):
        seen.append(stream)
        yield

    monkeypatch.setattr(cuda_graph, "WARM_STEPS", 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams.present)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: "default")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", record)
    for streams.present in ("own", "default"):
        cuda_graph.Captured(lambda: None)()
    assert seen == ["own", None]
