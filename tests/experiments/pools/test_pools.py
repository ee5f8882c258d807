"""Every pool gives the same numbers, tells of its progress, keeps to a deadline and runs anew."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import engram
from benchmarks.sweeps.nodes import stages_written
from engram.errors import BadArgument, EngramError, RecordError
from engram.experiments import Callback, Plan, Recipe
from engram.experiments.pools import POOLS, find_pool, process_pool
from engram.experiments.pools.worker_messages import EventReceiver, EventSender
from engram.io import _machine_id
from engram.records import RunDirectory, run_id
from engram.records.locks import Claims
from tests.forks import FORKS
from tests.refusals import refuses

BASE = {"stream": {"data": "blobs"}, "training": {"epochs": 1}, "seeds": 2}
RECIPES = [BASE | {"method": name} for name in ("ER", "Finetune")]
HERE = [name for name in POOLS if name != "ray"]  # test_ray has a cluster for that


class Notes(Callback):
    """Writes down everything that it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.begun: list[tuple[int, int]] = []
        self.steps: list[tuple[int, int, int]] = []
        self.stages: list[tuple[tuple[str, int, str], int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, plans: Sequence[Plan], done: int) -> None:
        self.begun.append((len(plans), done))

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        assert plans
        self.steps.append((stage, done, total))

    def stage(self, plan: Plan, stage: int, rows: object) -> None:
        assert len(rows) > 0  # type: ignore[arg-type]
        self.stages.append((plan.key, stage))


def sweep(pool: str, out: Path, **options: object) -> engram.Result:
    return engram.sweep(RECIPES, pool=pool, out=out, device="cpu", workers=2, **options)


@pytest.mark.parametrize("pool", HERE)
def test_progress_numbers_and_running_anew_in_every_pool(tmp_path: Path, pool: str) -> None:
    first = Notes()
    result = sweep(pool, tmp_path, callback=first)
    alone = engram.sweep(RECIPES, pool="serial", device="cpu")
    assert result.runs == alone.runs
    assert result.labels == ["ER", "Finetune"]
    np.testing.assert_allclose(result.matrix, alone.matrix, atol=0.02)
    tasks = result.matrix.shape[1]
    expected = {(tuple(run), stage) for run in result.runs for stage in range(tasks)}
    assert first.begun == [(4, 0)]
    assert len(first.stages) == len(expected)
    assert set(first.stages) == expected
    assert first.steps
    second = Notes()
    sweep(pool, tmp_path, callback=second)
    assert second.begun == [(4, 4)]
    assert not second.stages
    third = Notes()
    again = sweep(pool, tmp_path, callback=third, rerun=True)
    assert third.begun == [(4, 0)]
    assert set(third.stages) == expected
    np.testing.assert_array_equal(again.matrix, result.matrix)


@pytest.mark.parametrize("pool", HERE)
def test_a_deadline_stops_every_pool_and_the_same_call_goes_on(tmp_path: Path, pool: str) -> None:
    stopped = sweep(pool, tmp_path, deadline=time.monotonic() - 1)
    assert len(stopped) == 0
    assert len(sweep(pool, tmp_path, deadline=time.monotonic() + 600)) == 4


def test_changed_experiments_are_noted_once_by_processes(tmp_path: Path) -> None:
    data = tmp_path / "own.npz"
    content = BASE | {"stream": {"data": str(data)}, "method": "Finetune"}
    rng = np.random.default_rng(0)
    for _ in range(2):
        x, y = rng.normal(size=(80, 4)).astype(np.float32), np.arange(80) % 4
        np.savez(data, train_x=x[:60], train_y=y[:60], test_x=x[60:], test_y=y[60:])
        told = Notes()
        engram.sweep([content], pool="processes", out=tmp_path / "out", callback=told, workers=1)
    assert len(told.notes) == 1
    assert "the data" in told.notes[0]


FATAL = """
import os, signal
from engram.methods import Finetune
class Fatal(Finetune):
    def start(self, learner, task):
        if not os.path.exists({mark!r}):
            open({mark!r}, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
class Always(Finetune):
    def start(self, learner, task):
        os._exit(9)
"""


def test_another_worker_goes_on_for_one_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the others never stop talking, and what the dead one had begun is done once."""
    (tmp_path / "fatal_method.py").write_text(FATAL.format(mark=str(tmp_path / "died")))
    monkeypatch.syspath_prepend(tmp_path)
    fatal = BASE | {"method": "fatal_method:Fatal", "seeds": 1}
    recipes, told = [fatal, RECIPES[1] | {"seeds": 1}], Notes()
    result = engram.sweep(
        recipes, pool="processes", out=tmp_path / "out", workers=2, callback=told, device="cpu"
    )
    assert result.labels == ["Fatal", "Finetune"]
    assert told.notes == [
        "Fatal: its worker process ended early (exit code -9); another one continues it"
    ]
    np.testing.assert_array_equal(result.matrix[0], result.matrix[1])
    left = tmp_path / "out" / f".results.parquet.tmp-{_machine_id()}-{2**22 + 1}-0"  # of nobody
    left.touch()
    engram.sweep(recipes, pool="processes", out=tmp_path / "out", device="cpu")
    assert not left.exists()  # though all was recorded
    monkeypatch.setattr("engram.experiments.pools.planner.MOST_TRIES", 1)
    with pytest.raises(EngramError, match=r"Always: its worker process ended early .*code 9\); wh"):
        engram.sweep([BASE | {"method": "fatal_method:Always"}], pool="processes", out=tmp_path)


def test_notes_of_a_worker_are_passed_on_once_its_runs_have_begun() -> None:
    sent: list[tuple[object, ...]] = []
    worker, told = EventSender(sent.append), Notes()
    worker.note("what the parent has said")
    worker.begin([], 0)
    worker.note("a.safetensors: is damaged")
    for words in sent:
        EventReceiver(told, []).receive(*words)  # type: ignore[arg-type]
    assert told.notes == ["a.safetensors: is damaged"]


def test_what_goes_wrong_in_a_worker_is_said_and_the_rest_is_kept(tmp_path: Path) -> None:
    wrong = BASE | {"method": "ER", "training": {"epochs": 1, "optimizer": "sgd", "lr": 1e-3},
                    "model": {"name": "cnn"}}  # fmt: skip
    with pytest.raises(EngramError, match="ER: "):
        engram.sweep([wrong, RECIPES[1]], pool="processes", out=tmp_path, workers=1)
    assert engram.read(tmp_path).labels == ["Finetune"]


OPEN = """
import os
from engram.methods import Finetune
class Open(Finetune):
    def start(self, learner, task):
        assert os.environ["ENGRAM_TEST_WORD"] == "sesame"
"""


def test_workers_see_the_environment_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are forks of a process that may have begun before the environment was changed."""
    (tmp_path / "open_method.py").write_text(OPEN)
    monkeypatch.syspath_prepend(tmp_path)
    recipe = BASE | {"method": "open_method:Open", "seeds": 1}
    for word in ("hocus", "sesame"):
        monkeypatch.setenv("ENGRAM_TEST_WORD", word)
        options = {"pool": "processes", "out": tmp_path / word, "workers": 1, "device": "cpu"}
        if word == "sesame":
            assert engram.sweep([recipe], **options).labels == ["Open"]
        else:
            with pytest.raises(EngramError, match="Open: "):
                engram.sweep([recipe], **options)


def test_workers_are_forked_where_nothing_runs_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_pool.worker_context("cpu").get_start_method() == "forkserver"
    monkeypatch.setattr(process_pool, "resolve_device", torch.device)
    assert process_pool.worker_context("cuda").get_start_method() == "spawn"


def test_jobs_of_an_array_share_a_directory_and_train_every_run_once(tmp_path: Path) -> None:
    """Several processes with one and the same command, as a scheduler starts them."""
    recipes = [BASE | {"method": name, "seeds": 3} for name in ("ER", "Finetune")]
    context = process_pool.worker_context("cpu")
    options = {"pool": "serial", "out": tmp_path, "device": "cpu"}
    jobs = [context.Process(target=engram.sweep, args=(recipes,), kwargs=options) for _ in range(3)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(120)
    assert 0 in [job.exitcode for job in jobs]  # who finds only what others train says so and ends
    told = Notes()
    result = engram.sweep(recipes, callback=told, **options)
    assert told.begun == [(6, 6)]
    assert set(stages_written(tmp_path).values()) == {1}
    alone = engram.sweep(recipes, pool="serial", device="cpu")
    np.testing.assert_array_equal(result.matrix, alone.matrix)


def test_runs_of_another_process_are_left_to_it_and_named_once(tmp_path: Path) -> None:
    """Two calls at once share a directory: none of them fails for what the other one trains."""
    ids = [Recipe.of(one).id for one in RECIPES]
    others = Claims(RunDirectory(tmp_path).path)
    assert all(others.take(run_id(ids[0], seed)) for seed in (0, 1))
    told = Notes()
    found = sweep("processes", tmp_path, callback=told)
    assert {one.recipe for one in found.runs} == {ids[1]}
    assert len(told.notes) == 1
    assert "another process is training 2 of these runs (ER, seed 0, ...)" in told.notes[0]
    with pytest.raises(RecordError, match="wait for it, or give another directory"):
        engram.sweep(RECIPES[:1], pool="processes", out=tmp_path, device="cpu", workers=1)
    others.close()
    assert len(sweep("processes", tmp_path)) == 4


def test_unknown_pools_and_what_processes_need() -> None:
    with refuses("pool", near="processes"):
        find_pool("proceses")
    with pytest.raises(BadArgument, match="out: expected a run directory"):
        engram.sweep(RECIPES, pool="processes")


LONG = BASE | {"method": "ER", "seeds": 1, "training": {"epochs": 100000}}


def sweep_for_long(out: str, began: Any) -> None:
    class Tell(Callback):
        def step(self, *_: object) -> None:
            began.set()

    engram.sweep([LONG], pool="processes", out=out, device="cpu", workers=1, callback=Tell())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent_and_leave_a_checkpoint(
    tmp_path: Path, number: signal.Signals
) -> None:
    began = FORKS.Event()
    parent = FORKS.Process(target=sweep_for_long, args=(str(tmp_path), began))
    parent.start()
    assert began.wait(120)  # it trains
    os.kill(parent.pid, number)
    parent.join(120)
    assert parent.exitcode
    ours, end = Claims(tmp_path), time.monotonic() + 120
    while not ours.take(run_id(Recipe.of(LONG).id, 0)):  # the worker's, as long as it lives
        assert time.monotonic() < end
        time.sleep(0.05)
    ours.close()
    assert list((tmp_path / "checkpoint" / "steps").glob("*.safetensors"))
