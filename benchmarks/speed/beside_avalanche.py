"""Avalanche on the same stream, in a process of its own interpreter (it is no dependency).

The stream goes there as a file of arrays, names of strategies on the standard input; back come the
processor seconds of each training. This file is run by that interpreter, too, which needs Avalanche
and torch but not Engram.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

BATCH, WIDTH = 64, 256


class Avalanche:
    """A process that trains strategies of Avalanche.

    Parameters
    ----------
    python
        An interpreter that has Avalanche.
    stream
        A stream of Engram; every task has classes of its own.
    """

    def __init__(self, python: str, stream: Any, epochs: int) -> None:
        self.python, self.stream, self.epochs = python, stream, epochs

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "stream.npz"
        data = self.stream.data
        parts = {
            f"{k}/{part}": getattr(task, part).numpy()
            for k, task in enumerate(self.stream.tasks)
            for part in ("train", "test")
        }
        flat = np.asarray(data.x).reshape(len(data), -1)
        np.savez(path, x=flat, y=np.asarray(data.labels), **parts)
        self._process = subprocess.Popen(
            [self.python, __file__, str(path), str(self.epochs)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def prepare(self, strategy: str) -> Callable[[], float]:
        """Return work that trains a strategy and returns its processor seconds."""

        def train() -> float:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(strategy + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.startswith('{"seconds"'):  # Avalanche prints, too
                    return float(json.loads(line)["seconds"])
            raise RuntimeError(f"{self.python}: Avalanche ended early; is it installed there?")

        return train


def make_benchmark(path: str) -> tuple[Any, int, int]:
    """The stream as Avalanche's benchmark, the width of its rows and the number of classes."""
    from avalanche.benchmarks import nc_benchmark
    from torch.utils.data import TensorDataset

    arrays = np.load(path)
    x, y = torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"]).long()
    x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    tasks = sum(name.endswith("/train") for name in arrays)

    def make(part: str) -> Any:
        rows = torch.cat([torch.from_numpy(arrays[f"{k}/{part}"]) for k in range(tasks)])
        found: Any = TensorDataset(x[rows], y[rows])
        found.targets = y[rows].tolist()
        return found

    order = [c for k in range(tasks) for c in y[arrays[f"{k}/train"]].unique().tolist()]
    made = nc_benchmark(
        make("train"), make("test"), n_experiences=tasks, task_labels=False, fixed_class_order=order
    )
    return made, x.shape[1], len(order)


def train_strategy(name: str, benchmark: Any, width: int, classes: int, epochs: int) -> float:
    """Train and evaluate after every task; processor seconds."""
    from avalanche.evaluation.metrics import accuracy_metrics
    from avalanche.training import supervised
    from avalanche.training.plugins import EvaluationPlugin

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, classes),
    )  # fmt: skip
    options = {
        "Replay": {"mem_size": 500},
        "SynapticIntelligence": {"si_lambda": 1.0},
        "LwF": {"alpha": 1.0, "temperature": 2.0},
    }.get(name, {})
    watch = EvaluationPlugin(accuracy_metrics(experience=True), loggers=[])
    strategy = getattr(supervised, name)(
        model=net, optimizer=torch.optim.Adam(net.parameters(), lr=1e-3, fused=True),
        criterion=nn.CrossEntropyLoss(), train_mb_size=BATCH, train_epochs=epochs,
        eval_mb_size=1024, evaluator=watch,
        **options,
    )  # fmt: skip
    began = time.process_time()
    for k, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        strategy.eval(benchmark.test_stream[: k + 1])
    return time.process_time() - began


def main() -> None:
    torch.set_num_threads(1)
    path, epochs = sys.argv[1:]
    made = make_benchmark(path)
    for line in sys.stdin:
        seconds = train_strategy(line.strip(), *made, int(epochs))
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
