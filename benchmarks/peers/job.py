"""What every library is given and gives back, and the network; needs numpy and torch only.

A job is a folder: `job.json` has the settings, `arrays.npz` the rows, the class order and the
initial weights of every seed. Answers are lines of JSON on the standard output.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

METHODS = ("Finetune", "ER", "EWC", "LwF", "DERpp", "ICaRL")
ANSWER = "peer-answer "  # libraries print, too


@dataclass(frozen=True)
class Settings:
    """The settings that all libraries share."""

    methods: tuple[str, ...] = METHODS
    seeds: int = 5
    classes_per_task: int = 2
    epochs: int = 5
    batch_size: int = 32
    lr: float = 0.05
    hidden: tuple[int, ...] = (100, 100)
    memory: int = 500
    ewc: float = 5.0  # of a penalty without the factor 1/2
    lwf: float = 1.0
    temperature: float = 2.0
    alpha: float = 0.1  # DER++: of the logits
    beta: float = 0.5  # DER++: of the labels


@dataclass(frozen=True)
class Job:
    """Settings, rows and initial weights."""

    settings: Settings
    arrays: dict[str, npt.NDArray[Any]]

    @classmethod
    def read(cls, folder: str | Path) -> Job:
        """Read the folder that `write` made."""
        plain = json.loads((Path(folder) / "job.json").read_text(encoding="utf-8"))
        plain = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
        with np.load(Path(folder) / "arrays.npz") as found:
            return cls(Settings(**plain), dict(found))

    def write(self, folder: Path) -> None:
        """Write a folder that `read` reads."""
        (folder / "job.json").write_text(json.dumps(asdict(self.settings)), encoding="utf-8")
        np.savez(folder / "arrays.npz", **self.arrays)  # type: ignore[arg-type]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.arrays["y"].max()) + 1

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return self.classes // self.settings.classes_per_task

    @cached_property
    def x(self) -> Tensor:
        """All rows, [n, d]."""
        return torch.from_numpy(self.arrays["x"])

    def labels(self, seed: int) -> Tensor:
        """Labels [n] in the class order of a seed: task k has labels 2k and 2k + 1."""
        place = np.argsort(self.arrays["order"][seed])
        return torch.from_numpy(place[self.arrays["y"]]).long()

    def rows(self, seed: int, task: int, part: str) -> Tensor:
        """Row numbers of a task: part is `train` or `test`."""
        mine = torch.from_numpy(self.arrays[part])
        wide = self.settings.classes_per_task
        return mine[self.labels(seed)[mine] // wide == task]

    def layers(self, seed: int) -> list[nn.Linear]:
        """Linear layers with the initial weights of a seed."""
        found = []
        for k in range(len(self.settings.hidden) + 1):
            weight, bias = (self.arrays[f"{name}-{seed}-{k}"] for name in ("weight", "bias"))
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            with torch.no_grad():
                layer.weight.copy_(torch.from_numpy(weight))
                layer.bias.copy_(torch.from_numpy(bias))
            found.append(layer)
        return found


class Network(nn.Module):
    """Layers with rectifiers between them: a feature extractor and a classifier."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        body = [part for layer in layers[:-1] for part in (layer, nn.ReLU())]
        self.features, self.classifier = nn.Sequential(*body), layers[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits [B, classes]."""
        found: Tensor = self.classifier(self.features(x))
        return found


@dataclass(frozen=True)
class Answer:
    """What a library gave for a method and a seed."""

    library: str
    method: str
    seed: int
    matrix: list[list[float]]  # accuracy after stage [i] of task [j]
    seconds: float  # processor time of training and evaluation
    error: str = ""

    @property
    def average(self) -> float:
        """Mean accuracy over the tasks after the last."""
        return float(np.mean(self.matrix[-1])) if self.matrix else float("nan")


def answer_all(
    library: str, train: Callable[[Job, str, int], list[list[float]]], folder: str
) -> None:
    """Train every method with every seed, and print what came of it."""
    torch.set_num_threads(1)
    job = Job.read(folder)
    with contextlib.suppress(Exception):  # imports are not timed; an error comes again below
        train(job, job.settings.methods[0], 0)
    for method in job.settings.methods:
        for seed in range(job.settings.seeds):
            torch.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002 (Mammoth draws from it)
            began = time.process_time()
            try:
                matrix, error = train(job, method, seed), ""
            except Exception as problem:  # any error of another library becomes a line of the table
                matrix, error = [], f"{type(problem).__name__}: {problem}".splitlines()[0][:200]
            took = time.process_time() - began
            found = Answer(library, method, seed, matrix, round(took, 3), error)
            print(f"\n{ANSWER}{json.dumps(asdict(found))}", flush=True)


def read_answers(text: str) -> Iterator[Answer]:
    """Find answers among whatever else a library printed."""
    for line in text.splitlines():
        if line.startswith(ANSWER):
            yield Answer(**json.loads(line.removeprefix(ANSWER)))


def job_folder() -> str:
    """Return the folder named on the command line."""
    return sys.argv[1]
