"""Two processes in one directory: no run is trained twice, and nothing is done in silence."""

from __future__ import annotations

import numpy as np
import pytest

import engram
from engram.errors import RecordError
from engram.experiments import Callback
from engram.records import RunDirectory, run_id
from engram.records.locks import Claims
from tests.forks import FORKS


class Noting(Callback):
    """Keeps what it is told."""

    def __init__(self):
        self.notes, self.stages = [], []

    def note(self, text):
        self.notes.append(text)

    def stage(self, plan, stage, rows):
        self.stages.append((plan.run.seed, stage))


def run(out, callback=None, **options):
    stream = engram.class_incremental(engram.load("blobs"), classes_per_task=5)
    return engram.run(stream, out=out, device="cpu", callback=callback or Noting(), **options)


@pytest.mark.parametrize("together", [False, True])
def test_runs_of_another_process_are_left_to_it(tmp_path, together):
    whole = run(tmp_path / "whole", seeds=3, together=together)
    recipe = whole.runs[0].recipe
    other = Claims(RunDirectory(tmp_path / "out").path)
    assert other.take(run_id(recipe, 1))
    told = Noting()
    part = run(tmp_path / "out", told, seeds=3, together=together)
    assert [one.seed for one in part.runs] == [0, 2]
    assert {seed for seed, _ in told.stages} == {0, 2}
    assert len(told.notes) == 1
    assert "another process is training Finetune, seed 1; left to it" in told.notes[0]
    with pytest.raises(RecordError, match="seed 1; wait for it to end before rerunning"):
        run(tmp_path / "out", seeds=3, rerun=True)
    with pytest.raises(RecordError, match="seed 1; wait for it, or give another directory"):
        run(tmp_path / "out", seeds=[1])
    other.close()  # it died
    told = Noting()
    assert len(run(tmp_path / "out", told, seeds=3, together=together)) == 3
    assert {seed for seed, _ in told.stages} == {1}


def test_what_another_finished_meanwhile_is_not_trained_again(tmp_path):
    """The other one finishes seed 1 while this one trains seed 0."""

    class Meanwhile(Noting):
        def stage(self, plan, stage, rows):
            super().stage(plan, stage, rows)
            if (plan.run.seed, stage) == (0, 0):
                run(tmp_path, seeds=[1], together=False)

    told = Meanwhile()
    assert len(run(tmp_path, told, seeds=2, together=False)) == 2
    assert told.stages == [(0, 0), (0, 1)]
    assert told.notes == []


def test_after_an_interruption_runs_are_free(tmp_path):
    class Crash(Noting):
        def stage(self, plan, stage, rows):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as kept:  # as a notebook keeps the last error
        run(tmp_path, Crash())
    assert len(run(tmp_path)) == 1
    assert kept.traceback


def share(out, report):
    import torch

    torch.set_num_threads(1)
    told = Noting()
    run(out, told, seeds=6, together=False, epochs=3)
    report.send(told.stages)


def test_processes_with_the_same_call_share_its_runs(tmp_path):
    """As the jobs of an array do: every stage is trained once, by whoever came first."""
    pipes, processes = [], []
    for _ in range(2):
        ours, theirs = FORKS.Pipe(duplex=False)
        processes.append(FORKS.Process(target=share, args=(str(tmp_path), theirs)))
        pipes.append(ours)
        processes[-1].start()
        theirs.close()
    trained = [pipe.recv() if pipe.poll(120) else None for pipe in pipes]
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    every = [one for stages in trained for one in stages]
    assert sorted(every) == [(seed, stage) for seed in range(6) for stage in range(2)]
    assert all(trained)  # neither had all of them
    whole = run(None, seeds=6, together=False, epochs=3)
    np.testing.assert_array_equal(engram.read(tmp_path).matrix, whole.matrix)
