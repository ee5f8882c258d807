from __future__ import annotations

import numpy as np
import pytest
import torch

from engram.data.dataset import Data
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.learner.batch import Batch
from engram.learner.networks import Net
from engram.memory import Memory
from engram.methods.er import ER
from engram.methods.joint import Joint
from engram.methods.replay import Replay
from engram.streams import class_incremental
from tests.methods.rehearsal import TINY, clouds, final, lockstep_gap, spied, train
from tests.refusals import refuses

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
    with refuses("fraction"):
        Replay(fraction=0.0)


# -- other readings of "mixed" -------------------------------------------------------------------
def test_every_class_in_proportion() -> None:
    """.2 of 31 and 12 rows, of 24 and 17, of 28 and 9: rounded together, not a class left out."""
    kept = train(Replay(of="class"), STREAM)[-1].learner.exemplars
    each = [torch.bincount(kept.columns[kept.stages == k]).tolist()[-2:] for k in range(3)]
    assert [sum(pair) for pair in each] == [-(-len(task.train) // 5) for task in STREAM.tasks]
    sizes = [(31, 12), (24, 17), (28, 9)]
    for pair, counts in zip(each, sizes, strict=True):
        assert all(abs(n - 0.2 * size) <= 1 for n, size in zip(pair, counts, strict=True))


def test_only_the_newest_share() -> None:
    run = Run(stream=STREAM, method=Replay(kept="newest"), model=TINY, training=Training())
    stages = Engine([run], device="cpu").stages()
    assert [set(s.learner.exemplars.stages.tolist()) for s in stages] == [{0}, {1}, {2}]


def test_as_many_kept_rows_as_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spied(monkeypatch, Replay)
    train(Replay(mix="paired"), STREAM, epochs=1, batch_size=0)
    first, second, _ = (seen.of(k)[0] for k in range(3))
    assert int(first.old.sum()) == 0
    assert int(second.old.sum()) == int((1 - second.old).sum()) == len(STREAM.tasks[1].train)


def test_drawn_anew_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """All new rows take part, and another fifth of the old ones each time."""
    shown: list[torch.Tensor] = []
    plain = Net.task

    def watched(net: Net, batch: Batch) -> torch.Tensor:
        if int(batch.now) == 2:
            shown.append(batch.w.clone())
            assert bool((batch.w[batch.old == 0] == 1).all())
        return plain(net, batch)

    monkeypatch.setattr(Net, "task", watched)
    stage = train(Replay(drawn="step"), STREAM, epochs=20, batch_size=0)[-1]
    drawn = torch.stack(shown)
    old = sum(len(task.train) for task in STREAM.tasks[:2])
    new = len(STREAM.tasks[2].train)
    assert len({tuple(row.tolist()) for row in drawn}) == 20
    assert (drawn.sum(1) - new).mean() / old == pytest.approx(0.2, abs=0.04)
    assert len(stage.learner.exemplars) == 0
    assert stage.learner.ledger.count(2, "past") > 0


@pytest.mark.parametrize(
    "options", [{"mix": "paired"}, {"of": "class"}, {"kept": "newest"}, {"drawn": "step"}]
)
def test_readings_in_lockstep(options: dict[str, str]) -> None:
    assert lockstep_gap(Replay(**options), loss="balanced", batch_size=0) < 1e-10


def test_a_draw_from_the_whole_past_has_no_share_to_keep() -> None:
    with pytest.raises(BadArgument, match="drawn: 'step' draws from all of the past"):
        Replay(drawn="step", kept="newest")
    with refuses("kept", near="newest"):
        Replay(kept="newset")
