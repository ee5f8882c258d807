"""Lemma 1 of RWalk along runs: the KL divergence that a task causes on earlier ones, over the
quadratic forms that stand for it.

    python -m benchmarks.reproduce.divergence --root DIR [--set mnist.valid=0.75] [--save FILE.csv]

A line is a ratio (mean over seeds of the divergence, over that of the form) for a row of table 1 on
MNIST, a share of the change of weights, and a form; 1 is what the lemma says of small changes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from engram.experiments import execute
from engram.experiments.plan import Planner
from engram.probes import DivergenceForms, FisherDistance
from engram.reproduce.papers.paper_base import assign_settings
from engram.reproduce.papers.rwalk_paper import (
    MNIST,
    MULTI,
    PAPER,
    RWalkPreset,
    RWalkRow,
    recipe,
    table_1_strength,
)

METHODS = ("Vanilla", "EWC", "PI", "RWalk")
SCALES = (1.0, 0.1, 0.01)
FORMS = DivergenceForms._fields[1:]


def measure_ratios(
    preset: RWalkPreset, root: str | None, out: Path, methods: Sequence[str] = METHODS
) -> pd.DataFrame:
    """Divergence and its ratio to each form, by method, share of the change and stage."""
    probes = {scale: FisherDistance(scale=scale) for scale in SCALES}
    ids, plans, planner = dict[str, str](), [], Planner(root)
    for method in methods:
        strength = table_1_strength(MNIST, MULTI, method, False)
        row = RWalkRow(dataset=MNIST, setting=MULTI, method=method, strength=strength)
        found = replace(recipe(preset, row), probes=tuple(probes.values()))
        own = planner.plans(found, found.build_stream(found.data(root)))
        ids[method] = own[0].recipe
        plans += own
    frame = execute(plans, out=out).result().frame()
    mean = frame.groupby(["recipe", "metric", "stage"], observed=True)["value"].mean()
    rows = []
    for method, key in ids.items():
        for scale, probe in probes.items():
            kl = mean[key, f"{probe.name}/kl"]
            ratios = {name: kl / mean[key, f"{probe.name}/{name}"] for name in FORMS}
            for stage, value in kl.items():
                each = {name: round(float(ratio[stage]), 4) for name, ratio in ratios.items()}
                rows.append({"method": method, "scale": scale, "stage": int(stage) + 1,
                             "kl": float(f"{value:.5g}"), **each})  # fmt: skip
    return pd.DataFrame(rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--root", help="folder with the data sets; default: ENGRAM_DATA")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="changes")
    parser.add_argument("--out", type=Path, default=Path("runs/divergence"))
    parser.add_argument("--save", type=Path, help="a CSV file")
    asked = parser.parse_args(arguments)
    table = measure_ratios(assign_settings(PAPER, asked.changes), asked.root, asked.out)
    print(table.to_string(index=False))
    if asked.save:
        table.to_csv(asked.save, index=False)


if __name__ == "__main__":
    main()
