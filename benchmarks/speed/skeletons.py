"""What a step of the skeleton study in lockstep spends its device time on; on the CPU, its passes.

    python -m benchmarks.speed.skeletons --root DIR --runs 512 --precision float32 tf32
    python -m benchmarks.speed.skeletons --methods BARE LwF --runs 6 --device cpu

Steps of the second task of table 2's methods, in random class orders. On CUDA: milliseconds of a
step by kernel, run without capture, so that every kernel is seen; divided by the runs, microseconds
of one. On the CPU: millions of numbers that a step of one run reads and writes, by operation on
large tensors; what is one kernel of ours on CUDA (``graph_ops``) is one operation here. Without
`--root`, the embedded skeletons, which are smaller.
"""

from __future__ import annotations

import argparse
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.speed.passes import Passes, Watch
from engram.engine.backend import device_of
from engram.engine.engine import Engine
from engram.engine.run import Run
from engram.engine.trainers.lockstep import LockstepTrainer
from engram.models import graph_ops
from engram.reproduce import find_table, plan
from engram.reproduce.papers.cgl_preset import METHODS, UCLA

EPOCHS, SHOWN = 8, 18
SHARE = 1000  # tensors of less than so many numbers a run are small: they are not what it waits for


def runs_of(method: str, precision: str, count: int, root: str | None) -> list[Run]:
    """The first runs of a method in random class orders, with few epochs."""
    few = ["seeds=1", "task_orders=1", f"class_orders={count}", f"epochs={EPOCHS}"]
    table = find_table("cgl/2", embedded=root is None, assignments=[*few, f"precision={precision}"])
    made = plan(table, root, cells=f"dataset={UCLA},method={method}", measure=False)
    return [one.run for one in made.runs][-count:]


def kernels(runs: list[Run], device: torch.device) -> dict[str, float]:
    """Milliseconds of a step of the second task, by kernel."""
    inside = profile(activities=[ProfilerActivity.CUDA])

    def entered(places: Any, stage: int) -> Any:
        def stepped(done: int, of: int) -> None:
            if stage == 1 and done in (EPOCHS // 2, EPOCHS):
                torch.cuda.synchronize(device)
                inside.start() if done < EPOCHS else inside.stop()

        return stepped

    for one in Engine(runs, device=device, together=True, capture=False).stages(progress=entered):
        if one.stage == 1:
            break
    found: dict[str, float] = {}
    for event in inside.key_averages():
        if event.self_device_time_total:
            spent = event.self_device_time_total / 1e3 / (EPOCHS - EPOCHS // 2)
            found[event.key] = found.get(event.key, 0.0) + spent
    return found


def passes(runs: list[Run]) -> Passes:
    """What the last step of the second task passes over, of all runs."""
    seen, plain = Passes(), LockstepTrainer._step

    def step(self: LockstepTrainer) -> None:
        if self.learners[0].stage != 1 or self.steps.max() < EPOCHS:
            return plain(self)
        watch = Watch(SHARE * len(self.learners))

        def on(name: str, *args: Any) -> Any:
            before = watch.seen.copy()
            answer = graph_ops.PLAINLY[name](*args)
            tensors = [one for one in (*args, *answer) if isinstance(one, Tensor)]
            size = sum(one.numel() for one in tensors if one.numel() >= watch.least)
            watch.seen = before + Passes({(f"graph_ops.{name}", size): 1})
            return answer

        kernel, always = patch.object(graph_ops, "_on", on), patch.object(graph_ops, "applies")
        with kernel, always, watch:
            plain(self)
        return seen.update(watch.seen)

    with patch.object(LockstepTrainer, "_step", step):
        for one in Engine(runs, device="cpu", together=True).stages():
            if one.stage == 1:
                break
    return seen


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--root", help="folder with the data sets; default: embedded skeletons")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--runs", type=int, default=512)
    parser.add_argument("--precision", nargs="+", default=["float32"])
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    device = device_of(given.device)
    for method in given.methods:
        for precision in given.precision:
            runs = runs_of(method, precision, given.runs, given.root)
            if device.type == "cuda":
                lines, unit, each = kernels(runs, device), "ms", "us"
                whole = 1e3 * sum(lines.values()) / len(runs)
            else:
                lines, unit, each = {}, "M", "M"
                for (name, size), times in passes(runs).items():
                    lines[name] = lines.get(name, 0.0) + size * times / 1e6 / len(runs)
                whole = sum(lines.values())
            print(f"\n{method}, {precision}: {whole:.1f} {each} a run and step", flush=True)
            for name in sorted(lines, key=lines.__getitem__, reverse=True)[:SHOWN]:
                print(f"  {lines[name]:8.3f} {unit}  {name[:110]}")


if __name__ == "__main__":
    main()
