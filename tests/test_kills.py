"""Processes that are killed while they train end as if nothing had been (`benchmarks.kills`)."""

from __future__ import annotations

import random
import signal

import numpy as np
import pytest

from benchmarks.kills import trial
from benchmarks.kills.__main__ import row
from benchmarks.kills.child import Work
from engram import methods
from engram.checks.toys import tame


@pytest.mark.parametrize(("method", "runs", "epochs"), [("RWalk", 1, 8), ("DERpp", 48, 3)])
def test_killed_at_random_moments(method, runs, epochs, tmp_path):
    work = Work(method=tame(getattr(methods, method)()), runs=runs, epochs=epochs, every=0.3)
    found = trial.trial(work, 2, random.Random(runs), tmp_path)
    assert found.differences == []
    assert [one.sent for one in found.deaths] == [signal.SIGKILL, signal.SIGTERM]
    assert found.deaths[1].steps_lost == 0  # it was told to end, and saved what it had done
    assert all(one.seconds_lost <= one.allowed for one in found.deaths)
    assert row(found)["equal"]


def test_differences_are_found(tmp_path):
    """The comparison itself: another rate, another seed's weights, a missing stage."""
    work = Work(method=methods.ER(), runs=1, epochs=1, every=60.0, classes=4, per_class=20)
    one, two = (work.run(tmp_path / name) for name in ("one", "two"))
    assert trial.differences(one, two) == []
    kept = next(iter(two.predictions))
    moved = two.predictions.get(*kept)
    changed = moved.parameters.copy()
    changed[0] = np.nextafter(changed[0], np.float32(np.inf))
    object.__setattr__(moved, "parameters", changed)
    two.predictions.get = lambda *_: moved  # type: ignore[method-assign]
    assert any("parameters" in word for word in trial.differences(one, two))
    other = Work(method=methods.ER(), runs=1, epochs=2, every=60.0, classes=4, per_class=20)
    said = trial.differences(other.run(tmp_path / "other"), one)
    assert "numbers" in said
