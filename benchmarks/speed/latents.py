"""Runs of latent generative replay in lockstep, beside one alone: steps of all runs per second.

    python -m benchmarks.speed.latents [--runs 18] [--size 48] [--iterations 500] [--device auto] [--out FILE.json]

The network of the facial-expression benchmark above a root that stands still: tasks have no convolutions, so they are
mapped on CUDA, too. The last of three tasks is timed, with its encoding and its evaluation.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from engram import keys
from engram.data.dataset import Data
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.methods import LGR
from engram.streams import class_incremental


def made_faces(size: int, rows: int = 300) -> Data:
    """Random RGB images of six classes."""
    bits = keys.bits(keys.fold(0, "faces"), 6 * rows, 3, size, size)
    x, y = (bits & 255).to(torch.uint8), torch.arange(6).repeat_interleave(rows)
    return Data.from_arrays(x, y, name="made")


def seconds_of(runs: int, size: int, training: Training, device: str) -> float:
    """Seconds of the last task, of all runs together."""
    stream = class_incremental(made_faces(size), classes_per_task=2)
    model = {"name": "lenet", "latent": 200}
    specs = [
        Run(stream=stream, method=LGR(root="none"), model=model, training=training, seed=seed)
        for seed in range(runs)
    ]
    together = None if device == "cuda" else runs > 1
    stages = list(Engine(specs, device=device, together=together).stages())
    return sum(one.seconds for one in stages if one.stage == 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=18)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--optim-reset", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    training = Training(
        iterations=args.iterations, batch_size=args.batch_size, lr=2.5e-4,
        optim_reset=args.optim_reset,
    )  # fmt: skip
    rates = {}
    for runs in (1, args.runs):
        seconds = seconds_of(runs, args.size, training, args.device)
        rates[str(runs)] = round(runs * args.iterations / seconds, 1)
        print(f"{runs:3d} runs: {rates[str(runs)]:10.1f} steps/s", flush=True)
    ratio = rates[str(args.runs)] / rates["1"]
    print(f"{args.runs} in lockstep have {ratio:.1f} times the rate of one")
    if args.out:
        facts = {k: v for k, v in vars(args).items() if k != "out"}
        args.out.write_text(json.dumps({**facts, "rates": rates, "ratio": round(ratio, 2)}) + "\n")


if __name__ == "__main__":
    main()
