"""Kill processes at random moments of their training; their runs must end as if nothing had been.

    python -m benchmarks.kills [--save FILE.csv] [--kills 3] [--seed 0] [--ways ray] [--methods ER]

Every method, trained alone, as 8 and as 48 runs in lockstep, by the pool `processes` and on a Ray
cluster (the extra `ray`); of each, so many processes are ended by SIGKILL or SIGTERM: the one that
trains, or a worker and the one that hands out work. Moments are drawn from the seed, among them the
middle of a write. What is left is resumed to its end and compared with an undisturbed run to the
last bit: numbers, parameters, scores, exemplars, rows read; no stage that was recorded may be gone,
or recorded twice. What is in FILE already is not done again.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pandas as pd

from benchmarks.kills.trial import orders, trial
from benchmarks.kills.work import METHODS, WAYS, Work
from benchmarks.sweeps.two_nodes import TwoNodes, two_nodes


def summary(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """Kills, and what became of them, by way or method."""
    table = table.assign(
        sigkill=table["signal"] == "SIGKILL", writing=table["writing"].notna(),
        unequal=~table["equal"].astype(bool), kills=1,
    )  # fmt: skip
    counted = ["kills", "sigkill", "writing", "stages before", "stages lost", "stages again",
               "unequal"]  # fmt: skip
    found = table.groupby(by, sort=False)[counted].sum()
    found["most seconds lost"] = table.groupby(by, sort=False)["seconds lost"].max()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=3, help="of every method in every way")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=0.25, help="seconds between checkpoints")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--save", type=Path, default=Path("kills.csv"), help="a CSV file")
    asked = parser.parse_args()
    with ExitStack() as stack:
        # before the first child: all are to know its token
        cluster = stack.enter_context(two_nodes()) if "ray" in asked.ways else None
        for method in asked.methods:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for way in asked.ways:
                work = Work(method=method, way=way, every=asked.every)
                if not _done(asked.save, work, asked.seed):
                    _try(work, asked, folder, cluster if way == "ray" else None)
    table = pd.read_csv(asked.save)
    for by in ("way", "method"):
        print(summary(table, by).to_string(), end="\n\n")
    whole = summary(table, "seed").sum()
    if whole[["stages lost", "stages again", "unequal"]].any():
        sys.exit("some runs did not end as they should")


def _done(path: Path, work: Work, seed: int) -> bool:
    if not path.exists():
        return False
    table = pd.read_csv(path)
    same = (table["method"] == work.method) & (table["way"] == work.way) & (table["seed"] == seed)
    return bool(same.any())


def _try(work: Work, asked: argparse.Namespace, folder: Path, cluster: TwoNodes | None) -> None:
    """One trial; its lines are added to the table."""
    began = time.monotonic()
    turn = METHODS.index(work.method) + list(WAYS).index(work.way) + asked.seed
    chance = random.Random(f"{asked.seed} {work.method} {work.way}")
    found = trial(work, orders(work, asked.kills, turn), chance, folder, cluster)
    rows = pd.DataFrame(found.rows(asked.seed))
    rows.to_csv(asked.save, mode="a", header=not asked.save.exists(), index=False)
    said = "; ".join(found.differences[:3]) or "equal"
    took = time.monotonic() - began
    print(f"{work.method}, {work.way}: {len(rows)} kills, {said} ({took:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
