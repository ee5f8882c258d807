"""Compiled steps give the numbers of plain ones."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._inductor.exc import InductorError

import engram
from engram import methods
from engram.checks.toy_runs import (
    CLOSE,
    EXACT,
    SIZES,
    copy_stage,
    largest_gap,
    make_clouds,
    make_runs,
    make_streams,
    shrink_settings,
    train_runs,
)
from engram.data import Data
from engram.engine.engine import Engine
from engram.engine.factory import LearnerFactory
from engram.engine.run_definition import Run
from engram.engine.trainers import compiled
from engram.errors import BadArgument
from engram.memory import Memory
from tests.refusals import refuses

pytestmark = [
    pytest.mark.skipif(
        not any(map(shutil.which, compiled.COMPILERS)), reason="no C++ compiler to test with"
    ),
    # torch's compiler warns of torch's own older parts
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture
def compilations(monkeypatch):
    """What torch.compile is called with; each graph is compiled for real."""
    seen = []
    real = torch.compile

    def spy(graph, **options):
        seen.append(graph)
        return real(graph, **options)

    monkeypatch.setattr(torch, "compile", spy)
    monkeypatch.setattr(compiled, "_KNOWN", {})
    return seen


@pytest.fixture
def traces(monkeypatch):
    """What torch.compile is called with; the traced operations then run as they are.

    For what tracing decides: a compiler takes ten seconds and would not change it.
    """
    seen = []
    monkeypatch.setattr(torch, "compile", lambda graph, **options: seen.append(graph) or graph)
    monkeypatch.setattr(compiled, "_KNOWN", {})
    return seen


def two_tasks(data=None):
    """Streams of two tasks of unequal sizes: what differs from task to task is compiled once."""
    data = make_clouds(SIZES[:4]) if data is None else data
    return make_streams(data, orders=([0, 2, 1, 3], [1, 3, 0, 2]))


def compile_and_train(runs, together=True):
    engine = Engine(runs, device="cpu", together=together, compile=True)
    return {(s.run, s.stage): copy_stage(s) for s in engine.stages()}


def same_numbers(runs, together=True):
    plain, fused = train_runs(runs, together=together), compile_and_train(runs, together)
    assert plain.keys() == fused.keys()
    for key, one in plain.items():
        assert largest_gap(fused[key].tensors, one.tensors) < CLOSE, key
        assert largest_gap(fused[key].opt, one.opt) < CLOSE, key
    return fused


def test_a_group_of_unequal_sizes_with_batch_norm(compilations):
    same_numbers(make_runs(shrink_settings(methods.RWalk()), make_streams(), model="normed"))
    assert compilations, "nothing was compiled"


def test_corrections_of_adam_are_in_double_precision():
    training = replace(EXACT, optimizer="adam", lr=1e-3, iterations=5)
    runs = make_runs(methods.Finetune(), two_tasks(), training=training)
    plain, fused = train_runs(runs, together=True), compile_and_train(runs)
    assert max(largest_gap(fused[key].vector, one.vector) for key, one in plain.items()) < 1e-14


def test_latents():
    method = methods.LatentReplay(memory=Memory(total=12), root="first_task")
    same_numbers(make_runs(method, two_tasks(), model="normed"))


def test_a_method_with_memory():
    same_numbers(make_runs(shrink_settings(methods.ER(memory=Memory(total=12))), two_tasks()))


@pytest.mark.parametrize(("batch_size", "how"), [(16, "compilations"), (0, "traces")])
def test_a_memory_mapped_input_is_read_in_every_step(batch_size, how, tmp_path, request):
    graphs = request.getfixturevalue(how)
    data = make_clouds(SIZES[:4])
    np.save(tmp_path / "x.npy", data.x.numpy())
    mapped = replace(data, x=np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert not isinstance(mapped.x, torch.Tensor)
    training = replace(EXACT, batch_size=batch_size)
    method = methods.ER(memory=Memory(total=12))
    plain, fused = (make_runs(method, two_tasks(one), training=training) for one in (data, mapped))
    eager, found = train_runs(plain, together=True), compile_and_train(fused)
    for key, one in eager.items():
        assert largest_gap(found[key].tensors, one.tensors) < CLOSE, key
    assert graphs, "nothing was compiled"


def test_a_step_that_does_not_compile_runs_as_it_is(monkeypatch):
    def broken(graph, **options):
        def call(*tensors):
            raise InductorError(KeyError("buf44"), None)

        return call

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(compiled, "_KNOWN", {})
    with pytest.warns(UserWarning, match="could not be compiled and runs without: KeyError"):
        same_numbers(make_runs(methods.Finetune(), make_streams()[:1]), together=False)


def test_a_single_run_with_adam_dropout_and_whole_batches(compilations):
    training = replace(EXACT, optimizer="adam", lr=1e-3, batch_size=0, epochs=6)
    stream = engram.class_incremental(make_clouds((8, 8, 12, 8)))
    runs = make_runs(methods.Finetune(), [stream], training=training, model="dropped")
    plain, fused = train_runs(runs), compile_and_train(runs, together=False)
    for key, one in plain.items():
        assert largest_gap(fused[key].tensors, one.tensors) < 1e-6, (
            key
        )  # Adam divides by small numbers
    assert len(compilations) == 1, "tasks of 16 and 20 rows share a shape of 64"


def test_stages_and_seeds_of_equal_shape_compile_once(traces):
    data = engram.load("blobs")
    stream = engram.class_incremental(data, classes_per_task=2)
    engram.run(
        stream, method="Finetune", epochs=2, seeds=3, together=False, compile=True, batch_size=16,
    )  # fmt: skip
    assert len({len(task.train) for task in stream}) == 1
    assert len(traces) == 1


def test_methods_compile_apart_where_their_losses_differ(traces):
    stream = engram.class_incremental(engram.load("blobs"), classes_per_task=2)
    engram.run(stream, method=["Finetune", "EWC"], epochs=2, compile=True, batch_size=16)
    # the first task of EWC is that of Finetune; its penalty comes with the second
    assert len(traces) == 2


def test_compiled_functions_do_not_hold_the_data(traces):
    stream = engram.class_incremental(engram.load("blobs"), classes_per_task=2)
    engram.run(stream, method="Finetune", epochs=2, compile=True, batch_size=16)
    owner = traces[0].__self__
    assert not [v for v in vars(owner).values() if isinstance(v, torch.Tensor)]
    assert not list(owner.buffers())


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BadArgument, match=r"compile: expected False, because no C\+\+ compiler"):
        engram.run(engram.load("blobs"), compile=True)


def test_in_many_processes(tmp_path, monkeypatch):
    few = {"data": "blobs", "data_options": {"classes": 4, "per_class": 20}}
    recipe = {"stream": few, "method": "Finetune", "model": {"name": "mlp", "hidden": [8]}}
    how = {"pool": "processes", "workers": 1, "compile": True, "device": "cpu"}
    fused = engram.sweep([recipe], out=tmp_path, **how)
    plain = engram.sweep([recipe], device="cpu")
    np.testing.assert_allclose(fused.matrix, plain.matrix, atol=0.02)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with refuses("compile"):
        engram.sweep([recipe], out=tmp_path / "x", **how)


@pytest.mark.parametrize(
    ("model", "method", "ways"),
    [
        ("lenet", methods.Finetune(), {0: (False, 1), 1: (False, 1)}),
        ("cnn", methods.Finetune(), {0: (True, 1), 1: (True, 1)}),  # no layers to fuse
        ("resnet18_slim", methods.Finetune(), {0: (True, 1), 1: (True, 1)}),
        ("mlp", methods.Finetune(), {0: (True, 2), 1: (True, 2)}),
        (
            {"name": "lenet", "latent": 5, "hidden": 6},
            methods.LatentReplay(root="heldout", memory=Memory(total=4)),
            {-1: (False, 1), 0: (True, 2), 1: (True, 2)},
        ),
    ],
    ids=str,
)
def test_on_cuda_fused_layers_are_not_mapped(model, method, ways):
    y = np.arange(40) % 4
    data = Data.from_arrays(
        np.zeros((40, 3, 16, 16), np.float32), y, test=(np.zeros((4, 3, 16, 16), np.float32), y[:4])
    )
    stream = engram.class_incremental(data, classes_per_task=2)
    runs = [Run(stream=stream, method=method, model=model, seed=seed) for seed in (0, 1)]
    engine = Engine(runs, device="cpu", plan_for="cuda", compile=True)
    assert {stage: tuple(way) for stage, way in engine._execution_modes([0, 1]).items()} == ways
    for fused in (False, True):
        networks = LearnerFactory(torch.device("cpu"), fused=fused).networks(runs[0])
        lenet = model == "lenet" or isinstance(model, dict)
        assert networks.fused is networks.channels_last is (fused and lenet)
