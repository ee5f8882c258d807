"""CLINC150 in 15 tasks of 10 intents on MiniLM: accuracy, and requests of no intent as novelty.

    python -m benchmarks.pretrained.clinc --root DIR                 # on the frozen MiniLM
    python -m benchmarks.pretrained.clinc L2P EASE --root DIR --rows 20 --tested 10

Three orders of the intents, each with a seed of its own. After every stage: the accuracy over the
intents learnt so far (single head), and how well the largest score (``auroc``) and the largest
probability (``softmax auroc``) tell their test requests from the 1,000 test requests of no intent.
The lines are written into clinc.csv beside this file as they come. Methods that rest on fixed
features share one pass of the frozen MiniLM and take minutes in all. Those that insert something
into MiniLM pass their rows through it in every epoch: they run if they are named, and on a core
need an hour for all of 20 training and 10 test requests of each intent. Requests of no intent are
then scored after the last task only.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

import engram
from engram import methods
from engram.memory import Memory
from engram.metrics.detection import auroc

FILE = Path(__file__).with_suffix(".csv")
TASKS, ORDERS, EXEMPLARS = 15, 3, 1500
MODEL = {"name": "minilm", "pretrained": True}
FROZEN = {**MODEL, "freeze": True}
HEADS = {"epochs": 20, "batch_size": 64, "optimizer": "adam", "lr": 0.01}
INSERTED = {"epochs": 3, "batch_size": 16, "optimizer": "adam", "lr": 0.01}
# prompts before the 11 tokens of a request: the usual 25 would take three times as long
INSERTING = (
    methods.L2P(length=1), methods.DualPrompt(), methods.CODAPrompt(), methods.InfLoRA(),
    methods.EASE(),
)  # fmt: skip


@dataclass(frozen=True)
class OutOfScope(engram.Probe):
    """Area under the ROC curve of the largest score, and of the largest probability."""

    needs: ClassVar[tuple[str, ...]] = ("networks",)

    from_stage: int = 0

    @property
    def outside(self) -> bool:
        return True

    def after_stage(self, view: Any) -> Mapping[str, Any]:
        if view.stage < self.from_stage:
            return {name: np.full(len(view), np.nan) for name in ("auroc", "softmax_auroc")}
        shut = ~view.open
        inside = view.outputs.logits
        outside = torch.cat([view.map(_logits, x) for x in view.outside("valid")], 1)
        found: dict[str, list[float]] = {"auroc": [], "softmax_auroc": []}
        for run in range(len(view)):
            seen = inside[run, view.seen[run]].masked_fill(shut[run], -torch.inf).double()
            new = outside[run].masked_fill(shut[run], -torch.inf).double()
            for name, score in (("auroc", _largest), ("softmax_auroc", _likeliest)):
                found[name].append(auroc(score(seen), score(new)))
        return {name: np.array(values) for name, values in found.items()}


def _logits(net: Any, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = net(x).logits
    return found


def _largest(scores: torch.Tensor) -> np.ndarray:
    found: np.ndarray = scores.amax(1).cpu().numpy()
    return found


def _likeliest(scores: torch.Tensor) -> np.ndarray:
    found: np.ndarray = scores.softmax(1).amax(1).cpu().numpy()
    return found


def choose_methods(names: list[str]) -> list[tuple[list[Any], dict[str, Any]]]:
    """Methods that share a pass of the frozen network, and those that each train in it."""
    frozen = [getattr(methods, name)() for name in ("NCM", "RanPAC", "SLDA", "Finetune", "Joint")]
    frozen.append(methods.ER(memory=Memory(total=EXEMPLARS)))
    known = {type(one).__name__: one for one in (*frozen, *INSERTING)}
    if odd := [name for name in names if name not in known]:
        raise SystemExit(f"{', '.join(odd)}: expected some of {', '.join(known)}")
    shared = [one for one in frozen if not names or type(one).__name__ in names]
    found: list[tuple[list[Any], dict[str, Any]]] = []
    if shared:
        found.append((shared, {"model": FROZEN, **HEADS}))
    for one in INSERTING:
        if type(one).__name__ in names:
            options = {"model": MODEL, **INSERTED, "probes": [OutOfScope(TASKS - 1)]}
            found.append(([one], options))
    return found


def choose_rows(data: Any, rows: int, tested: int) -> Any:
    """Data with so many training and test rows of each class; 0: all."""
    train = data.limit(rows * data.n_classes).train if rows else data.train
    test = data.limit(tested * data.n_classes).test if tested else data.test
    own = torch.cat([train, test])  # others would be encoded in vain
    ours, theirs = torch.arange(len(own)).split([len(train), len(test)])
    return replace(
        data, x=data.x[own], y=data.y[own], train=ours, test=theirs, valid=ours[:0], texts=(),
        attributes={key: values[own] for key, values in data.attributes.items()},
    )  # fmt: skip


def measure(data: Any, outside: Any, order: int, made: list[Any], **options: Any) -> pd.DataFrame:
    """Train methods in one order of the intents; a line for each method and stage."""
    stream = engram.class_incremental(data, classes_per_task=data.n_classes // TASKS, seed=order)
    result = engram.run(
        stream, method=made, seeds=[order], device="cpu", outside=outside,
        **{"probes": [OutOfScope()], **options},
    )  # fmt: skip
    seen = result.probes()
    parts = []
    for name, matrix in zip(result.run_labels, np.asarray(result.matrix), strict=True):
        part = pd.DataFrame({"method": name, "order": order, "tasks": range(1, len(matrix) + 1)})
        part.insert(1, "rows", len(data.train) // data.n_classes)
        # every task has as many test rows
        part["accuracy"] = [row[: stage + 1].mean() for stage, row in enumerate(matrix)]
        part["forgetting"] = [
            float((np.nanmax(matrix[: k + 1, :k], axis=0) - matrix[k, :k]).mean()) if k else 0.0
            for k in range(len(matrix))
        ]
        for column in ("auroc", "softmax_auroc"):
            own = seen[(seen["label"] == name) & seen["metric"].str.endswith(f"/{column}")]
            part[column] = own.sort_values("stage")["mean"].to_numpy()
        seconds = result.cost().loc[name, "seconds"]
        parts.append(part.assign(seconds=[*[np.nan] * (len(part) - 1), seconds]))
    return pd.concat(parts)


def save(lines: pd.DataFrame, file: Path) -> None:
    """Write lines in place of those of the same methods, numbers of rows and orders."""
    keys = [key for key in ("method", "rows", "order") if key in lines]
    if file.exists():
        known = pd.read_csv(file)
        new = set(map(tuple, lines[keys].to_numpy().tolist()))
        kept = [tuple(one) not in new for one in known[keys].to_numpy().tolist()]
        lines = pd.concat([known[kept], lines])
    lines.round(4).sort_values([*keys, "tasks"]).to_csv(file, index=False)


def summarise(lines: pd.DataFrame) -> str:
    """Mean and deviation over orders, after the last task."""
    last = lines[lines["tasks"] == lines["tasks"].max()]
    columns = ["accuracy", "forgetting", "auroc", "softmax_auroc", "seconds"]
    return last.groupby(["method", "rows"])[columns].agg(["mean", "std"]).round(4).to_string()


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    parser.add_argument("--root", required=True, help="directory of CLINC150's data_full.json")
    parser.add_argument("--orders", type=int, default=ORDERS)
    parser.add_argument("--rows", type=int, default=0, help="training requests of an intent")
    parser.add_argument("--tested", type=int, default=0, help="test requests of an intent")
    parser.add_argument("--out", type=Path, default=FILE, help="the file of the lines")
    asked = parser.parse_args()
    data = engram.load("clinc150", root=asked.root, tokenizer="minilm")
    other = engram.load("clinc150_oos", root=asked.root, tokenizer="minilm")
    outside = replace(other, valid=other.test, test=other.valid)
    data = choose_rows(data, asked.rows, asked.tested)
    for order in range(asked.orders):
        for made, options in choose_methods(asked.methods):
            save(measure(data, outside, order, made, **options), asked.out)
            print(summarise(pd.read_csv(asked.out)), flush=True)


if __name__ == "__main__":
    main()
