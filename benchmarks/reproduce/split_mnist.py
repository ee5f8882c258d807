"""Methods with a memory, side by side on Split MNIST.

    python -m benchmarks.reproduce.split_mnist --data DIR [--save FILE.csv]

Five tasks of two digits, a multi-layer perceptron, one epoch per task, Adam with rate 1e-3, batches
of 64, 500 exemplars (SLDA keeps none), three seeds; accuracy over all ten classes after the last
task. All runs come from one call.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, stdev

import pandas as pd

import engram
from engram.memory import Memory
from engram.methods import ER, ERACE, LUCIR, SLDA, BiC, DERpp, GDumb
from engram.methods.method import Method

METHODS: dict[Method, float] = {  # what each should reach at least
    DERpp(): 0.89,
    ERACE(): 0.87,
    GDumb(): 0.86,
    SLDA(): 0.87,
    ER(): 0.87,
    LUCIR(memory=Memory(total=500, policy="herding")): 0.87,
    BiC(): 0.87,
}
SEEDS = 3


def side_by_side(data: engram.Data, *, seeds: int = SEEDS, epochs: int = 1) -> pd.DataFrame:
    """One row per method: mean and standard deviation of the average accuracy, and each seed's."""
    stream = engram.class_incremental(data, classes_per_task=2)
    result = engram.run(
        stream, method=list(METHODS), model="mlp", seeds=seeds, epochs=epochs, batch_size=64,
        optimizer="adam", lr=1e-3,
    )  # fmt: skip
    final = result.metric("average_accuracy")  # [runs]
    names = [label.split()[0] for label in result.run_labels]
    rows = []
    for method, least in METHODS.items():
        own = [
            float(v) for v, name in zip(final, names, strict=True) if name == type(method).__name__
        ]
        found = {"accuracy": fmean(own), "deviation": stdev(own) if seeds > 1 else 0.0}
        each = {f"seed {place}": value for place, value in enumerate(own)}
        rows.append({"method": type(method).__name__, **found, "at least": least, **each})
    return pd.DataFrame(rows).round(4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--data", help="folder with the data sets; default: ENGRAM_DATA")
    parser.add_argument("--save", type=Path, help="a CSV file")
    asked = parser.parse_args()
    table = side_by_side(engram.load("mnist", root=asked.data))
    print(table.to_string(index=False))
    if asked.save:
        table.to_csv(asked.save, index=False)


if __name__ == "__main__":
    main()
