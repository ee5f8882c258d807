"""One run on two ranks gives the numbers of one process at the same global batch."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import engram
from engram import distributed, methods
from engram.checks import toy_runs
from engram.checks.check_suite import make_default
from engram.cli import app
from engram.cli.console import PROCESS_LOST
from engram.data import Data
from engram.distributed import Ranks
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.trainers.single import SingleTrainer
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.experiments.pools import find_pool
from engram.experiments.run_plans import check_ranks
from engram.learner.tensor_tree import tree_map
from engram.methods import ER, TWP
from engram.process import is_torchrun
from tests.engine.ranks import on_ranks

CLOSE = 1e-9
MODELS = ("plain", "normed", "dropped")


def run_of(method, model):
    """A run of two tasks, one epoch each."""
    [one] = toy_runs.make_runs(
        toy_runs.shrink_memory(toy_runs.shrink_settings(method)),
        toy_runs.make_streams(orders=toy_runs.ORDERS[:1]),
        model=model,
    )
    return replace(one, training=replace(one.training, epochs=1))


def trained(one):
    """Losses, weights, states and memories after each of the first two stages."""
    found = []
    for stage in islice(Engine([one], device="cpu", together=False).stages(), 2):
        own = stage.learner
        rows = own.exemplars.rows.tolist()
        tree = tree_map(lambda leaf: leaf.detach().clone(), (own.vector, own.buffers, own.state))
        found.append((stage.losses, rows, tree, stage.scores))
    return found


def on_one_rank(work):
    with distributed.join_ranks(torch.device("cpu")):
        return {key: trained(one) for key, one in work.items()}


def gap(one, other):
    """The largest difference of losses and states."""
    assert len(one) == len(other)
    widest = 0.0
    for (losses, rows, tree, _), (theirs, their_rows, their_tree, _) in zip(
        one, other, strict=True
    ):
        assert rows == their_rows
        assert [step for step, _ in losses] == [step for step, _ in theirs]
        for (_, terms), (_, others) in zip(losses, theirs, strict=True):
            for name in terms:  # penalties of a strength of their own explode here
                size = max(1.0, abs(terms[name]))
                widest = max(widest, abs(terms[name] - others[name]) / size)
        widest = max(widest, toy_runs.largest_gap(tree, their_tree))
    return widest


def test_two_ranks_are_one_process():
    """All methods, with batch norm and dropout shared out in turn."""
    work = {
        name: run_of(make_default(getattr(methods, name)), MODELS[place % 3])
        for place, name in enumerate(methods.__all__)
    }
    work["double"] = run_of(TWP(beta="double_backward"), "plain")  # weights are read by the loss
    alone = {key: trained(one) for key, one in work.items()}
    found = on_ranks(on_one_rank, work)
    assert not [one for one in found if isinstance(one, Exception)], found
    first, second = found
    far = {key: gap(alone[key], first[key]) for key in work}
    assert max(far.values()) < CLOSE, {key: one for key, one in far.items() if one >= CLOSE}
    assert all(gap(first[key], second[key]) == 0.0 for key in work)  # ranks never differ


def mapped(folder):
    """Pictures that stay on disk, as a memory map."""
    if not (folder / "x").exists():
        np.random.default_rng(0).integers(0, 256, 60 * 16, np.uint8).tofile(folder / "x")
    x = np.memmap(folder / "x", np.uint8, "r", shape=(60, 1, 4, 4))
    return engram.class_incremental(Data.from_arrays(x, np.arange(60) % 4))


def on_disk(folder):
    """Accuracies and losses of a run that is recorded in a directory."""
    training = {"epochs": 2, "batch_size": 7, "augment": ["flip"], "precision": "float64"}
    found = engram.run(
        mapped(folder), method=ER(memory=engram.Memory(total=9)), model="mlp", device="cpu",
        out=folder / "runs" if is_torchrun() else folder / "alone", **training,
    )  # fmt: skip
    frame = found.frame()
    return frame[frame["metric"].str.startswith(("loss", "accuracy"))]["value"].to_numpy()


def test_rows_that_stay_on_disk_are_fetched_in_shares(tmp_path):
    alone = on_disk(tmp_path)
    first, second = on_ranks(on_disk, tmp_path)
    assert np.abs(first - alone).max() < CLOSE
    assert np.array_equal(first, second)
    names = [{one.name.split("-")[0] for one in (tmp_path / place).iterdir()}
             for place in ("alone", "runs")]  # fmt: skip
    assert names[0] == names[1]  # one process has written


OPTIONS = ["--data", "blobs", "--method", "ER+EWC", "--device", "cpu", "--set",
           "data_options={classes: 4, per_class: 30}", "--set", "training={epochs: 3, "
           "batch_size: 6, precision: float64}"]  # fmt: skip


def losing(folder):
    """A command of which rank 1 is killed in the second task."""
    usual, count = SingleTrainer._count, 0

    def counted(self):
        nonlocal count
        usual(self)
        count += 1
        if count == 40 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

    SingleTrainer._count = counted
    found = CliRunner().invoke(app, ["run", *OPTIONS, "--out", str(folder / "lost")])
    return found.exit_code, found.output


def test_a_lost_rank_leaves_a_checkpoint_from_which_one_process_goes_on(tmp_path):
    first, second = on_ranks(losing, tmp_path)
    assert second is None
    assert first[0] == PROCESS_LOST, first
    assert "A process of the job was lost" in first[1]
    assert len(list((tmp_path / "lost" / "checkpoint" / "steps").glob("*.safetensors"))) == 1
    run = CliRunner().invoke(app, ["resume", str(tmp_path / "lost")])
    assert run.exit_code == 0, run.output
    CliRunner().invoke(app, ["run", *OPTIONS, "--out", str(tmp_path / "whole")])
    ends = [engram.read(tmp_path / name).frame() for name in ("lost", "whole")]
    losses = [one[one["metric"].str.startswith("loss")]["value"].to_numpy() for one in ends]
    assert len(losses[0]) == len(losses[1]) > 10
    assert np.abs(losses[0] - losses[1]).max() < CLOSE


class Stubborn(nn.Module):
    """Batch statistics that nobody can share."""

    features = 3

    def __init__(self, sample_shape):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(16, momentum=None), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(self.norm(x.flatten(1)))


def test_what_cannot_be_shared_is_refused_by_name(monkeypatch):
    ranks = Ranks(0, 2, torch.device("cpu"))
    stream = engram.class_incremental(engram.load("blobs", classes=4, per_class=10))

    def engine(**options):
        given = {"model": "mlp", "training": Training(), **options}
        return Engine([Run(stream=stream, method=ER(), **given)], device="cpu")

    check_ranks(engine(), ranks)
    with pytest.raises(BadArgument, match=r"model: .*norm \(BatchNorm1d\) uses batch statistics"):
        check_ranks(engine(model=Stubborn), ranks)
    with pytest.raises(BadArgument, match="batch_size: expected at least 2 rows"):
        check_ranks(engine(training=Training(batch_size=1)), ranks)
    compiled = engine()
    compiled.compile = True
    with pytest.raises(BadArgument, match="compile: expected False"):
        check_ranks(compiled, ranks)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    with pytest.raises(BadArgument, match="pool: expected one of together, auto, serial where"):
        find_pool("processes")
