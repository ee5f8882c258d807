"""What commands need that read a directory of very many runs: processor seconds and memory.

    python -m benchmarks.scaling.directories [--runs 1000 10000 100000] [--out FILE.json]

Two kinds of directories: `seeds`, a hundred runs of every recipe, and `recipes`, one run of each
point of a grid. Nothing but one small run per group is trained: its results, with other scores, are
recorded as those of the hundred runs of the group by the recorder that real sweeps use, so the
files are those of a sweep. Each command is a process of its own (`READERS`), measured whole: the
seconds of the processor and the most memory that it held. The directories are on a local disk.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks.scaling.__main__ import exponents
from engram import io
from engram.cli.console import Request
from engram.cli.execution import build_recipes
from engram.engine.engine import Engine
from engram.experiments import Callback
from engram.experiments.plan import make_plans
from engram.experiments.recorder import Recorder

GROUP = 100  # runs that are recorded together, as if they had trained in lockstep
METHODS = ("ER", "EWC", "SI", "LwF", "Finetune")
# The commands; {run} is the directory. A further reader is a further line.
READERS = {
    "metrics": ("metrics", "{run}"),
    "report": ("report", "{run}", "--out", "{run}.html"),
    "resume": ("resume", "{run}"),
}
KINDS = {"seeds": GROUP, "recipes": 1}  # runs of a recipe


def contents(runs: int, seeds: int) -> list[dict[str, Any]]:
    """Recipes of so many runs: methods and learning rates."""
    return [
        {
            "stream": {"data": "blobs"}, "method": METHODS[i % len(METHODS)], "seeds": seeds,
            "model": {"name": "mlp", "hidden": [8]},
            "training": {"epochs": 1, "lr": 1e-4 * (1 + i // len(METHODS))},
        }
        for i in range(max(1, runs // seeds))
    ]  # fmt: skip


def fill(out: Path, runs: int, seeds: int) -> None:
    """Record so many finished runs in a new directory."""
    asked = contents(runs, seeds)
    plans = make_plans(build_recipes(asked))
    with _unsynced():
        Request(recipes=asked, device="cpu").write(out)  # as `engram sweep` does
        recorder = Recorder(plans, out, device="cpu", callback=_Silent())
        recorder.prepare()
        by_method: dict[type, list[int]] = {}
        for place, plan in enumerate(recorder.open):
            by_method.setdefault(type(plan.run.method), []).append(place)
        rng = np.random.default_rng(0)
        for places in by_method.values():
            for at in range(0, len(places), GROUP):
                _record_group(recorder, places[at : at + GROUP], rng)
        recorder.close()
        recorder.release()


def _record_group(recorder: Recorder, group: Sequence[int], rng: np.random.Generator) -> None:
    """Train the first run of a group, and record it as all of them, with other scores."""
    engine = Engine([recorder.open[group[0]].run], device="cpu")
    for result in engine.stages():
        for place in group:
            noise = rng.normal(size=result.scores.shape).astype(np.float32)
            plan = recorder.open[place]
            other = {"run": place, "seed": plan.run.seed, "method": plan.run.method}
            last = place == group[-1]
            recorder.add(replace(result, scores=result.scores + noise, last_of_group=last, **other))


class _Silent(Callback):
    def note(self, text: str) -> None:
        pass


@contextmanager
def _unsynced() -> Iterator[None]:
    """Write without waiting for the disk: what is measured is reading."""
    sync, io.sync = io.sync, lambda path: None
    try:
        yield
    finally:
        io.sync = sync


def read(command: Sequence[str]) -> dict[str, float]:
    """Processor seconds, time and peak memory in MiB of a command of Engram."""
    began = time.perf_counter()
    words = [sys.executable, "-m", "engram", *command]
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"engram {' '.join(command)}: {said[-2000:]}")
    return {
        "cpu": round(used.ru_utime + used.ru_stime, 2),
        "seconds": round(time.perf_counter() - began, 2),
        "MiB": round(used.ru_maxrss / 1024),
    }


def count_files(folder: Path) -> dict[str, int]:
    """Files by their kind: the first word of their name, and their folder."""
    found: Counter[str] = Counter()
    for path, _, names in os.walk(folder):
        where = Path(path).relative_to(folder)
        for name in names:
            kind = name.split("-")[0] if where == Path() else f"{where.parts[0]}/"
            found[kind] += 1
    return {"all": found.total(), **dict(found.most_common())}


def measure(runs: int, seeds: int, readers: Sequence[str]) -> dict[str, Any]:
    """Fill a directory, and run every reader on it."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "run"
        began = time.process_time()
        fill(out, runs, seeds)
        found: dict[str, Any] = {
            "size": runs, "write": round(time.process_time() - began, 2),
            "files": count_files(out),
        }  # fmt: skip
        for reader in readers:
            command = [word.format(run=out) for word in READERS[reader]]
            found[reader] = read(command)
            print(runs, reader, found[reader], flush=True)
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling.directories", description=__doc__
    )
    parser.add_argument("--runs", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--readers", nargs="+", default=list(READERS), choices=list(READERS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    found: dict[str, Any] = {"machine": platform.machine(), "torch": torch.__version__}
    for kind in given.kinds:
        points = [measure(runs, KINDS[kind], given.readers) for runs in given.runs]
        found[kind] = {"points": points, "exponents": fit(points)}
        print(kind, found[kind]["exponents"], flush=True)
        if given.out:
            given.out.write_text(json.dumps(found, indent=1) + "\n")


def fit(points: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How seconds and memory of each reader grow between the two largest sizes."""
    if len(points) < 2:
        return {}
    flat = [
        {"size": point["size"]} | {
            f"{reader} {what}": point[reader][what]
            for reader in READERS if all(reader in one for one in points[-2:])
            for what in ("cpu", "MiB")
        }
        for point in points
    ]  # fmt: skip
    return exponents(flat)


if __name__ == "__main__":
    main()
