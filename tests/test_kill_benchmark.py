"""The benchmark that kills processes: what it plans, counts and compares."""

from __future__ import annotations

import signal

import numpy as np
import pytest

import engram
from benchmarks.kills.compare import differences
from benchmarks.kills.journal import Event, Position
from benchmarks.kills.lives import Death, Order, count_steps
from benchmarks.kills.trial import orders
from benchmarks.kills.work import METHODS, WAYS, Work
from engram import methods


@pytest.mark.parametrize(("kept", "lost"), [({("run", 0)}, 2), ({("run", 0), ("run", 1)}, 0)])
def test_nothing_is_lost_between_recording_a_stage_and_saying_so(kept, lost):
    words = ("begun 0 ", "where 1 run 0 1 2", "step 1 ", "step 2 ", "stage 2 run 0",
             "where 3 run 1 1 2", "step 3 ", "step 4 ")  # fmt: skip
    parts = (one.split(" ", 2) for one in words)
    seen = [Event(kind, float(at), rest) for kind, at, rest in parts]
    order = Order("process", signal.SIGKILL, writing=True)
    death = Death(order, at=5.0, number=0, told={("run", 0)}, kept=kept, where=Position(1, 1, 2))
    count_steps(death, seen, every=1.0)
    assert death.steps_lost == lost


def test_every_method_in_every_way_is_killed_by_either_signal_and_while_it_writes():
    assert set(METHODS) == {name for name in methods.__all__ if name[0].isupper()}
    for way in WAYS:
        planned = [one for turn, name in enumerate(METHODS)
                   for one in orders(Work(method=name, way=way), 3, turn)]  # fmt: skip
        assert {one.victim for one in planned} == set(WAYS[way].victims)
        assert {one.sent for one in planned} == {signal.SIGKILL, signal.SIGTERM}
        assert any(one.writing for one in planned)


def test_differences_are_found(tmp_path):
    """The comparison itself: another rate, another seed's weights, a missing stage."""
    recipe = Work(method="ER", way="single").recipes()[0]
    short = recipe | {"training": {"epochs": 1, "batch_size": 8}}
    one, two = (engram.sweep([short], out=tmp_path / name) for name in ("one", "two"))
    assert differences(one, two) == []
    kept = next(iter(two.predictions))
    moved = two.predictions.get(*kept)
    changed = moved.parameters.copy()
    changed[0] = np.nextafter(changed[0], np.float32(np.inf))
    object.__setattr__(moved, "parameters", changed)
    two.predictions.get = lambda *_: moved  # type: ignore[method-assign]
    assert any("parameters" in word for word in differences(one, two))
    longer = recipe | {"training": {"epochs": 2, "batch_size": 8}}
    said = differences(engram.sweep([longer], out=tmp_path / "other"), one)
    assert "numbers" in said
