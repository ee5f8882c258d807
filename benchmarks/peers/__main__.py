"""Train the same methods with Engram, Avalanche, Mammoth and a plain loop, each in its own place.

    python -m benchmarks.peers --avalanche PYTHON --mammoth PYTHON --mammoth-source FOLDER

All get the same rows, class orders, initial weights, optimiser and numbers of steps; what else a
method decides is each library's own. Avalanche and Mammoth run under interpreters of their own
(Avalanche: `pip install torch avalanche-lib`; Mammoth: a checkout of github.com/aimagelab/mammoth
and its requirements, plus six); without one, its lines say so. `--out` writes what `engram import
csv` reads, so that every metric and test applies to all of them.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.peers.engram_side import make_job
from benchmarks.peers.job import METHODS, Answer, Job, Settings, read_answers
from benchmarks.peers.plain_side import VARIANTS

ROOT = Path(__file__).parents[2]
REASONS = {
    "ER": "All but `union` take as many steps as the task has batches, each with as many memory "
    "rows as new ones: Engram and the loop draw them with replacement, Avalanche goes through a "
    "memory shared by tasks, Mammoth has a reservoir that also holds rows of the task. `union` "
    "goes over the task and the whole memory in every epoch, more than twice as many steps here: "
    "this is why a plain loop can give much more after few epochs, not an error of a library. "
    "After 20 epochs (three seeds) all four are at .89 to .92 without it.",
    "EWC": "The Fisher information is the mean of squared gradients per row in Engram, the square "
    "of a batch's mean gradient in Avalanche; Mammoth weights rows by their probability and adds "
    "up tasks into one penalty.",
    "LwF": "Mammoth first trains the head alone, and keeps the old outputs of the task's rows; "
    "Engram and Avalanche compute them at every step.",
    "DERpp": "Avalanche fills a memory shared by classes after a task, with the logits of its end; "
    "Engram and Mammoth have a reservoir, with the logits of the step that stored a row. Engram's "
    "distance of logits is a mean over the classes seen, which weighs more at first than that over "
    "all outputs.",
    "ICaRL": "All train on the task and the exemplars together. Mammoth adds weight decay to the "
    "loss. Which of the other differences matter is not known.",
}
EVERYWHERE = (
    "Cross-entropy is over the classes seen so far in Engram and the loop, over all outputs in "
    "Avalanche and Mammoth. Batches follow each library's own generator."
)


@dataclass(frozen=True)
class Side:
    """A library, and how it is run."""

    library: str
    module: str
    python: str | None
    folder: Path = ROOT
    methods: tuple[str, ...] = METHODS
    missing: str = ""

    def run(self, job: Job, folder: Path) -> list[Answer]:
        """Train all methods of the job in a process of its own."""
        names = tuple(one for one in self.methods if one.split(",")[0] in job.settings.methods)
        own = Job(replace(job.settings, methods=names), job.arrays)
        if self.python is None:
            return [Answer(self.library, name, 0, [], 0.0, self.missing) for name in names]
        own.write(folder)
        paths = [
            str(self.folder),
            str(ROOT),
            *([str(ROOT / "src")] if self.python == sys.executable else []),
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        command = [
            self.python,
            "-W",
            "ignore",
            "-m",
            f"benchmarks.peers.{self.module}",
            str(folder),
        ]
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        found = list(read_answers(done.stdout))
        if len(found) < len(names) * job.settings.seeds:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            there = {one.method for one in found}
            found += [
                Answer(self.library, name, 0, [], 0.0, f"ended early: {last}")
                for name in names if name not in there
            ]  # fmt: skip
        return found


def make_sides(given: argparse.Namespace) -> list[Side]:
    """The libraries that can run, and why the others cannot."""
    plain = ("Finetune", "ER", *VARIANTS)
    source = given.mammoth_source
    return [
        Side("Engram", "engram_side", sys.executable),
        Side("plain loop", "plain_side", sys.executable, methods=plain),
        Side("Avalanche", "avalanche_side", given.avalanche, missing="not run: no --avalanche"),
        Side(
            "Mammoth", "mammoth_side", given.mammoth if source else None,
            folder=Path(source or ROOT), missing="not run: no --mammoth and --mammoth-source",
        ),
    ]  # fmt: skip


def format_table(answers: Sequence[Answer]) -> str:
    """A Markdown table: accuracy after the last task, mean and deviation, and seconds."""
    lines = ["| method | library | accuracy | seconds |", "|---|---|---|---|"]
    order = list(dict.fromkeys(one.method for one in answers))
    order.sort(key=lambda name: METHODS.index(name.split(",")[0]))
    for method in order:
        for library in dict.fromkeys(one.library for one in answers):
            mine = [one for one in answers if (one.library, one.method) == (library, method)]
            good = [one for one in mine if not one.error]
            if not mine:
                continue
            if not good:
                lines.append(f"| {method} | {library} | {mine[0].error} | |")
                continue
            if not np.isfinite([one.average for one in good]).all():
                lines.append(f"| {method} | {library} | diverged | |")
                continue
            values = [one.average for one in good]
            shown = (
                f"{np.mean(values):.3f} ± {np.std(values, ddof=1) if len(values) > 1 else 0:.3f}"
            )
            seconds = np.mean([one.seconds for one in good])
            errors = [one.error for one in mine if one.error]
            remark = f" ({len(errors)} failed: {errors[0]})" if errors else ""
            lines.append(f"| {method} | {library} | {shown}{remark} | {seconds:.2f} |")
    return "\n".join(lines)


def write_csv(answers: Sequence[Answer], path: Path) -> None:
    """Write every accuracy in the form that `engram import csv` reads."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "seed", "stage", "task", "value"])
        for one in answers:
            for stage, row in enumerate(one.matrix):
                for task, value in enumerate(row):
                    label = f"{one.method} ({one.library})"
                    writer.writerow([label, one.seed, stage + 1, task + 1, f"{value:.6f}"])


def main(arguments: Sequence[str] | None = None) -> list[Answer]:
    """Run the command line; return the answers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    add = parser.add_argument
    add("--avalanche", metavar="PYTHON", help="an interpreter with avalanche-lib")
    add("--mammoth", metavar="PYTHON", help="an interpreter with what Mammoth needs")
    add("--mammoth-source", metavar="FOLDER", help="a checkout of Mammoth")
    add("--data", default="digits", help="a data set with one label per row")
    add("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    for name in ("seeds", "epochs", "batch_size", "memory"):
        add(f"--{name.replace('_', '-')}", type=int, default=getattr(Settings, name))
    add("--lr", type=float, default=Settings.lr)
    add("--out", type=Path, metavar="FILE.csv", help="accuracies, for `engram import csv`")
    given = parser.parse_args(arguments)
    settings = Settings(
        methods=tuple(given.methods), seeds=given.seeds, epochs=given.epochs,
        batch_size=given.batch_size, memory=given.memory, lr=given.lr,
    )  # fmt: skip
    job, answers = make_job(given.data, settings), []
    for side in make_sides(given):
        with tempfile.TemporaryDirectory() as folder:
            answers += side.run(job, Path(folder))
    print(format_table(answers))
    print(f"\n{EVERYWHERE}")
    for method in given.methods:
        if method in REASONS:
            print(f"\n{method}: {REASONS[method]}")
    if given.out is not None:
        write_csv(answers, given.out)
    return answers


if __name__ == "__main__":
    main()
