"""Run a released code base on the rows of its tables here, for `engram reproduce`.

    python -m benchmarks.peers.tables mammoth/seq-mnist --python PYTHON --source FOLDER --root DIR

What a row gives its code is `theirs` in ``reproduce/papers/tables/<code base>.yaml``. The code base
runs under an interpreter of its own, in a checkout of the commit named there, on the rows that
`engram.load` gives. Every answer goes to ``records/reference/<code base>_results.csv`` as it comes;
what is there already is not run again. `--only` takes rows by the beginnings of their names.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import engram
from benchmarks.peers.job import ANSWER
from engram.io import atomic_write
from engram.reproduce.papers.code_tables import VIEWS, row_name
from engram.reproduce.papers.paper_base import PaperData

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "src" / "engram" / "records" / "reference"
SIDES = {"mammoth": "mammoth_tables"}
COLUMNS = (
    "paper", "table", "dataset", "setting", "order", "augmentation", "method", "params", "stage",
    "metric", "value", "std", "repetitions", "seeds", "seconds",
)  # fmt: skip
Key = tuple[str, str, str]  # table, name of the row, setting
Found = dict[Key, dict[int, tuple[float, float]]]  # seed to accuracy in percent and seconds


def read_results(path: Path) -> Found:
    """What has been run before."""
    found: Found = {}
    if not path.exists():
        return found
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = row["table"], row_name(row), row["setting"]
            values = (map(float, row[name].split()) for name in ("repetitions", "seconds"))
            pairs = zip(*values, strict=True)
            found[key] = dict(zip(map(int, row["seeds"].split()), pairs, strict=True))
    return found


def write_results(found: Found, data: PaperData, name: str, path: Path) -> None:
    """Write all rows, in the order of the tables."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for title, table in data["tables"].items():
            for row in table["rows"]:
                for setting in VIEWS:
                    runs = dict(sorted(found.get((title, row_name(row), setting), {}).items()))
                    if not runs:
                        continue
                    values = [value for value, _ in runs.values()]
                    writer.writerow({
                        "paper": name, "table": title, "dataset": "MNIST", "setting": setting,
                        "method": row["method"], "params": row.get("params", ""), "metric": "A(%)",
                        "stage": table["tasks"], "value": f"{np.mean(values):.4f}",
                        "repetitions": " ".join(f"{one:.3f}" for one in values),
                        "seeds": " ".join(map(str, runs)),
                        "seconds": " ".join(f"{one:.1f}" for _, one in runs.values()),
                    })  # fmt: skip


def make_lines(table: Any, title: str, seeds: int, only: Sequence[str], found: Found) -> list[Any]:
    """The rows that are to be run, with the seeds that are missing."""
    lines = []
    for row in table["rows"]:
        name = row_name(row)
        there = found.get((title, name, next(iter(VIEWS))), {})
        missing = [seed for seed in range(seeds) if seed not in there]
        if missing and (not only or name.startswith(tuple(only))):
            options = dict(row["theirs"])
            model = options.pop("model")
            lines.append({"name": name, "model": model, "options": options, "seeds": missing})
    return lines


def run_lines(
    side: str, python: str, source: Path, arrays: dict[str, Any], lines: list[Any]
) -> Iterator[dict[str, Any]]:
    """Run the other code base, and give its answers as they come."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "arrays.npz", **arrays)
        (Path(folder) / "lines.json").write_text(json.dumps(lines), encoding="utf-8")
        paths = os.pathsep.join([str(source), str(ROOT)])
        command = [python, "-W", "ignore", "-m", f"benchmarks.peers.{side}", folder]
        process = subprocess.Popen(
            command, cwd=source, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(ANSWER):
                yield json.loads(line.removeprefix(ANSWER))
        if process.wait():
            raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")


def record(answer: dict[str, Any], title: str, found: Found) -> None:
    """Enter the accuracies of a run after its last task."""
    for setting, view in zip(VIEWS, ("class", "task"), strict=True):
        accuracy = 100 * float(np.mean(answer["views"][view][-1]))
        runs = found.setdefault((title, answer["line"], setting), {})
        runs[answer["seed"]] = accuracy, answer["seconds"]


def load_arrays(name: str, root: str | None) -> dict[str, Any]:
    """Rows as the code bases read them: bytes without channels, and whole numbers."""
    data = engram.load(name, root=root)
    x, y = np.asarray(data.x)[:, 0], np.asarray(data.labels).astype(np.int64)
    found = {}
    for part in ("train", "test"):
        rows = np.asarray(getattr(data, part))
        found |= {f"{part}_x": x[rows], f"{part}_y": y[rows]}
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.tables")
    add = parser.add_argument
    add("table", metavar="CODE/TABLE")
    add("--python", required=True, help="an interpreter with what the code base needs")
    add("--source", required=True, type=Path, metavar="FOLDER", help="a checkout of it")
    add("--root", metavar="DIR", help="data sets by name")
    add("--seeds", type=int, default=5)
    add("--only", nargs="+", default=[], metavar="ROW", help="rows whose names begin so")
    given = parser.parse_args(arguments)
    name, _, title = given.table.partition("/")
    data, path = PaperData(name), REFERENCE / f"{name}_results.csv"
    found = read_results(path)
    lines = make_lines(data["tables"][title], title, given.seeds, given.only, found)
    arrays = load_arrays("mnist", given.root)
    for answer in run_lines(SIDES[name], given.python, given.source.resolve(), arrays, lines):
        if answer["error"]:
            print(f"{answer['line']}, seed {answer['seed']}: {answer['error']}")
            continue
        record(answer, title, found)
        write_results(found, data, name, path)
        print(f"{answer['line']}, seed {answer['seed']}: {answer['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
