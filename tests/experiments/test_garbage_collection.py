"""While many runs train, the garbage collector passes over what was there before them."""

from __future__ import annotations

import gc

import pytest

from engram.experiments.run_plans import MANY_RUNS, freeze_garbage


@pytest.fixture
def thawed():
    """As outside the tests, where nothing is frozen."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_what_was_there_is_passed_over_and_looked_at_again(thawed):
    with freeze_garbage(MANY_RUNS - 1):
        assert gc.get_freeze_count() == 0
    with freeze_garbage(MANY_RUNS):
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_what_somebody_else_has_settled_stays(thawed):
    gc.freeze()
    with freeze_garbage(MANY_RUNS):
        pass
    assert gc.get_freeze_count() > 0
