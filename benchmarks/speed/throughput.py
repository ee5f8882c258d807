"""Summed optimiser steps per second: a plain eager loop, one captured run, many in lockstep.

    python -m benchmarks.speed.throughput --device cuda --runs 1 8 32 128

All figures of one call come from one process; compare ratios within a call, not across calls.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.data import Data
from engram.engine.deck import Dealer
from engram.engine.lockstep import LockstepTrainer
from engram.engine.run import Engine, Run
from engram.engine.stage import _dealer, enter
from engram.engine.training import Training
from engram.methods import Finetune
from engram.streams import class_incremental


def timed(call: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def made_images(rows: int = 12800) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (rows, 1, 28, 28), dtype=torch.uint8, generator=generator)
    y = torch.arange(rows) % 10
    return Data.from_arrays(x, y.numpy(), test=(x[:100], y[:100].numpy()), name="noise")


def plain_loop(data: Data, device: str, steps: int, batch: int) -> float:
    """A hand-written loop: data as one tensor, index batches, torch's fused Adam."""
    x = data.x.to(device)
    y = data.labels.to(device)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    order = torch.randperm(len(data.train), device=device)

    def go(count: int) -> None:
        for step in range(count):
            at = (step * batch) % (len(order) - batch)
            rows = order[at : at + batch]
            optimizer.zero_grad()
            loss: Tensor = F.cross_entropy(net(x[rows].float() / 255), y[rows])
            loss.backward()
            optimizer.step()

    go(20)
    return steps / timed(lambda: go(steps), device)


def lockstep(data: Data, device: str, runs: int, steps: int, batch: int, capture: bool) -> float:
    """Steps per second summed over runs."""
    stream = class_incremental(data, classes_per_task=10)
    training = Training(batch_size=batch)
    specs = [Run(stream=stream, method=Finetune(), training=training, seed=s) for s in range(runs)]
    engine = Engine(specs, device=device)
    learners = [engine.learner(spec) for spec in specs]
    methods = [spec.method for spec in specs]
    enter(learners, methods, training, 0)
    dealer: Dealer = _dealer(learners, methods[0].replay(0), training, 0)
    trainer = LockstepTrainer(learners, methods, training, capture=capture)
    deck = dealer.epoch(0)
    trainer.load(deck, fixed=False)
    rates = trainer.lr.cpu().numpy()
    size = min(dealer.steps_per_epoch, 100)
    trainer.run(0, size, rates, deck.live)
    done = 0

    def go() -> None:
        nonlocal done
        while done < steps:
            trainer.run(0, size, rates, deck.live)
            done += size

    seconds = timed(go, device)
    return runs * done / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    data = made_images()
    rows = [("plain loop", 1, plain_loop(data, given.device, given.steps, given.batch))]
    for runs in given.runs:
        for capture in (False, True) if given.device == "cuda" else (False,):
            rate = lockstep(data, given.device, runs, given.steps, given.batch, capture)
            rows.append(("captured" if capture else "mapped", runs, rate))
    base = rows[0][2]
    for name, runs, rate in rows:
        print(f"{name:12s} {runs:5d} runs {rate:12,.0f} steps/s  x{rate / base:8.1f}", flush=True)
    if given.out:
        names = ("path", "runs", "steps_per_second", "ratio")
        table = [dict(zip(names, (*row, row[2] / base), strict=True)) for row in rows]
        given.out.write_text(json.dumps({"device": given.device, "rows": table}, indent=1))


if __name__ == "__main__":
    main()
