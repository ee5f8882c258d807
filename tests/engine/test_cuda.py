"""The paths that only a CUDA device takes, against the CPU in double precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from engram import methods
from engram.checks import toy_runs
from engram.checks.check_suite import make_default
from engram.data import Data
from engram.engine import engine as running
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.trainers.captured import CapturedTrainer
from engram.engine.training import Training
from engram.learner.tensor_tree import tree_map
from engram.memory import Memory
from engram.models.forward_pass import PLAIN
from engram.models.kernels import norm_pool
from engram.models.layers import BatchNorm
from engram.streams import class_incremental

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

# sums in another order differ in the last bits, and a penalty's curvature lifts them
CLOSE = 1e-9


def trained(runs, **options):
    engine = Engine(runs, **options)
    found = {}
    for stage in engine.stages():
        one = stage.learner
        tree = (one.vector, one.buffers, one.state, one.opt)
        found[stage.run, stage.stage] = tree_map(lambda leaf: leaf.detach().cpu().clone(), tree)
    return found


def apart(first, second):
    assert first.keys() == second.keys()
    return max(toy_runs.largest_gap(first[key], second[key]) for key in first)


@pytest.mark.parametrize("model", ["plain", "normed", "dropped"])
@pytest.mark.parametrize("name", methods.__all__)
class TestEveryMethod:
    def runs(self, name, model, count):
        method = toy_runs.shrink_memory(
            toy_runs.shrink_settings(make_default(getattr(methods, name)))
        )
        return toy_runs.make_runs(
            method, toy_runs.make_streams(orders=toy_runs.ORDERS[:count]), model=model
        )

    def test_captured_alone(self, name, model):
        runs = self.runs(name, model, 1)
        engine = Engine(runs, device="cuda")
        assert engine.capture
        assert not engine.maps([0])
        assert apart(trained(runs, device="cuda"), trained(runs, device="cpu")) < CLOSE

    def test_captured_in_lockstep(self, name, model):
        runs = self.runs(name, model, 3)
        cuda = trained(runs, device="cuda", together=True)
        assert apart(cuda, trained(runs, device="cpu", together=False)) < CLOSE


OTHERS = {
    "accumulate": 2, "batch_size": 8, "ema": 0.9, "schedule": "cosine", "warmup_steps": 3,
    "nesterov": True, "clip_value": 0.05, "label_smoothing": 0.1,
}  # fmt: skip


# torch's compiler warns of torch's own older parts
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize(
    ("name", "compile"),
    [(name, False) for name in ("Finetune", "ER", "SI", "RWalk", "AGEM", "EWC")]
    + [("RWalk", True)],
)
def test_options_of_a_training(name, compile, together):
    """Rates that change from step to step, parts of a batch, averages: recorded and compiled."""
    method = toy_runs.shrink_memory(toy_runs.shrink_settings(make_default(getattr(methods, name))))
    training = replace(toy_runs.EXACT, **OTHERS)
    runs = toy_runs.make_runs(method, toy_runs.make_streams(), model="normed", training=training)
    cuda = trained(runs, device="cuda", together=together, compile=compile)
    assert apart(cuda, trained(runs, device="cpu", together=False)) < CLOSE


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", ["mlp", "resnet32", {"name": "lenet", "padding": 2, "hidden": 8}])
def test_half_precision(model, together):
    """Overflow halves the scale inside of a recording; weights stay in single precision."""
    runs = [
        replace(run, model=model) for run in images(precision="fp16", lr=1e-3, loss="balanced")[:2]
    ]
    single = [replace(r, training=replace(r.training, precision="float32")) for r in runs]
    for half, plain in zip(runs, single, strict=True):
        found = trained([half, half], device="cuda", together=together)
        near = trained([plain, plain], device="cuda", together=together)
        for key, (vector, *_, opt) in found.items():
            assert vector.dtype == torch.float32
            assert torch.isfinite(vector).all()
            assert 0 < float(opt["t"]) <= float(near[key][3]["t"])
            assert 0 < toy_runs.largest_gap(vector, near[key][0]) < 0.1


class Images(nn.Module):
    """Convolutions, batch norm, pooling: what channels-last must not change."""

    def __init__(self, sample_shape):
        super().__init__()
        self.features = 6
        self.first, self.norm = nn.Conv2d(sample_shape[0], 4, 3, padding=1), BatchNorm(4)
        self.second = nn.Conv2d(4, 6, 3, stride=2, bias=False)

    def forward(self, x):
        return self.second(self.norm(self.first(x)).relu()).relu().mean((-2, -1))


def images(**training):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 4
    x = torch.rand(120, 3, 8, 8, generator=generator) + y[:, None, None, None] / 4
    data = Data.from_arrays(x, y.numpy(), test=(x[:20], y[:20].numpy()), name="squares")
    chosen = {"epochs": 3, "batch_size": 16, "optimizer": "sgd", "lr": 0.05} | training
    training = Training(**{"precision": "float64"} | chosen)
    stream = class_incremental(data, classes_per_task=2)
    return [
        Run(stream=stream, method=method, model=Images, training=training)
        for method in (methods.Finetune(), methods.ER(), methods.SI(strength=0.1), methods.LwF())
    ]


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_many_parameters_share_one_count_of_steps(optimizer, capture):
    """In single precision, where the optimiser is fused over a list of parameters."""
    run = images(optimizer=optimizer, lr=1e-3, precision="float32")[0]
    cuda = trained([run], device="cuda", capture=capture)
    cpu = trained([run], device="cpu")
    assert float(cuda[0, 1][3]["t"]) == float(cpu[0, 1][3]["t"]) > 0
    assert apart(cuda, cpu) < 1e-2


@pytest.mark.parametrize(
    "training",
    [
        {}, {"optimizer": "adam", "lr": 1e-3}, {"augment": ("flip", "crop")}, {"clip": 0.1},
        {"iterations": 20}, {"incomplete_batch": "drop"}, {"schedule": "step", "milestones": (1,)},
        {"evaluate_every": 7}, OTHERS,
    ],
    ids=str,
)  # fmt: skip
def test_convolutions_with_channels_last(training):
    close = 1e-6 if training.get("optimizer") == "adam" else CLOSE
    for run in images(**training):
        cuda, cpu = (trained([run], device=device) for device in ("cuda", "cpu"))
        assert apart(cuda, cpu) < close, run.method


def test_blocks_at_once_train_the_same(monkeypatch):
    """Replayed, with kernels of our own for batch norm, ReLU and pooling, against torch's."""
    taken, own = [], norm_pool.run_training
    monkeypatch.setattr(norm_pool, "run_training", lambda *a, **k: taken.append(1) or own(*a, **k))
    for run in images(precision="float32", lr=1e-3):
        run, found = replace(run, model={"name": "lenet", "padding": 2, "hidden": 8}), []
        parts = Engine([run], device="cuda").parts()
        assert not any(way.mapped for _, ways in parts for way in ways.values())
        for plain in (True, False):
            token = PLAIN.set(plain)
            found.append(trained([run], device="cuda"))
            PLAIN.reset(token)
            assert bool(taken) is not plain
        # the last bit of the inputs moves this by 1e-6, or a ReLU, which moves it by up to .03
        assert apart(*found) < 5e-2, run.method
        taken.clear()


