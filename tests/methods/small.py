"""Small studies that the tests of penalties and projections share."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engram.data.dataset import Data
from engram.engine.engine import Engine
from engram.engine.evaluation import test_items as items_of
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.learner.feed import Feed
from engram.learner.learner import RunLearner
from engram.learner.parameter_layout import Networks
from engram.methods.finetune import Finetune
from engram.methods.method import Method
from engram.models.forward_pass import Output
from engram.models.heads import Linear
from engram.streams import Stream, class_incremental, joint, task_incremental

MODEL = {"name": "mlp", "hidden": (8,)}
# small steps: a stiff penalty would lift rounding differences without bound
EXACT = Training(precision="float64", optimizer="sgd", lr=0.01, batch_size=16, epochs=2)
ADAM = Training(epochs=2, batch_size=16)


SIZES = (31, 12, 24, 17, 28, 9)  # training rows per class, so that tasks differ in size


@functools.cache
def clouds() -> Data:
    """Six classes in five dimensions; one object, because runs train together on one data set."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.standard_normal((len(SIZES), 5))

    def drawn(sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        y = np.repeat(np.arange(len(sizes)), sizes)
        return (centres[y] + rng.standard_normal((len(y), 5))).astype(np.float32), y

    return Data.from_arrays(*drawn(SIZES), test=drawn([10] * len(SIZES)))


def stream(per_task: Any = 2, *, multi: bool = False, seed: int | None = None) -> Stream:
    make = task_incremental if multi else class_incremental
    return make(clouds(), classes_per_task=per_task, seed=seed)


class Normed(nn.Module):
    """A network with batch normalisation."""

    def __init__(self, sample_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(sample_shape[0], 8), nn.BatchNorm1d(8)
        self.features = 8

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.first(x)))


def after(
    method: Method, stage: int = -1, training: Training = EXACT, *, on: Stream | None = None,
    model: Any = None, seed: int = 0,
) -> RunLearner:  # fmt: skip
    """The learner of one run right after a stage (the last one by default)."""
    on = stream() if on is None else on
    run = Run(method=method, training=training, stream=on, model=model or MODEL, seed=seed)
    last = range(len(on))[stage]
    for found in Engine([run], device="cpu", together=False).stages():
        if found.stage == last:
            return found.learner
    raise AssertionError("the run ended early")


def gap(
    methods: Sequence[Method], training: Training = EXACT, *, model: Any = None,
    streams: Sequence[Stream] | None = None,
) -> float:  # fmt: skip
    """Largest difference of any parameter between lockstep and loop; task sizes are unequal."""
    streams = streams or [stream((3, 1, 2), seed=seed) for seed in range(len(methods))]
    runs = [
        Run(stream=one, method=method, training=training, seed=seed, model=model or MODEL)
        for seed, (method, one) in enumerate(zip(methods, streams, strict=True))
    ]
    ends: list[dict[int, RunLearner]] = []
    for together in (False, True):
        engine = Engine(runs, device="cpu", together=together)
        assert [len(group) for group in engine.groups()] == [len(runs)]
        ends.append({stage.run: stage.learner for stage in engine.stages()})
    pairs = [(ends[0][place], ends[1][place]) for place in range(len(runs))]
    assert all(bool(torch.isfinite(alone.vector).all()) for alone, _ in pairs)
    return max(float((alone.vector - other.vector).abs().max()) for alone, other in pairs)


def is_finetuning(method: Method, *, model: Any = None, on: Stream | None = None) -> bool:
    """Whether a method does the very steps of finetuning: bitwise, where both train in lockstep.

    Alone, finetuning's optimiser goes from tensor to tensor and a penalty's over one vector; the
    kernel may round the last entries of a tensor differently, so there a tolerance is due.
    """
    streams = [stream(seed=seed) if on is None else on for seed in range(2)]
    ends = []
    for one in (method, Finetune()):
        runs = [
            Run(stream=s, method=one, training=ADAM, model=model or MODEL, seed=seed)
            for seed, s in enumerate(streams)
        ]
        found = Engine(runs, device="cpu", together=True).stages()
        ends.append([stage.learner.vector.clone() for stage in found])
    held, plain = (after(m, model=model, on=streams[0]).vector for m in (method, Finetune()))
    bitwise = all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    return bitwise and torch.allclose(held, plain, rtol=0, atol=1e-12)


def moved(learner: RunLearner, by: float = 0.01) -> Tensor:
    """The learner's weights with every entry shifted."""
    steps = torch.linspace(-1, 1, len(learner.vector), dtype=learner.vector.dtype)
    return learner.vector + by * steps


class Weights:
    """Stands in for a net whose data loss is 0, to look at a penalty alone."""

    def __init__(self, vector: Tensor) -> None:
        self.vector = vector.detach().clone().requires_grad_(True)

    def task(self, _batch: Any) -> Tensor:
        return self.vector.new_zeros(())


def penalty_of(method: Method, learner: RunLearner, vector: Tensor) -> tuple[float, Tensor]:
    """Value and gradient of the penalty at some weights."""
    net = Weights(vector)
    term = method.loss(net, None, learner.state)["penalty"]  # type: ignore[arg-type]
    (slope,) = torch.autograd.grad(term, net.vector)
    return float(term.detach()), slope


class Bare(nn.Module):
    """Logits W x and nothing else."""

    class_rows = ("head.weight",)

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.head = Linear(weight.shape[1], weight.shape[0], bias=False)
        self.head.weight.data = weight.clone()

    def forward(self, x: Tensor) -> Output:
        return Output(x, self.head(x))


def bare(weight: Any, x: Any, y: Any) -> RunLearner:
    """A learner with logits W x in its only task; one row of every class comes first."""
    w, rows = torch.tensor(weight, dtype=torch.float64), torch.tensor(x, dtype=torch.float64)
    count = len(w)
    inputs = torch.cat([torch.zeros(count, w.shape[1], dtype=torch.float64), rows])
    labels = torch.cat([torch.arange(count), torch.tensor(y)])
    data = Data.from_arrays(inputs.numpy(), labels.numpy(), test=(inputs.numpy(), labels.numpy()))
    networks = Networks({"net": Bare(w)}).to(torch.device("cpu"), torch.float64)
    feed = Feed(data, device=torch.device("cpu"), dtype=torch.float64)
    made = RunLearner(
        networks=networks, stream=joint(data), feed=feed, seed=0, scope="seen", reads="own"
    )
    made.open_classes(0)
    return made


def given(learner: RunLearner) -> Tensor:
    """The rows that were given to `bare`."""
    return learner.task.train[len(learner.opened) :]


def accuracy(method: Method, **training: Any) -> float:
    """Share of all test rows that a run gets right in the end, two runs together."""
    on = stream()
    options: dict[str, Any] = {"epochs": 10, "batch_size": 16, "lr": 3e-3} | training
    runs = [
        Run(method=method, training=Training(**options), stream=on, model=MODEL, seed=seed)
        for seed in range(2)
    ]
    *_, one, two = Engine(runs, device="cpu", together=True).stages()
    truth = on.targets[items_of(on)[0]][:, 0].numpy()
    right = [found.scores.argmax(-1) == truth for found in (one, two)]
    return float(np.mean(right))
