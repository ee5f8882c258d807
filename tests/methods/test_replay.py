from __future__ import annotations

import numpy as np
import pytest
import torch

from engram.data.core import Data
from engram.errors import BadArgument
from engram.memory import Memory
from engram.methods.er import ER
from engram.methods.joint import Joint
from engram.methods.replay import Replay
from engram.streams import class_incremental
from tests.methods.rehearsal import clouds, final, lockstep_gap, spied, train

STREAM = class_incremental(clouds())


def test_share_of_a_task_is_rounded_up() -> None:
    """[T-P5] .2 of 237 rows: 48"""
    rng = np.random.default_rng(0)
    x, y = rng.random((240, 3), dtype=np.float32), np.arange(240) % 2
    data = Data.from_arrays(x[:237], y[:237], test=(x[237:], y[237:]))
    stage = train(Replay(), class_incremental(data), epochs=1)[-1]
    assert len(stage.learner.exemplars) == 48


def test_everything_kept_is_joint_training(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    for method in (Replay(fraction=1.0), Joint()):
        seen = spied(monkeypatch, type(method))
        train(method, STREAM, epochs=1, loss="balanced")
        batches = [seen.of(k) for k in range(3)]
        shown.append([
            sorted((s, *row) for b in some for s, row in zip(b.stage.tolist(), b.x.tolist()))
            for some in batches
        ])  # fmt: skip
        monkeypatch.undo()
    assert shown[0] == shown[1]
    full = {"batch_size": 0, "loss": "balanced"}
    gap = final(Replay(fraction=1.0), STREAM, **full) - final(Joint(), STREAM, **full)
    assert gap.abs().max() < 1e-12


def test_it_is_replay_of_a_fraction() -> None:
    other = ER(memory=Memory(fraction=0.3), mix="union")
    assert torch.equal(final(Replay(fraction=0.3), STREAM), final(other, STREAM))


def test_nothing_is_dropped_later() -> None:
    kept = train(Replay(), STREAM)[-1].learner.exemplars
    sizes = [-(-len(task.train) // 5) for task in STREAM.tasks]
    assert torch.bincount(kept.stages).tolist() == sizes


@pytest.mark.parametrize("batch_size", [0, 16])
def test_lockstep(batch_size: int) -> None:
    assert lockstep_gap(Replay(), loss="balanced", batch_size=batch_size) < 1e-10


def test_several_fractions_in_lockstep() -> None:
    methods = [Replay(fraction=f) for f in (0.05, 0.1, 0.2)]
    assert lockstep_gap(methods, loss="balanced") < 1e-10


def test_bad_fraction() -> None:
    with pytest.raises(BadArgument, match="fraction"):
        Replay(fraction=0.0)
