"""The work behind one point of each axis; small networks on synthetic data."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engram import class_incremental, load, read, run
from engram.report import build, from_directories

Timer = Callable[[str], Any]  # a context whose processor time counts under a name


@dataclass(frozen=True)
class Axis:
    """Something that is made larger, and what is done at each size."""

    unit: str
    sizes: tuple[int, ...]
    work: Callable[[int, Timer], None]


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "run"


def _train(timer: Timer, tasks: int, seeds: int = 1, method: Any = "ER", **blobs: int) -> None:
    data = load("blobs", **{"features": 32, **blobs})
    stream = class_incremental(data, classes_per_task=len(data.classes) // tasks)
    with _folder() as out:
        with timer("run"):
            run(stream, method=method, model={"name": "mlp", "hidden": [32]}, epochs=1,
                       batch_size=32, seeds=seeds, device="cpu", out=out)  # fmt: skip
        with timer("read"):
            result = read(out)
            result.summary()
        with timer("report"):
            build(from_directories(out), out / "report.html")


def tasks(size: int, timer: Timer) -> None:
    """So many tasks of two classes; every task has as many rows, so the data grows as well."""
    _train(timer, size, classes=2 * size, per_class=30)


def classes(size: int, timer: Timer) -> None:
    """So many classes in two tasks, of 8,000 rows in all."""
    method = {"name": "ER", "memory": {"total": 1000}}  # an exemplar of each class at least
    _train(timer, 2, method=method, classes=size, per_class=8000 // size)


def runs(size: int, timer: Timer) -> None:
    """So many seeds of one recipe, in lockstep."""
    _train(timer, 2, seeds=size, classes=4, per_class=100)


def rows(size: int, timer: Timer) -> None:
    """So many rows of ten classes in five tasks."""
    _train(timer, 5, classes=10, per_class=size // 10)


AXES = {
    "tasks": Axis("tasks", (1, 5, 20, 50, 100, 200), tasks),
    "classes": Axis("classes", (2, 10, 100, 1000), classes),
    "runs": Axis("runs", (1, 8, 32, 128, 512), runs),
    "rows": Axis("rows", (1000, 4000, 16000, 64000, 256000), rows),
}
