"""Small runs use one thread of the CPU, whatever there are; large ones all."""

from __future__ import annotations

import pytest
import torch

import engram
from engram.engine import backend


@pytest.fixture
def two(monkeypatch):
    """A process whose user has said nothing about threads, on two cores."""
    for name in backend.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


class Seen(engram.Probe):
    """Threads at the end of every stage."""

    found: list[int] = []  # noqa: RUF012

    def after_stage(self, view):
        self.found.append(torch.get_num_threads())
        return view.rows()


def used(**options):
    Seen.found.clear()
    data = engram.load("blobs", classes=4, per_class=10, features=4)
    model = {"name": "mlp", "hidden": [4]}
    result = engram.run(data, model=model, device="cpu", probes=[Seen()], **options)
    return set(Seen.found), result


def test_small_runs_take_one_thread_and_leave_the_rest_as_it_was(two):
    found, result = used()
    assert found == {1}
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    _, again = used()
    assert (again.matrix[:, -1] == result.matrix[:, -1]).all()
    one, other = (r.frame().query("metric == 'loss/total'")["value"] for r in (result, again))
    assert one.tolist() == other.tolist()


def test_large_runs_and_groups_take_all(two, monkeypatch):
    # a run has fewer than a hundred weights, three have more
    monkeypatch.setattr(backend, "SMALL_STEP", 64 * 100)
    assert used()[0] == {1}
    assert used(seeds=3, together=True)[0] == {2}
    monkeypatch.setattr(backend, "SMALL_STEP", 64)
    assert used()[0] == {2}


def test_who_has_chosen_is_left_alone(two, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert used()[0] == {2}


def test_work_counts_places_where_weights_are_used():
    from engram.engine.engine import Engine
    from engram.engine.run_definition import Run

    def places(model, shape):
        x = torch.zeros(16, *shape)
        data = engram.Data.from_arrays(x, torch.arange(16) % 2)
        run = Run(
            stream=engram.class_incremental(data), method=engram.methods.Finetune(), model=model
        )
        learner = Engine([run], device="cpu").learner(run)
        return backend.estimate_work(learner, 1) / learner.vector.numel()

    assert places("mlp", (7,)) == 1
    assert places("mlp", (1, 8, 8)) == 1  # the first layer takes the whole image
    assert places("cnn", (1, 28, 28)) == 28 * 28
