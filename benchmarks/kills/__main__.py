"""Kill processes at random moments of their training; their runs must end as if nothing had been.

    python -m benchmarks.kills [--kills 40] [--seed 0] [--every 0.5] [--save FILE.csv]

Ten methods, each as one run and as 48 runs in lockstep; `--kills` processes of either kind are
ended by SIGKILL or SIGTERM, at moments drawn from the seed. What they leave behind is resumed to
its end and compared with an undisturbed run to the last bit: numbers, parameters, scores,
exemplars, rows read. Also counted: steps and seconds of work that a death costs, against the
interval of checkpoints inside a task (`--every`, in seconds; short, because the runs are).
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from benchmarks.kills.child import Work
from benchmarks.kills.trial import Trial, trial
from engram import methods
from engram.checks.toys import tame
from engram.memory import Memory
from engram.methods.base import Method

METHODS: tuple[Method, ...] = (
    tame(methods.EWC()), methods.SI(), tame(methods.RWalk()), methods.LwF(),
    methods.ER(memory=Memory(total=60)), methods.DERpp(), methods.AGEM(),
    methods.ICaRL(), methods.GDumb(memory=Memory(total=60), epochs=6),
    methods.LatentReplay(root_iterations=10), methods.LGR(root_iterations=10),
)  # fmt: skip
LOCKSTEP = 48
EPOCHS = {1: 12, LOCKSTEP: 4}  # a few seconds either way


def row(found: Trial) -> dict[str, object]:
    """One line of the table."""
    deaths = found.deaths
    return {
        "method": type(found.work.method).__name__,
        "runs": found.work.runs,
        "steps": found.steps,
        "kills": len(deaths),
        "sigkill": sum(one.sent == signal.SIGKILL for one in deaths),
        "sigterm": sum(one.sent == signal.SIGTERM for one in deaths),
        "inside a task": sum(one.inside for one in deaths),
        "compared": found.rounds,
        "equal": not found.differences,
        "steps lost": max((one.steps_lost for one in deaths), default=0),
        "seconds lost": round(max((one.seconds_lost for one in deaths), default=0.0), 2),
        "interval": found.work.every,
        "within": all(one.seconds_lost <= one.allowed for one in deaths),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=40, help="of single runs, and of groups")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=0.5, help="seconds between checkpoints")
    parser.add_argument("--methods", nargs="+", help="names; default: all ten")
    parser.add_argument("--save", type=Path, help="a CSV file")
    asked = parser.parse_args()
    chosen = [m for m in METHODS if not asked.methods or type(m).__name__ in asked.methods]
    rows = []
    for runs, epochs in EPOCHS.items():
        for place, method in enumerate(chosen):
            share = (asked.kills + len(chosen) - 1 - place) // len(chosen)
            work = Work(method=method, runs=runs, epochs=epochs, every=asked.every)
            chance = random.Random(f"{asked.seed} {type(method).__name__} {runs}")
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                found = trial(work, share, chance, Path(folder))
            rows.append(row(found))
            said = "; ".join(found.differences[:3]) or "equal"
            print(f"{rows[-1]['method']}, {runs} run(s): {len(found.deaths)} kills, {said} "
                  f"({time.monotonic() - began:.0f} s)", flush=True)  # fmt: skip
            table = pd.DataFrame(rows)
            if asked.save:
                table.to_csv(asked.save, index=False)
    print(table.to_string(index=False))
    if not (table["equal"] & table["within"]).all():
        sys.exit("some runs did not end as they should, or lost more than the interval")


if __name__ == "__main__":
    main()
