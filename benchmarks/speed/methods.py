"""What a step of each method costs, as a ratio to a step of finetuning, alone and in lockstep.

    python -m benchmarks.speed.methods [--runs 4] [--compile] [--out FILE.json]

The second task of a two-task stream is timed, so that penalties, teachers and memories are at work.
Repeats of all methods are interleaved in one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.speed.throughput import made_images
from engram import methods
from engram.engine.backend import training_numerics
from engram.engine.engine import Engine
from engram.engine.loop import open_task, train_task
from engram.engine.run_definition import Run
from engram.engine.sampler import build_sampler
from engram.engine.trainers.compiled import CompiledTrainer
from engram.engine.trainers.lockstep import LockstepTrainer
from engram.engine.trainers.single import SingleTrainer
from engram.engine.training import Training
from engram.memory import Memory
from engram.streams import class_incremental

CASES = {
    "Finetune": methods.Finetune(),
    "SI": methods.SI(),
    "EWCpp": methods.EWCpp(strength=1.0),
    "RWalk": methods.RWalk(strength=1.0),
    "EWC": methods.EWC(strength=1.0, group="full"),
    "MAS": methods.MAS(strength=1.0, importance="batch_sq"),
    "LwF": methods.LwF(),
    "ER": methods.ER(),
    "AGEM": methods.AGEM(),
    "GEM": methods.GEM(memory=Memory(total=256, shared_by="task")),
}


class Timed:
    """A trainer in the middle of its second task."""

    def __init__(self, method: methods.Method, runs: int, device: str, compile: bool) -> None:  # type: ignore[name-defined]
        stream = class_incremental(made_images(6400), classes_per_task=5)
        training = Training(batch_size=64)
        specs = [Run(stream=stream, method=method, training=training, seed=s) for s in range(runs)]
        engine = Engine(specs, device=device)
        learners, many = [engine.learner(s) for s in specs], [s.method for s in specs]
        self.mapped = compile or runs > 1 or device == "cuda"
        with training_numerics(training.precision):
            train_task(learners, many, training, 0, mapped=self.mapped)
        open_task(learners, many, training, 1)
        sampler = build_sampler(learners, method, training)
        self.rows, self.size = sampler.epoch(0), sampler.steps_per_epoch - 1
        if self.mapped:
            kind = CompiledTrainer if compile else LockstepTrainer
            self.many = kind(learners, many, training, capture=device == "cuda")
            self.many.load(self.rows, fixed=False)
            self.rates = self.many.lr.cpu().numpy()
        else:
            self.one = SingleTrainer(learners[0], method, training)
            self.one.load(self.rows, fixed=False)

    def seconds(self) -> float:
        """Time of one step, over an epoch."""
        began = time.perf_counter()
        if self.mapped:
            self.many.run(0, self.size, self.rates, self.rows.live)
        else:
            self.one.run(0, self.size, np.array([1e-3]), self.rows.live)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / self.size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--methods", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    name = torch.cuda.get_device_name() if given.device == "cuda" else "CPU, 1 thread"
    described = {"device": name, "torch": torch.__version__, "compiled": given.compile}
    rows = []
    for runs in given.runs:
        names = ["Finetune", *(n for n in given.methods if n != "Finetune")]
        timed = {n: Timed(CASES[n], runs, given.device, given.compile) for n in names}
        times: dict[str, list[float]] = {name: [] for name in timed}
        for repeat in range(given.repeats + 1):
            for name, one in timed.items():
                found = one.seconds()
                if repeat:
                    times[name].append(found)
        for name in timed:
            pairs = zip(times[name], times["Finetune"], strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            step = min(times[name]) * 1e3
            rows.append({"method": name, "runs": runs, "step_ms": step, "ratio": ratio})
            print(f"{runs:3d} run(s) {name:10s} {step:8.2f} ms  x{ratio:.2f}", flush=True)
    if given.out:
        given.out.write_text(json.dumps(described | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
