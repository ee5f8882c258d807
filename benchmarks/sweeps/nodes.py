"""A sweep over two nodes of Ray, one of which is killed half-way.

    python -m benchmarks.sweeps.nodes [--recipes 64] [--seed 0] [--out FILE.json]

Both nodes are on this machine, on loopback addresses, with a core each. When half of all stages are
told, the second node and everything on it is killed. Every recipe must be finished, every stage
recorded once, and every number, parameter, score and exemplar the same as one after the other.
Needs the extra `ray`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import engram
from benchmarks.kills.compare import differences
from benchmarks.sweeps.two_nodes import TwoNodes, two_nodes
from engram.experiments import Callback, Plan
from engram.records import Rows
from engram.records.table_parts import read_part, result_files

METHODS = ("ER", "EWC", "SI", "LwF")


class Killer(Callback):
    """Kills a node at some stage; keeps notes and stages."""

    def __init__(self, cluster: TwoNodes, at: int) -> None:
        self.cluster, self.at = cluster, at
        self.notes: list[str] = []
        self.stages: list[tuple[Any, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        self.stages.append((plan.key, stage))
        if len(self.stages) == self.at:
            self.cluster.kill_one()


def recipes(count: int) -> list[dict[str, Any]]:
    """Runs that train alone, so that their numbers are those of serial to the last bit."""
    return [
        {"stream": {"data": "blobs"}, "method": METHODS[i % 4], "seeds": [i // 4],
         "training": {"epochs": 2}, "keep": "parameters"}
        for i in range(count)
    ]  # fmt: skip


def stages_written(folder: Path) -> Counter[tuple[Any, ...]]:
    """How often each stage of each run was recorded."""
    found: Counter[tuple[Any, ...]] = Counter()
    for path in result_files(folder):
        table = read_part(path).select(["recipe", "seed", "order", "stage"])
        found.update(set(zip(*(c.to_pylist() for c in table.columns), strict=True)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", type=int, default=64)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    made, wrong = recipes(given.recipes), []
    with tempfile.TemporaryDirectory() as name, two_nodes() as cluster:
        folder = Path(name)
        began = time.perf_counter()
        expected = engram.sweep(made, pool="serial", out=folder / "serial", device="cpu")
        serial = time.perf_counter() - began
        every = expected.matrix.shape[0] * expected.matrix.shape[1]
        told = Killer(cluster, every // 2)
        began = time.perf_counter()
        found = engram.sweep(
            made, pool="ray", address=cluster.address, out=folder / "ray", device="cpu",
            callback=told,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        wrong += differences(found, expected)
        written = stages_written(folder / "ray")
    if set(written.values()) != {1} or len(written) != every:
        wrong.append(f"{len(written)} of {every} stages, {max(written.values())} times at most")
    if not any("another one continues" in one for one in told.notes):
        wrong.append("nothing was lost: the node died too late")
    facts = {
        "recipes": given.recipes, "finished": len(found), "stages": len(written),
        "recorded_once": sum(n == 1 for n in written.values()), "killed_at_stage": told.at,
        "notes": len(told.notes), "wrong": wrong, "serial_seconds": round(serial, 1),
        "seconds": round(seconds, 1),
    }  # fmt: skip
    print(json.dumps(facts, indent=1))
    if given.out:
        given.out.write_text(json.dumps(facts, indent=1) + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
