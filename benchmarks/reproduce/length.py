"""How long a task of RWalk is trained, which the paper does not say: a rule on validation rows.

    python -m benchmarks.reproduce.length CIFAR-100 --root DIR [--device cuda] [--seeds 3]
    python -m benchmarks.reproduce.length table-2 --root DIR      # its 20 tasks and its network

Of some lengths the first is taken whose successor gains less than 0.1 points of in-task validation
accuracy: plain training, multi-head, each task right after it was learnt, mean over tasks and
seeds. Lengths are trained in turn until the rule has decided; what is there is not trained again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pandas as pd

from engram.errors import bad
from engram.experiments import Recipe, execute
from engram.experiments.plan import Planner
from engram.reproduce.papers.rwalk_paper import (
    MULTI,
    PAPER,
    RWalkPreset,
    RWalkRow,
    change_to_20_tasks,
    recipe,
)

LENGTHS = (1, 2, 5, 10, 20, 50)
GAIN = 0.1  # points
TABLE_2 = "table-2"
VALID = 0.1  # of the training rows, where the preset sets none aside


def recipe_of(preset: RWalkPreset, dataset: str, epochs: int) -> Recipe:
    """Plain training of so many epochs, with validation rows."""
    if dataset == TABLE_2:
        return recipe_of(change_to_20_tasks(preset), "CIFAR-100", epochs)
    protocol = preset.protocol(dataset)
    protocol = replace(protocol, epochs=epochs, valid=protocol.valid or VALID)
    names = {shown: field for field, shown in preset.parts.items()}
    part: dict[str, object] = {names[dataset]: protocol}
    changed = replace(preset, **part)  # type: ignore[arg-type]
    return recipe(changed, RWalkRow(dataset=dataset, setting=MULTI, method="Vanilla"))


def in_task(found: Recipe, root: str | None, out: Path, device: str) -> pd.DataFrame:
    """Per seed the accuracy [%] of validation rows right after their task, mean over tasks."""
    plans = Planner(root).plans(found, found.build_stream(found.data(root)))
    frame = execute(plans, out=out, device=device).result().frame()
    own = frame[(frame["metric"] == "valid_score") & (frame["task"] == frame["stage"])]
    values = 100 * own.groupby("seed")["value"].mean()
    return values.rename("accuracy").reset_index().assign(epochs=found.training.epochs)


def decide(values: Mapping[int, float], gain: float = GAIN) -> int | None:
    """The length of the rule; None if the longest still gained.

    Examples
    --------
    >>> decide({1: 98.85, 2: 99.34, 5: 99.56, 10: 99.76, 20: 99.72})
    10
    >>> decide({1: 98.85, 2: 99.34}) is None
    True
    """
    lengths = sorted(values)
    pairs = pairwise(lengths)
    return next((a for a, b in pairs if values[b] - values[a] < gain), None)


def try_lengths(
    preset: RWalkPreset,
    dataset: str,
    lengths: Sequence[int],
    root: str | None,
    out: Path,
    device: str,
) -> Iterator[pd.DataFrame]:
    """Lengths in turn until the rule has decided: after each, one row per length and seed."""
    if list(lengths) != sorted(set(lengths)):
        raise bad("lengths", "numbers of epochs that grow", list(lengths))
    parts: list[pd.DataFrame] = []
    for epochs in lengths:
        parts.append(in_task(recipe_of(preset, dataset, epochs), root, out, device))
        found = pd.concat(parts)
        yield found[["epochs", "seed", "accuracy"]].assign(dataset=dataset)
        if decide(means(found)) is not None:
            return


def means(table: pd.DataFrame) -> dict[int, float]:
    """Mean accuracy over seeds by length."""
    return {int(str(k)): float(v) for k, v in table.groupby("epochs")["accuracy"].mean().items()}


def main(arguments: list[str] | None = None, preset: RWalkPreset = PAPER) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("dataset", choices=[*preset.parts.values(), TABLE_2])
    parser.add_argument("--root", help="folder with the data sets; default: ENGRAM_DATA")
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS), metavar="EPOCHS")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="run directory")
    parser.add_argument("--save", type=Path, help="a CSV file")
    asked = parser.parse_args(arguments)
    out = asked.out or Path("runs") / "search" / "rwalk-length"
    tables = try_lengths(replace(preset, seeds=asked.seeds), asked.dataset, asked.lengths,
                         asked.root, out, asked.device)  # fmt: skip
    for table in tables:  # long ones may be stopped: what is there is written
        longest = max(means(table))
        print(f"{longest} epochs: {means(table)[longest]:.2f} %", flush=True)
        if asked.save:
            asked.save.parent.mkdir(parents=True, exist_ok=True)
            table.to_csv(asked.save, index=False)
    chosen = decide(means(table))
    print(f"{longest} epochs: the longest still gained" if chosen is None
          else f"{chosen} epochs: the next gained less than {GAIN} points")  # fmt: skip


if __name__ == "__main__":
    main()
