"""Images per second of convolutional networks on CUDA: a hand-written loop and the engine's.

    python -m benchmarks.speed.convolutions [--model resnet32 lenet] [--precision float32 tf32 bf16]
    python -m benchmarks.speed.convolutions --model lenet --batch 128

``resnet32``: images of 32 x 32, batches of 128, SGD with momentum. ``lenet``: 100 x 100, batches of
24, Adam. The loop is plain PyTorch: torch's own layers, channels last, cuDNN's search, fused
optimiser, data on the device; eager, and captured as a CUDA graph. The engine's figure goes through
its loop, with all that it does between steps; LeNet has kernels of its own there for batch norm,
ReLU and pooling, and ``engine, plain`` is timed without them. All figures of one call come from one
process; compare ratios within a call, not across calls.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.speed.throughput import ENDLESS, SECONDS, Enough, Stopwatch, facts
from engram.data import Data
from engram.engine.backend import training_numerics
from engram.engine.engine import Engine
from engram.engine.loop import train_task
from engram.engine.run_definition import Run
from engram.engine.trainers.cuda_graph import CapturedStep
from engram.engine.training import Training
from engram.methods import Finetune
from engram.models.build import build
from engram.models.forward_pass import PLAIN
from engram.models.layers import BatchNorm
from engram.streams import class_incremental


@dataclass(frozen=True)
class Work:
    """A network, its images and its optimiser."""

    model: str
    size: int
    batch: int
    training: dict[str, Any]
    rows: int = 6400


WORKS = {
    "resnet32": Work("resnet32", 32, 128, {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}),
    "lenet": Work("lenet", 100, 24, {"optimizer": "adam", "lr": 1e-3}, rows=2400),
}
PRECISIONS = ("float32", "tf32", "bf16")


def run_of(work: Work, precision: str) -> Run:
    """Finetuning on noise, one task of ten classes, all batches full."""
    generator = torch.Generator().manual_seed(0)
    shape = (work.rows, 3, work.size, work.size)
    x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    y = (torch.arange(work.rows) % 10).numpy()
    data = Data.from_arrays(x, y, test=(x[:100], y[:100]), name="noise")
    stream = class_incremental(data, classes_per_task=10)
    training = Training(batch_size=work.batch, precision=precision, **work.training)
    return Run(stream=stream, method=Finetune(), model=work.model, training=training)


# -- the loop by hand ------------------------------------------------------------------------------
def plain_network(run: Run) -> nn.Module:
    net: nn.Module = build(
        run.model, sample_shape=run.stream.data.sample_shape, classes=10, seed=run.seed
    )
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, BatchNorm):
                kind = nn.BatchNorm2d if name != "norm" else nn.BatchNorm1d
                setattr(module, name, kind(child.features))
    return net.cuda().train().to(memory_format=torch.channels_last)


def plain_step(run: Run) -> Callable[[], None]:
    x, y = torch.as_tensor(run.stream.data.x).cuda(), run.stream.data.labels.cuda()
    x = x.contiguous(memory_format=torch.channels_last)
    net, training = plain_network(run), run.training
    if training.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            net.parameters(), lr=training.lr, momentum=training.momentum, fused=True
        )
    else:
        optimizer = torch.optim.Adam(net.parameters(), lr=training.lr, fused=True, capturable=True)
    rows = run.stream.tasks[0].train
    order = rows[torch.randperm(len(rows))].cuda()
    order = order[: len(order) // training.batch_size * training.batch_size]
    batches, number = order.view(-1, training.batch_size), torch.zeros(1).long().cuda()
    scope: Any = contextlib.nullcontext
    if training.precision == "bf16":
        scope = lambda: torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False)  # noqa: E731

    def step() -> None:
        now = batches.index_select(0, number % len(batches))[0]
        optimizer.zero_grad(set_to_none=True)
        with scope():
            logits: Tensor = net(x[now] * (1 / 255)).logits
            loss = F.cross_entropy(logits, y[now])
        loss.backward()
        optimizer.step()
        number.add_(1)

    return step


def time_plain(run: Run, captured: bool, seconds: float) -> Stopwatch:
    step: Callable[[], None] = plain_step(run)
    if captured:
        step = CapturedStep(step)
    watch, done = Stopwatch("cuda", seconds), 0
    try:
        while True:
            step()
            done += 1
            watch(done)
    except Enough:
        return watch


# -- the engine ------------------------------------------------------------------------------------
def time_engine(run: Run, plain: bool, seconds: float) -> Stopwatch:
    """A run as the engine trains it, or with torch's layers only."""
    engine, watch = Engine([run], device="cuda"), Stopwatch("cuda", seconds)
    learner, training = engine.learner(run), replace(run.training, epochs=ENDLESS)
    token = PLAIN.set(plain)
    try:
        with contextlib.suppress(Enough):
            train_task(
                [learner], [run.method], training, 0, mapped=False, capture=True, progress=watch
            )
    finally:
        PLAIN.reset(token)
    return watch


# -- figures ---------------------------------------------------------------------------------------
def figures(work: Work, precision: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Images per second; `ratio` is to the captured loop of the same precision."""
    run, base = run_of(work, precision), 0.0
    cases: list[tuple[str, Callable[[], Stopwatch]]] = [
        ("captured loop", lambda: time_plain(run, True, seconds)),
        ("eager loop", lambda: time_plain(run, False, seconds)),
        ("engine, plain", lambda: time_engine(run, True, seconds)),
        ("engine", lambda: time_engine(run, False, seconds)),
    ]
    for path, timed in cases:
        with training_numerics(precision):
            steps, spent = timed().last
        rate = steps * work.batch / spent
        base = base or rate
        yield {
            "model": work.model, "precision": precision, "path": path, "batch": work.batch,
            "timed_steps": steps, "images_per_second": round(rate), "ratio": round(rate / base, 3),
        }  # fmt: skip
        gc.collect()
        torch.cuda.empty_cache()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", nargs="+", choices=tuple(WORKS), default=list(WORKS))
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--batch", type=int, default=0, help="rows of a batch, if not the usual")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="timed per figure")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("these figures need a CUDA device")
    table: dict[str, Any] = {**facts("cuda"), "cudnn": torch.backends.cudnn.version(), "rows": []}
    print(", ".join(f"{k} {v}" for k, v in table.items() if k != "rows"), flush=True)
    for model in given.model:
        work = replace(WORKS[model], batch=given.batch or WORKS[model].batch)
        for precision in given.precision:
            for row in figures(work, precision, given.seconds):
                print(
                    f"{row['model']:9s} {row['precision']:8s} {row['path']:16s}"
                    f"{row['images_per_second']:9,d} images/s"
                    f"  x{row['ratio']:6.2f}", flush=True,
                )  # fmt: skip
                table["rows"].append(row)
                if given.out:
                    given.out.parent.mkdir(parents=True, exist_ok=True)
                    given.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
