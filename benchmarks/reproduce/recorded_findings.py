"""Findings of a paper from its recorded tables and figures in this folder: nothing is trained.

    python -m benchmarks.reproduce.recorded_findings PAPER [--save]

A recorded cell has a mean, an interval and a number of repetitions, so that rows are compared as
unrelated (`engram.reproduce.papers.findings`). Numbers of other settings than the preset's are
compared among themselves, where the preset's are missing; more or fewer repetitions are no other
settings. What no recorded number decides was recorded by ``engram reproduce PAPER/findings`` from
the runs themselves: such lines of ``<paper>-findings.csv`` stay as they are.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from engram.errors import bad
from engram.reproduce.cells import Cell
from engram.reproduce.papers import (
    PAPER_NAMES,
    cgl_paper,
    cnd_paper,
    confer_paper,
    iirc_paper,
    rwalk_paper,
)
from engram.reproduce.papers.findings import (
    FINDING_COLUMNS,
    NOT_RUN,
    CellFindings,
    Moments,
    TriedClaim,
    count_findings,
)
from engram.reproduce.result_tables import is_line_table, read_lines

HERE = Path(__file__).parent
COLUMNS = (*FINDING_COLUMNS, "settings")
NAMED_BY = ["finding", "row", "first", "relation", "second"]  # columns that tell claims apart
REPETITIONS = re.compile(r"(?:seeds|configurations)=(\d+)(?:; |$)")
UNFINISHED = re.compile(r"(\d+) of \d+ runs")  # a reason
Key = tuple[str, str, str, str]  # table, name, stage and metric of a cell


# -- what is recorded ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Recorded:
    """Cells and figures of a paper that were made with the same settings."""

    preset: Any
    means: dict[Key, Moments] = field(default_factory=dict)
    figures: dict[str, pd.DataFrame] = field(default_factory=dict)

    def measure(self, cell: Cell) -> Any:
        """The measure of a cell."""
        key = (cell.table, cell.name, cell["stage"], cell["metric"])
        return give(self.means.get(key, Moments()))

    def look_up(self, figure: str, value: str, **where: Any) -> Moments:
        """A value of a figure's table, with its deviation and number of repetitions."""
        table = self.figures.get(figure)
        if table is None:
            return Moments()
        for name, wanted in where.items():
            table = table[table[name] == wanted]
        if not len(table):
            return Moments()
        (line,) = table.to_dict("records")
        return Moments(float(line[value]), float(line["std"]), int(line["repetitions"]))


def give(known: Moments) -> Any:
    """A measure that says what is recorded, whatever the results."""
    return lambda result: known


def scale(known: Moments, factor: float) -> Moments:
    return Moments(known.mean * factor, known.std * factor, known.count)


def count_repetitions(settings: str, preset: Any, reason: str = "") -> int:
    """Of cells with these settings; the reason of a cell says if some are not finished.

    Examples
    --------
    >>> preset = rwalk_paper.PAPER
    >>> count_repetitions("mnist.epochs=3; seeds=2", preset), count_repetitions("", preset)
    (2, 5)
    >>> count_repetitions("", preset, "1 of 5 runs")
    1
    """
    if (unfinished := UNFINISHED.search(reason)) is not None:
        return int(unfinished[1])
    if (stated := REPETITIONS.search(settings)) is not None:
        return int(stated[1])
    if isinstance(preset, iirc_paper.IIRCPreset):
        return len(preset.orders(iirc_paper.CIFAR))
    return int(preset.seeds)


def strip_repetitions(settings: str) -> str:
    """Settings that decide what is trained, without how often.

    Examples
    --------
    >>> strip_repetitions("configurations=3; schedule=short")
    'schedule=short'
    """
    return REPETITIONS.sub("", settings).removesuffix("; ")


