r"""From arrays to the tables, figures and pages of a paper, with no file edited by hand.

    python examples/paper.py paper

Two data sets, three methods, five seeds. Replace `read_arrays` by your own, and `METHODS` by the
ones that you compare; everything in `paper/` follows. Interrupted, it goes on where it was; runs
that are finished are not run again.

    paper/runs/NAME          records of the runs, for `engram metrics`, `engram report`, ...
    paper/tables/NAME/*.tex  every table of a data set, and all.tex with all data sets
    paper/figures/*.html     accuracy after every task, by data set; they need no network
    paper/report.html        everything on one page
    paper/card.md            what was run, on which data, and what each number means, to be cited
    paper/numbers.tex        numbers for the text: \DigitsERaccuracy
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import engram
from engram.report import build, from_directories, write_tables
from engram.report.protocol_card import make_card

METHODS = ["Finetune", "EWC", engram.methods.ER(memory=engram.Memory(per_class=10))]
SEEDS = 5
SETTINGS = {"model": {"name": "mlp", "hidden": [64]}, "epochs": 5, "batch_size": 32, "lr": 0.01}
BASELINE = "Finetune"
METRICS = {"average_accuracy": "accuracy", "forgetting": "forgetting"}


def read_arrays(name: str) -> tuple[Any, Any]:
    """Inputs [n, ...] and labels [n]; here of a set that comes with Engram."""
    data = engram.load(name)
    return np.asarray(data.x), np.asarray(data.labels)


def train(name: str, out: Path, **changes: Any) -> engram.Result:
    """Train all methods on one data set."""
    data = engram.Data.from_arrays(*read_arrays(name), name=name)
    stream = engram.class_incremental(data, classes_per_task=2)
    options = {"method": METHODS, "seeds": SEEDS, **SETTINGS, **changes}
    return engram.run(stream, out=out, **options)


def tabulate(results: Mapping[str, engram.Result]) -> str:
    """Methods by data sets in LaTeX; bold, if better than the baseline at 5 % (Holm)."""
    labels = next(iter(results.values())).labels
    lines = [
        r"\begin{tabular}{l" + "c" * len(METRICS) * len(results) + "}",
        r"\hline",
        " & ".join(["", *(rf"\multicolumn{{{len(METRICS)}}}{{c}}{{{name}}}" for name in results)])
        + r" \\",
        " & ".join(["method", *list(METRICS.values()) * len(results)]) + r" \\",
        r"\hline",
    ]
    for label in labels:
        cells = [escape(label)]
        for result in results.values():
            for metric in METRICS:
                values = result.select(label=label).metric(metric)
                shown = f"{100 * values.mean():.1f} $\\pm$ {100 * values.std(ddof=1):.1f}"
                better = label != BASELINE and is_better(result, label, metric)
                cells.append(rf"\textbf{{{shown}}}" if better else shown)
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


def is_better(result: engram.Result, label: str, metric: str) -> bool:
    """Whether a method beats the baseline, by the paired test of `Result.compare`."""
    pairs = result.compare(metric).pairs  # by (higher mean, lower mean)
    pair = (BASELINE, label) if metric == "forgetting" else (label, BASELINE)
    return pair in pairs.index and bool(pairs.loc[[pair], "p_holm"].iloc[0] < 0.05)


def name_numbers(results: Mapping[str, engram.Result]) -> str:
    """A LaTeX command for every mean, so that the text follows the runs."""
    lines = []
    for name, result in results.items():
        for label in result.labels:
            for metric, word in METRICS.items():
                mean = 100 * result.select(label=label).metric(metric).mean()
                letters = "".join(
                    c for c in f"{name.title()}{label.split()[0]}{word}" if c.isalpha()
                )
                lines.append(rf"\newcommand{{\{letters}}}{{{mean:.1f}}}")
    return "\n".join([*lines, ""])


def escape(text: str) -> str:
    """Protect what LaTeX would read as a command."""
    return "".join(f"\\{c}" if c in "_%&#$" else c for c in text)


def write_paper(
    folder: Path, names: tuple[str, ...] = ("digits", "glyphs"), **changes: Any
) -> None:
    """Train on each data set and write all files of the paper."""
    results = {name: train(name, folder / "runs" / name, **changes) for name in names}
    for part in ("tables", "figures"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        runs = from_directories(folder / "runs" / name)
        write_tables(runs, folder / "tables" / name, formats=["latex", "csv"])
        result.plot("stages").write_html(folder / "figures" / f"{name}.html", include_plotlyjs=True)
    (folder / "tables" / "all.tex").write_text(tabulate(results), encoding="utf-8")
    (folder / "numbers.tex").write_text(name_numbers(results), encoding="utf-8")
    directories = [folder / "runs" / name for name in names]
    build(from_directories(*directories), folder / "report.html", title="All runs of the paper")
    make_card(*directories).write(folder / "card.md")


if __name__ == "__main__":
    write_paper(Path(sys.argv[1] if len(sys.argv) > 1 else "paper"))