@pytest.mark.parametrize("compile", [False, True])
def test_residual_networks_keep_torchs_layers(compile):
    run = replace(images()[0], model="resnet32")
    assert not Engine([run], device="cuda", compile=compile).networks(run).fused


def test_cudnn_searches_for_batches_of_the_usual_length_alone(monkeypatch):
    searched = {}

    def step(self, length, own=CapturedTrainer._captured_step):
        searched.setdefault(length, set()).add(torch.backends.cudnn.benchmark)
        own(self, length)

    monkeypatch.setattr(CapturedTrainer, "_captured_step", step)
    trained(images(batch_size=16)[:1], device="cuda")  # 60 rows of a task: three and a shorter one
    assert searched == {16: {True}, 12: {False}}


def test_precisions_reach_the_convolutions():
    def away(precision):
        run = images(precision=precision, epochs=1)[0]
        return float((trained([run], device="cuda")[0, 1][0].double() - exact).abs().max())

    exact = trained(images(epochs=1)[:1], device="cuda")[0, 1][0]
    assert 0 < 5 * away("float32") < away("tf32")
    assert 5 * away("tf32") < away("bf16") < 0.1


def test_a_step_that_cannot_be_captured_runs_as_it_is():
    class Synced(Images):
        def forward(self, x):
            return super().forward(x) * (1.0 if x.sum().item() > -1 else 0.0)

    run = images()[0]
    hosted = Run(stream=run.stream, method=run.method, model=Synced, training=run.training)
    with pytest.warns(UserWarning, match="not be captured"):
        found = trained([hosted], device="cuda")
    assert apart(found, trained([run], device="cpu")) < CLOSE


@pytest.mark.parametrize("together", [False, True])
def test_rows_that_stay_on_disk_are_fetched_beside_captured_steps(tmp_path, together):
    x = torch.randint(0, 256, (60, 3, 6, 6), dtype=torch.uint8)
    on_disk = np.memmap(tmp_path / "x", np.uint8, "w+", shape=tuple(x.shape))
    on_disk[:] = x.numpy()
    training = Training(epochs=2, batch_size=7, precision="float64", augment=("flip",))
    ends = []
    for inputs, device in ((x, "cpu"), (x, "cuda"), (on_disk, "cuda")):
        stream = class_incremental(Data.from_arrays(inputs, torch.arange(60) % 4))
        memory = Memory(total=8, policy="reservoir")
        runs = [Run(stream=stream, method=methods.DERpp(memory=memory), model="mlp",
                    training=training, seed=k) for k in range(3)]  # fmt: skip
        ends.append(trained(runs, device=device, together=together))
    assert apart(ends[0], ends[2]) < CLOSE
    assert apart(ends[1], ends[2]) == 0


def test_a_group_beyond_the_memory_of_the_device_splits(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8192, 64, generator=generator)
    data = Data.from_arrays(x.double(), (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())
    stream = class_incremental(data, classes_per_task=2)
    training = Training(batch_size=4096, epochs=1, precision="float64")
    runs = [
        Run(stream=stream, method=methods.Finetune(), training=training, seed=seed,
            model={"name": "mlp", "hidden": [256, 256]})
        for seed in range(32)
    ]  # fmt: skip
    sizes, train_task = [], running.train_task

    def counted(learners, *args, **options):
        sizes.append(len(learners))
        return train_task(learners, *args, **options)

    monkeypatch.setattr(running, "train_task", counted)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    limit = torch.cuda.memory_reserved() + 0.9 * 2**30  # a step of 32 needs about 2 GiB
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        split = trained(runs, device="cuda", together=True)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert sizes[0] == 32
    assert min(sizes) < 32
    assert apart(trained(runs, device="cuda", together=True), split) < CLOSE
