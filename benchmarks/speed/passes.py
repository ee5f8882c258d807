"""Over how many numbers of large tensors a step of a paper's row passes, by operation.

    python -m benchmarks.speed.passes [--rows DGR] [--batch-size 8] [--least 4_000_000]

Memory is what a large generator's step waits for, so each pass over its parameters that is not
needed costs what it would cost on any device: this is counted on the CPU, on images of noise of
100 x 100. Operations on tensors of at least so many numbers, in a step of the second task. Views
cost nothing and are left out, and so is the table of samples, of which few rows are read.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.speed.kernels import runs_of
from engram.engine.engine import Engine
from engram.engine.run import Run
from engram.engine.trainers.single import SingleTrainer

STEPS = 2
Passes = Counter[tuple[str, int]]  # by operation and numbers of its large tensors, read and written


class Watch(TorchDispatchMode):
    """Counts operations by the numbers of their large tensors."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.seen = least, Passes()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        places = {one.untyped_storage().data_ptr() for one in given}
        made = [one for one in tree_leaves(answer) if isinstance(one, Tensor)]
        if made and all(one.untyped_storage().data_ptr() in places for one in made):
            made = []  # a view, or written in place
            if not str(func).split(".")[1].endswith("_"):
                return answer
        sizes = [one.numel() for one in (*given, *made) if one.numel() >= self.least]
        if sizes and not any(one in str(func) for one in ("empty", "index_select")):
            self.seen[str(func).removeprefix("aten."), sum(sizes)] += 1
        return answer


def passes(run: Run, least: int) -> Passes:
    """What a step of the second task passes over."""
    stages, watch, plain = Engine([run], device="cpu").stages(), Watch(least), SingleTrainer.run
    next(stages)

    def watched(self: SingleTrainer, *rest: Any) -> None:
        with watch:
            plain(self, *rest)

    SingleTrainer.run = watched  # type: ignore[method-assign]
    try:
        next(stages)
    finally:
        SingleTrainer.run = plain  # type: ignore[method-assign]
    return watch.seen


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", nargs="+", default=["DGR"])
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--size", type=int, default=100, help="height and width of images")
    parser.add_argument("--least", type=int, default=4_000_000, help="numbers of a large tensor")
    given = parser.parse_args(arguments, argparse.Namespace(paper="confer"))
    torch.set_num_threads(1)
    for row in given.rows:
        (run,) = runs_of(given, row, "float32", STEPS, 1)
        found = passes(run, given.least)
        total = sum(size * times for (_, size), times in found.items()) / STEPS
        print(f"\n{row}: {total / 1e6:,.0f} million numbers of large tensors a step", flush=True)
        for (name, size), times in sorted(found.items(), key=lambda one: -one[0][1] * one[1]):
            print(f"  {size * times / STEPS / 1e6:8.1f} M  {times / STEPS:5.1f} times  {name}")


if __name__ == "__main__":
    main()
