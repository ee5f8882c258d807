"""Peak resident memory against a bare loop, and growth over a long stream.

    python -m benchmarks.speed.memory [--out FILE.json]

Each measurement is a process of its own. The long stream has 200 tasks of one synthetic class each.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

MIB = 1 << 20


def peak() -> float:
    """MiB at the highest point of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def now() -> float:
    """MiB resident now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


def bare() -> dict[str, float]:
    import torch

    from benchmarks.speed.bare import Loop
    from benchmarks.speed.entries import images
    from engram.streams import class_incremental

    torch.set_num_threads(1)
    stream = class_incremental(images(), classes_per_task=2)
    Loop(stream.data).train(stream, batch=64)
    return {"peak": peak()}


def engram() -> dict[str, float]:
    import torch

    from benchmarks.speed.entries import images
    from engram import run
    from engram.streams import class_incremental

    torch.set_num_threads(1)
    stream = class_incremental(images(), classes_per_task=2)
    run(stream, method="Finetune", epochs=1, batch_size=64, device="cpu")
    return {"peak": peak()}


def growth() -> dict[str, float]:
    import torch

    from engram.data import load
    from engram.engine.engine import Engine
    from engram.engine.run_definition import Run
    from engram.engine.training import Training
    from engram.memory import Memory
    from engram.methods import ER, EWC, Join
    from engram.streams import class_incremental

    torch.set_num_threads(1)
    data = load("blobs", classes=200, per_class=25, features=32)
    stream = class_incremental(data, classes_per_task=1)
    method = Join(ER(memory=Memory(total=400)), EWC(strength=1.0))
    engine = Engine([Run(stream=stream, method=method, training=Training())], device="cpu")
    found = {}
    for stage in engine.stages():
        if stage.stage + 1 in (20, 50, 100, 200):
            found[f"after_{stage.stage + 1}"] = now()
    return found


PARTS = {"bare": bare, "engram": engram, "growth": growth}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=list(PARTS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.part:
        print(json.dumps(PARTS[given.part]()))
        return
    found = {}
    for part in PARTS:
        command = [sys.executable, "-m", "benchmarks.speed.memory", "--part", part]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[part] = json.loads(done.stdout.splitlines()[-1])
        print(part, {name: f"{mib:.0f} MiB" for name, mib in found[part].items()}, flush=True)
    ratio = found["engram"]["peak"] / found["bare"]["peak"]
    print(f"peak of engram / peak of the bare loop: {ratio:.2f}")
    if given.out:
        given.out.write_text(json.dumps({"mib": found, "peak_ratio": ratio}, indent=1) + "\n")


if __name__ == "__main__":
    main()
