"""Which kernels a step of a paper's row spends its device time in, and what it costs side by side.

    python -m benchmarks.speed.kernels [--rows LB DGR] [--layout last first] [--precision tf32]
    python -m benchmarks.speed.kernels --paper iirc --rows ER LUCIR --precision tf32 bf16
    python -m benchmarks.speed.kernels --paper rwalk --rows Vanilla RWalk --batch-size 64
    python -m benchmarks.speed.kernels --rows LB --streams 1 3     # images per second of all runs
    python -m benchmarks.speed.kernels --rows LB --blocks plain fused --streams 1 --steps 600

``confer``: LeNet on 100 x 100 images, batches of 128; ``iirc``: ResNet-32 on 32 x 32; ``rwalk``:
four convolutions on 32 x 32, rows with samples. All images are noise. Steps of the second task, run
without capture, so that every kernel is seen; milliseconds of the device in one step, the longest
first. `--layout` compares images with their channels last in memory, as the engine has them on
CUDA, with channels first; `--blocks` torch's kernels for batch norm, ReLU and pooling with our own,
which the engine takes where a network's are proven (LeNet's), as does ``usual``; ``fused`` asks for
those of ResNet-32 in bf16, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

import engram
from engram.data import Data
from engram.engine import grouping
from engram.engine.engine import Engine
from engram.engine.factory import LearnerFactory
from engram.engine.run import Run
from engram.engine.training import Training
from engram.errors import bad
from engram.models import conv3x3
from engram.recipes.names import build_method
from engram.reproduce.papers import (
    confer_preset,
    confer_rows,
    iirc_preset,
    rwalk_preset,
    rwalk_rows,
)

STEPS, SHOWN = 40, 24
LAYOUTS = ("last", "first")
BLOCKS = ("usual", "plain", "fused")


class Case(NamedTuple):
    """What is measured."""

    row: str
    precision: str
    layout: str
    blocks: str

    def __str__(self) -> str:
        return f"{self.row}, {self.precision}, channels {self.layout}, {self.blocks} blocks"


def cases(given: Any) -> Iterator[Case]:
    yield from map(Case._make, product(given.rows, given.precision, given.layout, given.blocks))


def noise(size: int, rows: int, classes: int = 4) -> Data:
    """Images of noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (rows, 3, size, size), dtype=torch.uint8, generator=generator)
    y = torch.arange(rows) % classes
    return Data.from_arrays(x, y, test=(x[:64], y[:64]), name="noise")


def runs_of(given: Any, row: str, precision: str, iterations: int, count: int) -> list[Run]:
    """Seeds of a row with the settings of its paper, two tasks of two classes."""
    if given.paper == "confer":
        block = confer_rows.Block(
            dataset="FER-2013", setting="Class-IL", order="O1", augmentation="without"
        )
        method = confer_rows.method_spec(confer_preset.PAPER, row, block)
        model: Any = confer_rows.model_spec(confer_preset.PAPER, row)
        settings: dict[str, Any] = {"optimizer": "adam", "lr": 2.5e-4, "optim_reset": False}
        stream = engram.class_incremental(noise(given.size or 100, 1200), classes_per_task=2)
    elif given.paper == "rwalk":
        paper = rwalk_preset.PAPER
        printed = rwalk_rows.Row(
            dataset="CIFAR-100",
            setting=rwalk_preset.SINGLE,
            method=row,
            strength=10.0,
            samples=True,
        )
        method = rwalk_rows.method_spec(paper, paper.protocol("CIFAR-100"), printed)
        model = "cnn"
        settings = {"optimizer": "adam", "lr": 1e-3}
        stream = engram.class_incremental(noise(given.size or 32, 2400), classes_per_task=2)
    else:
        method, model = iirc_preset.method_spec(iirc_preset.PAPER, row, 20), "resnet32"
        settings = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "augment": ("crop", "flip")}
        settings |= {"loss": "bce"}
        stream = engram.class_incremental(noise(given.size or 32, 2400), classes_per_task=2)
    training = Training(
        iterations=iterations, batch_size=given.batch_size, precision=precision,
        scope="seen", **settings,
    )  # fmt: skip
    return [
        Run(stream=stream, method=build_method(method), model=model, training=training, seed=seed)
        for seed in range(count)
    ]


def engine_of(runs: list[Run], given: Any, case: Case, **options: Any) -> Engine:
    made = Engine(runs, device=given.device, **options)
    if made.device.type == "cuda":
        fused, last = case.blocks != "plain", case.layout == "last"
        conv3x3.PROVEN = case.blocks == "fused"  # ResNet-32's are switched off otherwise
        made._factory = LearnerFactory(made.device, channels_last=last, fused=fused)
        if case.blocks == "fused" and not made.networks(runs[0]).fused:
            raise bad("--blocks", "plain, where a network's kernels are not proven", "fused")
    return made


# -- kernels ---------------------------------------------------------------------------------------
def kernels(runs: list[Run], given: Any, case: Case) -> dict[str, float]:
    """Milliseconds of a step of the second task by kernel."""
    stages = engine_of(runs, given, case, capture=False).stages()
    next(stages)
    cuda = torch.cuda.is_available() and given.device != "cpu"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        next(stages)
    found: dict[str, float] = {}
    for one in seen.key_averages():
        spent = one.self_device_time_total if cuda else one.self_cpu_time_total
        if spent:
            found[one.key] = found.get(one.key, 0.0) + spent / 1e3 / runs[0].training.iterations
    return found


def show_kernels(given: Any) -> None:
    for case in cases(given):
        runs = runs_of(given, case.row, case.precision, given.steps, 1)
        found = kernels(runs, given, case)
        print(f"\n{case}: {sum(found.values()):.2f} ms a step", flush=True)
        for name in sorted(found, key=found.__getitem__, reverse=True)[:SHOWN]:
            print(f"  {found[name]:7.3f}  {name[:110]}")


# -- several runs ----------------------------------------------------------------------------------
def rates(given: Any, case: Case) -> Iterator[tuple[int, float]]:
    """How many runs at once, and images of the task per second of all of them, captured."""
    for count in given.streams:
        runs = runs_of(given, case.row, case.precision, given.steps, count)
        grouping.SIDE_BY_SIDE = count
        ended: dict[int, float] = {}
        for one in engine_of(runs, given, case).stages():
            ended[one.stage] = time.perf_counter()
        yield count, count * given.steps * given.batch_size / (ended[1] - ended[0])


def show_rates(given: Any) -> None:
    for case in cases(given):
        for count, rate in rates(given, case):
            print(f"{f'{case}, {count} at once':60s}{rate:10,.0f} images/s", flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--paper", choices=("confer", "iirc", "rwalk"), default="confer")
    parser.add_argument("--rows", nargs="+", default=["LB", "DGR"])
    parser.add_argument("--precision", nargs="+", default=["tf32"])
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=["last"])
    parser.add_argument("--blocks", nargs="+", choices=BLOCKS, default=["usual"])
    parser.add_argument("--streams", type=int, nargs="+", help="runs side by side, timed")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--size", type=int, default=0, help="of images, where not the paper's")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    show_rates(given) if given.streams else show_kernels(given)


if __name__ == "__main__":
    main()