def read_recorded(paper: str, folder: Path = HERE) -> dict[str, Recorded]:
    """What is recorded of a paper by settings, those of the preset first.

    Data sets without a number are left out of the preset.
    """
    preset = import_module(f"engram.reproduce.papers.{paper}_paper").PAPER
    found: dict[str, Recorded] = {"": Recorded(preset)}
    for file in sorted(folder.glob(f"{paper}-*.csv")):
        name = file.stem.removeprefix(f"{paper}-")
        if name.endswith("-embedded"):
            continue
        if is_line_table(file):
            lines = read_lines(file)
            known = [] if lines is None else lines.to_dict("records")
            for line in known:
                own = found.setdefault(strip_repetitions(line["settings"]), Recorded(preset))
                own.means.update(_read_cell(line, preset))
        elif name.startswith("fig"):
            table = pd.read_csv(file, keep_default_na=False, na_values=[""])
            if "settings" not in table:
                table["settings"] = ""
            table = table.fillna({"settings": ""}).rename(columns={"runs": "repetitions"})
            for settings, part in table.groupby("settings", sort=False):
                if "repetitions" not in part:
                    part = part.assign(repetitions=count_repetitions(settings, preset))
                own = found.setdefault(strip_repetitions(settings), Recorded(preset))
                own.figures[name.removesuffix("-small")] = part
    names = {key[1].partition(" ")[0] for one in found.values() for key in one.means}
    absent = {part: None for part, name in preset.parts.items() if name not in names}
    return {key: replace(one, preset=replace(preset, **absent)) for key, one in found.items()}


def _read_cell(line: Mapping[str, Any], preset: Any) -> Iterable[tuple[Key, Moments]]:
    if line["verdict"] == NOT_RUN:
        return
    ours, low, high = (float(line[name] or "nan") for name in ("ours", "low", "high"))
    count = count_repetitions(line["settings"], preset, line["reason"])
    key = (str(line["table"]), line["cell"], str(line["stage"]), line["metric"])
    yield key, Moments.of_interval(ours, low, high, count)


# -- claims of each paper --------------------------------------------------------------------------
def _claims_of_rwalk(known: Recorded) -> Sequence[TriedClaim]:
    cells = CellFindings(
        "rwalk", known.preset, rwalk_paper.DATA["findings"], {}, recorded=known.measure
    )

    def accuracy(row: Any, **more: Any) -> tuple[str, Any]:
        where = {"dataset": row.dataset, "method": row.method}
        if "per_class" in more:
            found = known.look_up("fig4", "accuracy", samples=more["per_class"], **where)
        elif "policy" in more:
            strategy = rwalk_paper.DATA["policies"][more["policy"]]
            found = known.look_up("fig5", "accuracy", strategy=strategy, **where)
        else:
            found = Moments()
        return row.label, give(scale(found, 100))

    return [*cells.claims, *rwalk_paper.list_own_claims(known.preset, cells, accuracy)]


class RecordedStudies(cgl_paper.StudyMeasures):
    """Studies as figures 5 to 8 have them: of every order the mean over repetitions."""

    def __init__(self, known: Recorded) -> None:
        super().__init__(known.preset)
        self.known = known

    def orders(
        self, metrics: Sequence[str], place: tuple[str, str, str, str], reduce: Any
    ) -> tuple[str, Any]:
        dataset, network, method, kind = place
        table = self.known.figures.get("fig5" if network == "GCN" else "fig6")
        count = len(
            cgl_paper.make_orders(self.preset, "gcn" if network == "GCN" else "stgcn")[kind]
        )
        values = np.full(1, np.nan)
        if table is not None and dataset == cgl_paper.UCLA:
            own = table[(table["method"] == method) & (table["orders"] == kind)]
            if len(own) == count:
                names = [{cgl_paper.BOUND: "bound"}.get(name, name) for name in metrics]
                values = reduce(*(100 * own[name].to_numpy()[:, None] for name in names))
        return method, lambda result: values

    def sizes(self, metric: str, method: str, axis: str) -> list[Any]:
        figure = next(name for name, one in cgl_paper.EVOLUTIONS.items() if one == axis)
        found = []
        for value in self.preset.widths if axis == "width" else self.preset.depths:
            own = self.known.look_up(figure, "value", method=method, metric=metric, **{axis: value})
            if own.count > 1:  # the figure has the deviation of the repetitions themselves
                own = replace(own, std=own.std * math.sqrt(own.count / (own.count - 1)))
            found.append((f"{axis} {value}", give(scale(own, 100)), np.nan))
        return found


