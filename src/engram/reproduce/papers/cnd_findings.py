"""What the continual-novelty paper finds, as comparisons that can fail, tried on recorded runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.recipes import Recipe
from engram.records.features import feature_table
from engram.reproduce import measures
from engram.reproduce.cells import cells_of
from engram.reproduce.detected import detected, last_outside
from engram.reproduce.papers.claims import COLUMNS, NAN, Claim
from engram.reproduce.papers.cnd_numbers import name_of
from engram.reproduce.papers.cnd_preset import HEAD, MULTI, RESNET
from engram.reproduce.papers.cnd_rows import BIASED, COSINE, PLAIN, Row
from engram.reproduce.papers.drawing import frame

if TYPE_CHECKING:
    import pandas as pd

    from engram.records import Result
    from engram.reproduce.table import Measure

SIMILAR = 3.0  # points of accuracy
Rows = Mapping[Row, Recipe]


def findings(result: Result, rows: Rows) -> pd.DataFrame:
    """Every claim with its numbers, in percent where they are shares; one line per comparison."""
    if not len(result):
        return frame([], COLUMNS)
    stages = int(result.tasks.max())
    made = [*_detectors(rows, stages), *_methods(rows, stages), *_sets(rows)]
    return frame([claim.tried(result) for claim in made], COLUMNS)


def _of(rows: Rows, **wanted: str) -> Iterator[tuple[Row, Recipe]]:
    for row, made in rows.items():
        if all(getattr(row, name) == value for name, value in wanted.items()):
            yield row, made


def _detectors(rows: Rows, stages: int) -> Iterator[Claim]:
    """One detector against another, on the same runs; means over stages."""
    until = range(stages - 1)
    for row, made in _of(rows, head=PLAIN):
        softmax = ("Softmax", detected(made, "softmax", "combined_auroc", until))
        for other in ("ODIN", "Mahalanobis", "VAE") if row.setting == MULTI else ():
            second = (other, detected(made, other.lower(), "combined_auroc", until))
            yield Claim("Softmax at or above the others in C.AUC", name_of(row), softmax, second,
                        ties=True)  # fmt: skip
    for row, made in _of(rows, head=PLAIN, backbone=RESNET):
        der = "forgotten_outside_detection_error"
        both = {name: detected(made, name.lower(), der, until) for name in ("Softmax", "ODIN")}
        yield Claim("ODIN below Softmax in Forg/Out DER", name_of(row),
                    ("Softmax", both["Softmax"]), ("ODIN", both["ODIN"]))  # fmt: skip
    for row, made in _of(rows, backbone=RESNET):
        if row.head != (PLAIN if row.setting == MULTI else COSINE):
            continue
        softmax = ("Softmax", detected(made, "softmax", "mean_auroc", until))
        for name in ("B1", "B2"):
            first = (name, detected(made, name.lower(), "mean_auroc", until))
            paper = (_printed(row.method, name), _printed(row.method, "Softmax"))
            yield Claim("B1 and B2 at or above Softmax in mAUC", name_of(row), first, softmax,
                        paper, ties=True)  # fmt: skip


def _printed(method: str, detector: str) -> float:
    """The mAUC of table 3, where the paper's own numbers do not always bear out its words.

    Examples
    --------
    >>> _printed("FineTune", "B1"), _printed("SSIL-25s", "B1"), _printed("SSIL-25s", "Softmax")
    (72.5, 75.8, 77.9)
    """
    wanted = {"method": method, "nd_method": detector, "metric": "mAUC"}
    (value,) = (
        cell.value
        for cell in cells_of("cnd", "3")
        if all(cell[name] == word for name, word in wanted.items())
    )
    return NAN if value is None else value


def _methods(rows: Rows, stages: int) -> Iterator[Claim]:
    """One method against FineTune, Softmax, after the last stage that has tasks to come."""
    own = {row.method: made for row, made in _of(rows, head=PLAIN, backbone=RESNET)}
    printed = {"LwF": (77.0, 18.5, 77.0), "MAS": (75.0, 18.9, 74.0), "FineTune": (64.0, 35.6, 80.0)}

    def softmax(method: str, metric: str) -> tuple[str, Measure]:
        return method, detected(own[method], "softmax", metric, stages - 2)

    for place, (finding, metric, above) in enumerate((
        ("P.AUC of LwF and MAS above FineTune's", "previous_auroc", True),
        ("In/Forg DER of LwF and MAS below FineTune's", "inside_forgotten_detection_error", False),
        ("R.AUC of LwF and MAS below FineTune's", "recent_auroc", False),
    )):  # fmt: skip
        for name in ("LwF", "MAS"):
            if {name, "FineTune"} <= set(own):
                pair = (name, "FineTune") if above else ("FineTune", name)
                first, second = (softmax(one, metric) for one in pair)
                paper = (printed[pair[0]][place], printed[pair[1]][place])
                yield Claim(finding, name, first, second, paper)
    for _, biased in _of(rows, head=BIASED):
        without, bias = (
            measures.metric("average_accuracy", one, head="multi", percent=True)
            for one in (own["FineTune"], biased)
        )
        yield Claim(
            f"without bias as accurate as with it (within {SIMILAR:g} points)", "FineTune",
            ("without", without), ("with", bias), ties=True, slack=SIMILAR,
        )  # fmt: skip


def _sets(rows: Rows) -> Iterator[Claim]:
    """One set of items against another."""
    for row, made in _of(rows, head=PLAIN, backbone=RESNET):
        first, second = ((f"task {task + 1}", _against_last(made, task)) for task in (0, 1))
        if row.method != "LwF":  # the paper's exception
            yield Claim("first In above second, AUC against the last task", name_of(row), first,
                        second)  # fmt: skip
        inside, forgotten = ((name, _norm(row, made, name)) for name in ("inside", "forgotten"))
        yield Claim("norm of Forg's features below In's", name_of(row), inside, forgotten)


def _against_last(made: Recipe, task: int) -> Measure:
    return lambda result: 100 * np.array(last_outside(result, made).get(("softmax", task), [NAN]))


def _norm(row: Row, made: Recipe, name: str) -> Measure:
    """Mean over the stages in which something is forgotten, and over the runs: once for each."""

    def measure(result: Result) -> Any:
        runs = measures.runs_of(result, [made], HEAD[row.setting])
        if runs is None:
            return np.array([NAN])
        table = feature_table(runs, "recipe", [run.recipe for run in runs.runs])
        norms = table[table["statistic"] == "norm"].pivot(index="stage", columns="set",
                                                          values="mean")  # fmt: skip
        if "forgotten" not in norms:
            return np.array([NAN])
        value = norms.dropna(subset=["forgotten"])[name].mean()
        return np.full(len(runs), float(value))

    return measure
