"""What GEM's projection costs: the dual alone, and the whole of it.

    python -m benchmarks.speed.projection [--device cuda] [--tasks 20] [--out FILE.json]

Gradients of random numbers with a common direction, so that memories are alike and the present
gradient goes against them, in the size of the MNIST network (784-256-256-10). Each case runs for
one run and for several in lockstep; on CUDA also as a captured graph, which is how steps of a
training run. Repeats of all cases are interleaved; the device is waited for around each.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from engram.engine.trainers.cuda_graph import WARM_STEPS, Captured
from engram.methods.dual import nonnegative
from engram.methods.gem import inner, project

MARGIN, EPS = 0.5, 1e-3
WIDTHS = (784, 256, 256, 10)
PARAMETERS = sum((a + 1) * b for a, b in pairwise(WIDTHS))

Work = Callable[[], Any]


def gradients(runs: int, tasks: int, device: str) -> tuple[Tensor, Tensor]:
    """Past gradients [R, t, P] and present ones [R, P]."""
    torch.manual_seed(0)
    common = torch.randn(runs, 1, PARAMETERS)
    past = common + torch.randn(runs, tasks, PARAMETERS)
    present = torch.randn(runs, PARAMETERS) - 0.5 * common[:, 0]
    return (0.01 * past).to(device), (0.01 * present).to(device)


def cases(runs: int, tasks: int, device: str) -> dict[str, Work]:
    """The dual with its matrix given, the products it needs, and all of the projection."""
    past, present = gradients(runs, tasks, device)
    one = runs == 1

    def mapped(f: Callable[..., Any], *args: Tensor) -> Work:
        if one:
            alone = [arg[0] for arg in args]
            return lambda: f(*alone)
        many = vmap(f)
        return lambda: many(*args)

    products, along = vmap(inner)(past, present)
    curvature = products + EPS * torch.eye(tasks, dtype=products.dtype, device=device)
    slope = along + MARGIN * curvature.sum(-1)
    return {
        "dual": mapped(nonnegative, curvature, slope),
        "products": mapped(inner, past, present),
        "projection": mapped(lambda p, g: project(g, p, margin=MARGIN, eps=EPS), past, present),
    }


def captured(work: Work) -> Work:
    """The same as a CUDA graph."""
    graph = Captured(lambda: (work(), None)[1])
    for _ in range(WARM_STEPS + 1):
        graph()
    return graph


def timed(works: dict[str, Work], repeats: int, device: str) -> dict[str, list[float]]:
    """Milliseconds of every repeat."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    found: dict[str, list[float]] = {name: [] for name in works}
    for number in range(repeats + 2):  # two to warm up
        for name, work in works.items():
            wait()
            began = time.perf_counter()
            work()
            wait()
            if number > 1:
                found[name].append(1e3 * (time.perf_counter() - began))
    return found


def measure(runs: list[int], tasks: int, device: str, repeats: int) -> list[dict[str, Any]]:
    """One row per case: median and quartiles in milliseconds."""
    rows = []
    for count in runs:
        works = cases(count, tasks, device)
        if device == "cuda":
            works |= {f"{name}, captured": captured(work) for name, work in works.items()}
        for name, values in timed(works, repeats, device).items():
            low, middle, high = statistics.quantiles(values, n=4)
            spread = [round(low, 4), round(high, 4)]
            row = {"case": name, "runs": count, "tasks": tasks, "parameters": PARAMETERS}
            rows.append(row | {"ms": round(middle, 4), "quartiles": spread})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=0, help="of the CPU; 0: as torch chooses")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    name = torch.cuda.get_device_name() if args.device == "cuda" else platform.machine()
    with torch.no_grad():
        rows = measure(args.runs, args.tasks, args.device, args.repeats)
    for row in rows:
        print(f"{row['case']:<22} {row['runs']:>3} runs  {row['ms']:10.3f} ms  {row['quartiles']}")
    if args.out:
        about = {"device": name, "torch": torch.__version__, "threads": torch.get_num_threads()}
        Path(args.out).write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