def _claims_of_cgl(known: Recorded) -> Sequence[TriedClaim]:
    cells = CellFindings(
        "cgl", known.preset, cgl_paper.DATA["findings"], {}, recorded=known.measure
    )
    own = cgl_paper.list_own_claims(known.preset, cells, RecordedStudies(known))
    return [*cells.claims, *own]


def _claims_of_confer(known: Recorded) -> Sequence[TriedClaim]:
    cells = confer_paper.ConFERFindings(
        "confer", known.preset, confer_paper.DATA["findings"], {}, recorded=known.measure
    )
    return [*cells.claims, *confer_paper.bound_plain_training(cells)]


class RecordedScores(iirc_paper.IIRCClaims):
    """Scores after stages as table C.1 has them, and the figures for what it has not."""

    def __init__(self, known: Recorded) -> None:
        super().__init__({}, True, known.preset.sizes)
        self.known = known

    def at_stage(self, row: str, stage: int, name: str) -> Any:
        cell = ("C.1", f"{iirc_paper.CIFAR} IIRC {row}", str(stage), "pw-JS")
        if name == iirc_paper.SCORE and cell in self.known.means:
            return give(self.known.means[cell])
        panel = f"{iirc_paper.DATA['scores'].get(name, name)}, {iirc_paper.CIFAR}"
        for figure in self.known.figures:
            where = {"panel": panel, "method": row, "stage": stage}
            if (found := self.known.look_up(figure, "value", **where)).count:
                return give(found)
        return give(Moments())


def _claims_of_iirc(known: Recorded) -> Sequence[TriedClaim]:
    return list(RecordedScores(known).list_claims([]))  # type: ignore[arg-type]


def _claims_of_cnd(known: Recorded) -> Sequence[TriedClaim]:
    return CellFindings(
        "cnd", known.preset, cnd_paper.DATA["findings"], {}, recorded=known.measure
    ).claims


CLAIMS = {
    "rwalk": _claims_of_rwalk,
    "cgl": _claims_of_cgl,
    "confer": _claims_of_confer,
    "iirc": _claims_of_iirc,
    "cnd": _claims_of_cnd,
}


# -- the table -------------------------------------------------------------------------------------
def recorded_findings(paper: str, folder: Path = HERE) -> pd.DataFrame:
    """Every finding of a paper, tried on what is recorded; lines of runs stay."""
    if paper not in CLAIMS:
        raise bad("paper", f"one of {', '.join(PAPER_NAMES)}", paper)
    lines: list[dict[str, Any]] = []
    for settings, known in read_recorded(paper, folder).items():
        tried = [{**claim.tried(None), "settings": settings} for claim in CLAIMS[paper](known)]
        lines = [
            new if old["holds"] == NOT_RUN != new["holds"] else old
            for old, new in zip(lines or tried, tried, strict=True)
        ]
    of_runs = _lines_of_runs(folder / f"{paper}-findings.csv")
    found = [of_runs.pop(_name(line), line) if line["holds"] == NOT_RUN else line for line in lines]
    made = {_name(line) for line in found}
    found += [line for name, line in of_runs.items() if name not in made]
    table = pd.DataFrame(found, columns=list(COLUMNS))
    missing = table["holds"] == NOT_RUN
    table["settings"] = table["settings"].where(~missing, "")
    return table


def format_findings(table: pd.DataFrame) -> str:
    """The text of ``<paper>-findings.csv``."""
    return table.to_csv(index=False, float_format="%.6g")


def _name(line: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(line[name]) for name in NAMED_BY)


def _lines_of_runs(file: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    """The comparisons of a file that were decided."""
    if not file.is_file():
        return {}
    table = pd.read_csv(file, keep_default_na=False, na_values={
        name: [""] for name in FINDING_COLUMNS if name not in (*NAMED_BY, "printed_holds", "holds")
    })  # fmt: skip
    table = table if "settings" in table else table.assign(settings="")
    return {_name(line): line for line in table.to_dict("records") if line["holds"] != NOT_RUN}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("paper", choices=CLAIMS)
    parser.add_argument("--save", action="store_true", help="into <paper>-findings.csv")
    given = parser.parse_args(arguments)
    found = recorded_findings(given.paper)
    print(count_findings(found).to_string(index=False))
    if given.save:
        (HERE / f"{given.paper}-findings.csv").write_text(format_findings(found))


if __name__ == "__main__":
    main()
