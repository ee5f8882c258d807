"""The whole campaign: ``python -m tests.faults [--each 20] [--seed 0]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from engram import methods
from engram.methods.method import FROZEN_TRANSFORMER
from tests.faults.campaign import FAULTS, POOLS, campaign, trials

SLOW = {"GEM", "TWP", "Join", "Joint", "IncrementalJoint", "LatentReplay", "LGR", "DGR"}


def main() -> None:
    """Meet every fault, say what came out, fail where anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--each", type=int, default=20, help="faults of every kind")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    names = [
        name for name in methods.__all__
        if name not in SLOW and name[0].isupper()
        and getattr(methods, name).needed_model != FROZEN_TRANSFORMER
    ]  # fmt: skip
    planned = list(trials(names, list(FAULTS), list(POOLS), chosen.each))
    with tempfile.TemporaryDirectory() as folder:
        found = campaign(planned, Path(folder), chosen.seed)
    met, wrong = sum(one.met for one in found), [one for one in found if one.wrong]
    print(f"{len(found)} trials, {met} met their fault, {len(wrong)} went wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
