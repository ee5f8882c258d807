"""Summed optimiser steps per second: one run in a plain eager loop, many runs in lockstep.

    python -m benchmarks.speed.throughput --model mlp --runs 1 8 32 128 512 [--out FILE.json]
    python -m benchmarks.speed.throughput --model gcn --data DIR --runs 1 8 32 128 512

Two works. ``mlp``: two hidden layers of 256, noise of MNIST's shape, batches of 64. ``gcn``: the
skeleton study (CGL), two graph layers of 64, all rows of a task as one batch, class-balanced
cross-entropy; NW-UCLA of the folder DIR, or made skeletons with as many rows.

The eager loop is hand-written PyTorch: the same network with torch's own layers, fused Adam, data
on the device. Lockstep goes through the engine's loop, with all that it does between steps. All
figures of one call come from one process; compare ratios within a call, not across calls.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import platform
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.data import Data
from engram.engine.backend import training_numerics
from engram.engine.engine import Engine
from engram.engine.loop import train_task
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.methods import Finetune
from engram.models.build import build
from engram.models.forward_pass import PLAIN
from engram.models.layers import BatchNorm
from engram.reproduce.papers.cgl_paper import PAPER, TASKS, UCLA, CGLProtocol, apply_orders, recipe
from engram.streams import class_incremental
from engram.streams.task_orders import class_order

WARM, TRIAL = 10, 10  # steps before the clock, and steps whose time says how many to time
SECONDS = 1.5  # of each figure
ENDLESS = 10**9  # epochs: the stopwatch ends the training
CLOSED = -1e9  # logit of a class that is not open yet


@dataclass(frozen=True)
class Way:
    """A way to train in lockstep: whether its step is captured or compiled, where it works."""

    name: str
    compile: bool
    capture: bool
    devices: tuple[str, ...] = ("cpu", "cuda")


WAYS = (
    Way("mapped", compile=False, capture=False),
    Way("captured", compile=False, capture=True, devices=("cuda",)),
    Way("compiled", compile=True, capture=True, devices=("cuda",)),
)


# -- clock -----------------------------------------------------------------------------------------
class Enough(Exception):
    """Raised by the stopwatch to end a training that would go on."""


class Stopwatch:
    """Called with the number of steps done so far; times as many as fill the asked time."""

    def __init__(self, device: str, seconds: float = SECONDS) -> None:
        self.device, self.seconds = device, seconds
        self.marks: list[tuple[int, float]] = []  # (steps done, time), at most three
        self._next = WARM

    def __call__(self, done: int, total: int = 0) -> None:
        if done < self._next:
            return
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.marks.append((done, time.perf_counter()))
        self._next = done + TRIAL
        if len(self.marks) == 1:
            return
        steps, spent = self.last
        if spent >= self.seconds or len(self.marks) == 3:
            raise Enough
        self._next = done + math.ceil(steps * self.seconds / spent)

    @property
    def last(self) -> tuple[int, float]:
        """Steps and seconds between the last two marks."""
        (before, began), (after, ended) = self.marks[-2:]
        return after - before, ended - began


# -- works -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Work:
    """What is trained: any number of different runs, and a step of the first one by hand."""

    name: str
    runs: Callable[[int], list[Run]]
    plain: Callable[[Run, str], Callable[[], None]]


def made_images(rows: int = 12800) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (rows, 1, 28, 28), dtype=torch.uint8, generator=generator)
    y = torch.arange(rows) % 10
    return Data.from_arrays(x, y.numpy(), test=(x[:100], y[:100].numpy()), name="noise")


def mlp(rows: int = 12800, batch: int = 64) -> Work:
    stream = class_incremental(made_images(rows), classes_per_task=10)
    run = Run(stream=stream, method=Finetune(), training=Training(batch_size=batch))
    return Work("mlp", lambda count: [replace(run, seed=s) for s in range(count)], plain_mlp)


def plain_mlp(run: Run, device: str) -> Callable[[], None]:
    """Data as one tensor, index batches."""
    x, y = torch.as_tensor(run.stream.data.x).to(device), run.stream.data.labels.to(device)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=run.training.lr, fused=True)
    rows = run.stream.tasks[0].train
    batches = rows[torch.randperm(len(rows))].to(device).split(run.training.batch_size)
    number = 0

    def step() -> None:
        nonlocal number
        now = batches[number % len(batches)]
        number += 1
        optimizer.zero_grad()
        loss: Tensor = F.cross_entropy(net(x[now].float() / 255), y[now])
        loss.backward()
        optimizer.step()

    return step


def gcn(folder: str | None = None, per_class: int = 150) -> Work:
    """The skeleton study's finetuning; 120 of 150 made sequences of a class are training rows."""
    made = CGLProtocol(data="skeletons", edges="ucla", data_options={"per_class": per_class})
    preset = PAPER if folder else replace(PAPER, ucla=made)
    data = recipe(preset, UCLA, "BARE").data(folder)

    def runs(count: int) -> list[Run]:
        """Runs begin with different tasks or seeds, as those that a study trains do."""
        seeds = -(-count // len(TASKS))
        turns = [[*range(k, len(TASKS)), *range(k)] for k in range(len(TASKS))]
        orders = [tuple(class_order(TASKS, turn)) for turn in turns]
        recipes = apply_orders(recipe(preset, UCLA, "BARE", seeds=seeds), orders)
        pairs = [(one, one.build_stream(data)) for one in recipes]
        pairs.sort(key=lambda pair: -len(pair[1].tasks[0].train))  # all batches are as long as one
        return [
            Run(stream=s, method=r.method, model=r.model, training=r.training, seed=seed)
            for seed in range(seeds)
            for r, s in pairs
        ][:count]

    return Work("gcn", runs, plain_gcn)


class PlainNorm(nn.BatchNorm1d):
    """Torch's batch normalisation over [..., F]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(-1, x.shape[-1])).view_as(x)


def plain_network(run: Run, device: str) -> nn.Module:
    """The run's network with its initial weights and with torch's own batch normalisation."""
    net: nn.Module = build(
        run.model, sample_shape=run.stream.data.sample_shape, classes=len(run.stream.order),
        seed=run.seed,
    )  # fmt: skip
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, BatchNorm):
                setattr(module, name, PlainNorm(child.features))
    return net.to(device).train()


def plain_gcn(run: Run, device: str, net: nn.Module | None = None) -> Callable[[], None]:
    """The whole task as one batch on the device, class weights computed once."""
    task, net = run.stream.tasks[0], net or plain_network(run, device)
    x, y = run.stream.data.x[task.train].to(device), run.stream.targets[task.train, 0].to(device)
    closed = (run.stream.opening > 0).to(device)
    weight = 1 / torch.bincount(y, minlength=len(closed)).clamp(min=1)
    optimizer = torch.optim.Adam(net.parameters(), lr=run.training.lr, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        token = PLAIN.set(True)  # torch's own operations
        logits = net(x).logits.masked_fill(closed, CLOSED)
        PLAIN.reset(token)
        F.cross_entropy(logits, y, weight=weight).backward()
        optimizer.step()

    return step


# -- figures ---------------------------------------------------------------------------------------
def time_eager(work: Work, device: str, seconds: float = SECONDS) -> Stopwatch:
    step, watch, done = work.plain(work.runs(1)[0], device), Stopwatch(device, seconds), 0
    try:
        while True:
            step()
            done += 1
            watch(done)
    except Enough:
        return watch


class Lockstep:
    """Runs in the first stage of a study, trained as the engine trains them."""

    def __init__(self, work: Work, runs: int, device: str, way: Way) -> None:
        self.specs, self.way = work.runs(runs), way
        engine = Engine(self.specs, device=device)
        self.learners = [engine.learner(spec) for spec in self.specs]

    def drive(self, progress: Callable[[int, int], None], epochs: int = ENDLESS) -> None:
        """Train until `progress` has seen enough, or for so many epochs."""
        training = replace(self.specs[0].training, epochs=epochs, iterations=0)
        with contextlib.suppress(Enough), training_numerics(training.precision):
            train_task(
                self.learners, [spec.method for spec in self.specs], training, 0, mapped=True,
                capture=self.way.capture, compile=self.way.compile, progress=progress,
            )  # fmt: skip


def time_lockstep(
    work: Work, runs: int, device: str, way: Way, seconds: float = SECONDS
) -> Stopwatch:
    watch = Stopwatch(device, seconds)
    Lockstep(work, runs, device, way).drive(watch)
    return watch


def figures(
    work: Work,
    runs: list[int],
    device: str,
    seconds: float = SECONDS,
    names: Collection[str] = ("mapped", "captured", "compiled"),
) -> Iterator[dict[str, Any]]:
    """One row per way and number of runs, the eager loop first; `ratio` is to that one."""
    ways = [way for way in WAYS if device in way.devices and way.name in names]
    cases = [(None, 1), *((way, count) for count in runs for way in ways)]
    base = 0.0
    for way, count in cases:
        if way is None:
            steps, spent = time_eager(work, device, seconds).last
        else:
            steps, spent = time_lockstep(work, count, device, way, seconds).last
        rate = count * steps / spent
        base = base or rate
        yield {
            "path": way.name if way else "eager", "runs": count, "timed_steps": steps,
            "steps_per_second": round(rate, 1), "ratio": round(rate / base, 3),
        }  # fmt: skip
        gc.collect()  # a captured step and its trainer point at each other
        if device == "cuda":
            torch.cuda.empty_cache()


def facts(device: str) -> dict[str, Any]:
    """What the figures of a call depend on besides the work."""
    cpu = f"CPU, {platform.machine()}, {os.cpu_count()} cores"
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else cpu,
        "threads": torch.get_num_threads(), "torch": torch.__version__,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    best = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=("mlp", "gcn"), default="mlp")
    parser.add_argument("--data", metavar="DIR", help="folder with NW-UCLA, for the gcn")
    parser.add_argument("--device", choices=("cpu", "cuda"), default=best)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 8, 32])
    known = [way.name for way in WAYS]
    parser.add_argument("--ways", nargs="+", choices=known, default=known)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="timed per figure")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    if given.data and given.model == "mlp":
        parser.error("--data: the mlp trains on noise")
    work = mlp() if given.model == "mlp" else gcn(given.data)
    first = work.runs(1)[0]
    batch = first.training.batch_size or len(first.stream.tasks[0].train)
    table: dict[str, Any] = {
        "model": given.model, "data": first.stream.data.name, **facts(given.device),
        "precision": first.training.precision, "matmul": torch.get_float32_matmul_precision(),
        "rows_per_batch": batch, "rows": [],
    }  # fmt: skip
    print(", ".join(f"{k} {v}" for k, v in table.items() if k != "rows"), flush=True)
    for row in figures(work, given.runs, given.device, given.seconds, given.ways):
        print(
            f"{row['path']:12s} {row['runs']:5d} runs {row['steps_per_second']:12,.0f} steps/s"
            f"  x{row['ratio']:8.2f}", flush=True,
        )  # fmt: skip
        table["rows"].append(row)
        if given.out:  # after every row: a later one may not fit into memory
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
