"""How often the tests for drift are wrong, and how often they see a drift.

    python -m benchmarks.deploy.drift --out benchmarks/deploy/drift.csv

Streams of twelve weeks of 200 rows and ten columns (normal, heavy-tailed, rounded, flags,
categories, correlated, with gaps), beside a reference of 400 rows; a novelty score beside 200
calibration rows. A stream is wrong if any test of any week says drift at a rate of 5 percent. Then
one column moves in week 6, by some standard deviations, for good.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from engram.deploy.drift_tests import compare_column, compare_novelty, describe_columns, spend
from engram.metrics.significance import holm
from engram.records.novelty_records import p_values

WEEKS, ROWS, REFERENCE, HELD, RATE, FROM = 12, 200, 400, 200, 0.05, 6


def draw(rng, rows, shift=0.0):
    """A table of ten columns; `shift` moves the first."""
    base = rng.normal(size=(rows, 4))
    gaps = np.where(rng.random(rows) < 0.1, np.nan, base[:, 3])
    return pd.DataFrame({
        "moved": base[:, 0] + shift, "like it": base[:, 0] * 0.9 + rng.normal(size=rows) * 0.4,
        "normal": base[:, 1], "heavy": rng.standard_t(2, rows), "gaps": gaps,
        "skewed": rng.exponential(size=rows), "rounded": (3 * base[:, 2]).round(),
        "flag": (rng.random(rows) < 0.3).astype(float),
        "seldom": (rng.random(rows) < 0.02).astype(float),
        "kind": rng.choice(list("abcdefgh"), rows, p=np.arange(1, 9) / 36),
    })  # fmt: skip


def run_stream(seed, shift, moved=True):
    """Week of the first alarm of any test, 0 for none; and the first false one of novelty."""
    rng = np.random.default_rng(seed)
    reference = describe_columns(draw(rng, REFERENCE))
    held = rng.normal(size=HELD)
    first = 0
    for week in range(1, WEEKS + 1):
        now = shift if week >= FROM else 0.0
        table = draw(rng, ROWS, now if moved else 0.0)
        scores = rng.normal(size=ROWS) + (0.0 if moved else now)
        found = [compare_column(one, one.encode(table[one.name])).p_value for one in reference]
        found.append(compare_novelty(p_values(-scores, -held), HELD).p_value)
        if not first and holm(found).min() <= spend(RATE, week):
            first = week
    return first


def measure(streams):
    """One row for each kind of drift: shares of the streams."""
    rows = []
    for what, shift in (
        ("none", 0.0), ("column", 0.25), ("column", 0.5), ("column", 1.0), ("novelty", 0.25),
        ("novelty", 0.5),
    ):  # fmt: skip
        count = streams if shift else 3 * streams
        first = np.array([run_stream(seed, shift, what == "column") for seed in range(count)])
        rows.append({
            "drift": what, "standard_deviations": shift, "streams": count,
            "alarm_before_it": np.mean((first > 0) & ((first < FROM) | (what == "none"))),
            "seen_in_the_first_week": np.mean(first == FROM) if shift else np.nan,
            "seen_within_three_weeks": np.mean((first >= FROM) & (first < FROM + 3))
            if shift else np.nan,
        })  # fmt: skip
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found = measure(asked.streams)
    print(found.round(3).to_string(index=False))
    if asked.out is not None:
        found.round(4).to_csv(asked.out, index=False)


if __name__ == "__main__":
    main()
