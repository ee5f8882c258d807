"""What IIRC finds, as comparisons that can fail, tried on recorded runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engram.reproduce import measures
from engram.reproduce.cells import cells_of
from engram.reproduce.papers.claims import COLUMNS, NAN, Claim
from engram.reproduce.papers.drawing import frame
from engram.reproduce.papers.iirc_preset import ROWS, SCORE, UPPER

if TYPE_CHECKING:
    import pandas as pd

    from engram.recipes import Recipe
    from engram.records import Result
    from engram.reproduce.table import Measure

Runs = Mapping[str, Sequence["Recipe"]]
COUNTED = "labels_per_image"
TASKS = 22  # of IIRC-CIFAR; stages of shorter streams stand for those at the same share
UNLIMITED = "ER-infinite"
DISTILLED = ("iCaRL-CNN", "iCaRL-norm")
COMPARED = ("ER", *DISTILLED, UPPER)  # rows whose numbers should be the paper's
NEAR = 0.05
AHEAD = 0.1  # of the joint upper bound before all others


class Findings:
    """The claims on the runs of one data set; `official` if it is the paper's."""

    def __init__(self, runs: Runs, official: bool) -> None:
        self.runs = runs
        self.official = official
        self.tasks = TASKS
        self._curves: dict[tuple[str, str], Callable[[int], Measure]] = {}

    def table(self, result: Result) -> pd.DataFrame:
        """One line per comparison, with both numbers and whether it holds."""
        if not len(result):
            return frame([], COLUMNS)
        # runs that are not finished may not know of tasks to come
        self.tasks = TASKS if self.official else int(result.tasks.max())
        claims = [*self.order(), *self.lucir(), *self.labels(), *self.ends()]
        claims += [*self.numbers()] if self.official else []
        return frame([claim.tried(result) for claim in claims], COLUMNS)

    def stage(self, task: int) -> int:
        return round(task * (self.tasks - 1) / (TASKS - 1))

    def at(self, row: str, task: int, name: str = SCORE) -> Measure:
        if (row, name) not in self._curves:
            self._curves[row, name] = measures.at_stages(name, self.runs[row], head="single")
        return self._curves[row, name](self.stage(task))

    def where(self, task: int) -> str:
        return f"task {self.stage(task)}"

    def above(self, finding: str, task: int, first: str, second: str) -> Claim:
        paper = (self.printed(first, task), self.printed(second, task))
        pair = [(row, self.at(row, task)) for row in (first, second)]
        return Claim(finding, self.where(task), pair[0], pair[1], paper)

    def printed(self, row: str, task: int) -> float:
        if not self.official:
            return NAN
        found = [
            cell.value for cell in cells_of("iirc", "C.1")
            if cell["method"] == row and int(cell["stage"]) == task
        ]  # fmt: skip
        return found[0] if found else NAN

    # -- claims --------------------------------------------------------------------------------
    def order(self) -> Iterator[Claim]:
        """Rows from the best to the worst."""
        finding = "incremental joint > ER-infinite > ER, both iCaRL > AGEM"
        for task in (10, 21):
            yield self.above(finding, task, UPPER, UNLIMITED)
            for row in ("ER", *DISTILLED):
                yield self.above(finding, task, UNLIMITED, row)
            for row in ("ER", *DISTILLED):
                yield self.above(finding, task, row, "AGEM")

    def lucir(self) -> Iterator[Claim]:
        finding = "LUCIR above ER at first, below it at the end"
        yield self.above(finding, 3, "LUCIR", "ER")
        yield self.above(finding, 21, "ER", "LUCIR")

    def labels(self) -> Iterator[Claim]:
        """Distillation names too many labels; subclasses are confused more than orphans."""
        for task in (10, 21):
            for row in DISTILLED:
                pair = [(one, self._too_many(one, task)) for one in (row, "ER")]
                yield Claim("JS minus pw-JS larger for iCaRL than for ER", self.where(task),
                            pair[0], pair[1])  # fmt: skip
        for task in (10, 21):
            for row in ROWS:
                views = [(f"{row}, {kind}", self.at(row, task, f"{kind}_precision"))
                         for kind in ("orphan", "subclass")]  # fmt: skip
                yield Claim("orphan precision above subclass precision", self.where(task),
                            views[0], views[1])  # fmt: skip

    def _too_many(self, row: str, task: int) -> Measure:
        return measures.difference(self.at(row, task, "jaccard"), self.at(row, task))

    def ends(self) -> Iterator[Claim]:
        """After the last task: the upper bound far ahead, AGEM and finetune last."""
        for row in ROWS:
            if row != UPPER:
                pair = [(one, self.at(one, 21)) for one in (UPPER, row)]
                yield Claim(f"incremental joint at least {AHEAD} above all others", self.where(21),
                            pair[0], pair[1], ties=True, slack=-AHEAD)  # fmt: skip
        for row in DISTILLED:
            pair = [(one, self.at(one, 21, COUNTED)) for one in (row, "ER")]
            yield Claim("both iCaRL name more labels per image than ER", self.where(21), pair[0],
                        pair[1])  # fmt: skip
        for last in ("AGEM", "finetune"):
            for row in ROWS:
                if row not in ("AGEM", "finetune"):
                    yield self.above("AGEM and finetune last", 21, row, last)

    def numbers(self) -> Iterator[Claim]:
        """Our numbers beside the printed ones."""
        for row in COMPARED:
            for task in (0, 10, 21):
                value = self.printed(row, task)
                gap = _distance(self.at(row, task), value)
                yield Claim(f"within {NEAR} of table C.1", self.where(task),
                            (f"{row}: allowed", measures.constant(NEAR)),
                            (f"{row}: distance", gap), (NAN, value), ties=True)  # fmt: skip


def _distance(measure: Measure, value: float) -> Measure:
    """How far the mean over class orders is from a printed number, for each order that is in it."""

    def found(result: Result) -> np.ndarray:
        values = measure(result)
        known = ~np.isnan(values)
        return np.where(known, abs(values[known].mean() - value) if known.any() else NAN, NAN)

    return found
