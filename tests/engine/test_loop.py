"""The loop can be read: one file, and few frames between a user and a loss."""

from __future__ import annotations

import inspect
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest

import engram
from engram.engine import loop

PACKAGE = Path(engram.__file__).parent


@pytest.mark.parametrize(("together", "most"), [(False, 7), (True, 9)], ids=["alone", "lockstep"])
@pytest.mark.parametrize("out", [False, True], ids=["in memory", "in a directory"])
def test_few_frames_to_the_loss(together, most, out, tmp_path):
    """From `engram.run` to `loss`, both counted; those of torch are not ours."""
    found = []

    @dataclass(frozen=True)
    class Look(engram.Method):
        def loss(self, net, batch, state):
            names = [one.name for one in traceback.extract_stack() if _ours(one)]
            found.append([*names, "loss"])
            return {"task": net.task(batch)}

    where = {"out": tmp_path} if out else {}
    engram.run(
        engram.load("blobs"), method=Look(), seeds=2, together=together, device="cpu", **where
    )
    assert found[0][0] == "run"
    assert {tuple(names) for names in found} == {tuple(found[0])}
    assert len(found[0]) <= most, found[0]


def _ours(frame):
    file = Path(frame.filename)  # old argument names are understood for one version only
    return PACKAGE in file.parents and file.name != "renamed.py"


def test_the_loop_reads_in_the_order_in_which_it_happens():
    order = [inspect.getsourcelines(one)[1] for one in (
        loop.train_task, loop.open_task, loop.PhaseTraining, loop.finish_task,
    )]  # fmt: skip
    assert order == sorted(order)  # in the order in which it happens
