"""Mammoth's side of its tables, run by an interpreter that has what it needs, in its folder.

`python -m benchmarks.peers.mammoth_tables FOLDER` trains every line of `lines.json` with every of
its seeds, on the rows in `arrays.npz`, by Mammoth's own network, loop and evaluation. Answers are
lines of JSON: accuracies by stage and task among all classes, and among those of the row's task.
"""

# Mammoth calls the annotations of a backbone, so they must not be text
# ruff: noqa: I002
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.peers.job import ANSWER
from benchmarks.peers.mammoth_side import (
    ContinualDataset,
    load_runner,
    register_dataset,
    set_default_from_args,
    store_masked_loaders,
    train_model,
)

NAME = "peer-table"
IMAGE = (28, 28)


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Training or test rows as Mammoth's own data sets give them."""

    def __init__(self, x: np.ndarray, y: np.ndarray, training: bool) -> None:
        self.data, self.targets, self.training = x, y, training

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        x = torch.from_numpy(self.data[row])[None].float() / 255
        y = int(self.targets[row])
        return (x, y, x.clone()) if self.training else (x, y)


class Current:
    """The run in work: Mammoth makes data sets from names alone."""

    arrays: dict[str, np.ndarray]
    views: dict[str, list[list[float]]]


def make_dataset() -> None:
    """Register the rows as a class-incremental data set of two digits a task."""

    @register_dataset(NAME)
    class PeerTable(ContinualDataset):  # type: ignore[misc]
        NAME = "peer-table"
        SETTING = "class-il"
        N_CLASSES_PER_TASK = 2
        N_TASKS = 5
        N_CLASSES = 10
        SIZE = IMAGE
        TRANSFORM = None

        def get_data_loaders(self) -> Any:
            found = Current.arrays
            parts = [
                Rows(found[f"{part}_x"].copy(), found[f"{part}_y"].astype(int), part == "train")
                for part in ("train", "test")
            ]
            return store_masked_loaders(*parts, self)

        def log(self, args: Any, logger: Any, accs: Any, *others: Any, **options: Any) -> Any:
            for view, found in zip(("class", "task"), accs, strict=True):
                Current.views[view].append([float(one) / 100 for one in found])
            return np.mean(accs, axis=1)

        @set_default_from_args("backbone")
        def get_backbone() -> str:  # type: ignore[misc]
            return "mnistmlp"

        @staticmethod
        def get_transform() -> Any:
            return None

        @staticmethod
        def get_loss() -> Any:
            return F.cross_entropy

        @staticmethod
        def get_normalization_transform() -> Any:
            return None

        @staticmethod
        def get_denormalization_transform() -> Any:
            return None

        @set_default_from_args("batch_size")
        def get_batch_size() -> int:  # type: ignore[misc]
            return 10  # a line says its own

        @set_default_from_args("n_epochs")
        def get_epochs() -> int:  # type: ignore[misc]
            return 1


def train(line: dict[str, Any], seed: int) -> dict[str, list[list[float]]]:
    """Train and evaluate after every task, by Mammoth's own loop."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (Mammoth draws from it)
    torch.manual_seed(seed)
    Current.views = {"class": [], "task": []}
    with tempfile.TemporaryDirectory() as folder:
        model, data = load_runner(
            line["model"], NAME,
            {
                "optimizer": "sgd", "optim_mom": 0.0, "seed": seed, "base_path": folder,
                "num_workers": 0, "non_verbose": 1,
                "n_epochs": 1, "optim_wd": 0.0, **line["options"],
            },
        )  # fmt: skip
        train_model(model, data)
    return Current.views


def main(folder: Path) -> None:
    """Train all lines of a folder; an error becomes an answer."""
    torch.set_num_threads(1)
    with np.load(folder / "arrays.npz") as found:
        Current.arrays = dict(found)
    make_dataset()
    for line in json.loads((folder / "lines.json").read_text(encoding="utf-8")):
        for seed in line["seeds"]:
            began, error, views = time.process_time(), "", {}
            try:
                views = train(line, seed)
            except Exception as problem:  # any error of another library becomes an answer
                error = f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
            answer = {
                "line": line["name"], "seed": seed, "views": views, "error": error,
                "seconds": round(time.process_time() - began, 2),
            }  # fmt: skip
            print(f"\n{ANSWER}{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
