"""Coverage of a paper: counts of verdicts by table, from recorded runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engram.reproduce.cells import Cell
from engram.reproduce.paper_table import OTHER_DATA
from engram.reproduce.result_tables import COLUMNS, is_line_table, read_lines
from engram.reproduce.shipped_results import shipped_lines
from engram.reproduce.table_registry import (
    find_table,
    paper_cells,
    paper_folders,
    paper_titles,
    untrained_tables,
)
from engram.reproduce.verdicts import (
    AGREES,
    DIFFERS,
    NOT_COMPARABLE,
    UNDECIDED,
    allowed_difference,
)

if TYPE_CHECKING:
    import pandas as pd

REPRODUCTION_FILE = "reproduction.csv"
VERDICTS = (AGREES, DIFFERS, UNDECIDED, NOT_COMPARABLE)
TRAINED = "trained"


@dataclass(frozen=True)
class TableCoverage:
    """Counts of the cells of one table, or of several made together; a figure has none.

    `kind` says what its numbers are: trained, data counts or constants (mixed for a group).
    `changed` counts those among the made ones that were made with another preset only; another
    number of seeds is none. `drawn`: the numbers of the figure are there.
    """

    name: str
    title: str
    cells: int
    agrees: int = 0
    differs: int = 0
    undecided: int = 0
    not_comparable: int = 0
    changed: int = 0
    drawn: bool = False
    kind: str = TRAINED

    @property
    def made(self) -> int:
        return self.agrees + self.differs + self.undecided + self.not_comparable

    @property
    def not_run(self) -> int:
        return self.cells - self.made


def count_coverage(
    paper: str, folder: str | Path = "runs/reproduce", *, end: str = ""
) -> list[TableCoverage]:
    """Count the coverage of each table, group and figure of a paper.

    Parameters
    ----------
    folder
        Holds what was reproduced: run directories under their default names, or tables that
        ``--save`` wrote as ``<paper>-<table>.csv``. Or one run directory.
    end
        Ending of the names: ``-embedded`` for tables on embedded data.

    Examples
    --------
    >>> first = count_coverage("rwalk", "nowhere")[0]
    >>> first.name, first.cells, first.made, first.not_run
    ('rwalk/1', 78, 0, 78)
    """
    found, base = read_recorded_lines(paper, folder, end=end), Path(folder)
    return [
        replace(_count_verdicts(paper, name, title, found), drawn=_is_drawn(paper, name, base, end))
        for name, title in paper_titles(paper).items()
    ]


def shipped_coverage(paper: str) -> dict[str, TableCoverage]:
    """Return the coverage of a paper's tables by the results that ship with the package.

    Examples
    --------
    >>> shipped_coverage("rwalk")["rwalk/4"].agrees
    16
    """
    lines, titles = shipped_lines(paper), paper_titles(paper)
    every = [_count_verdicts(paper, name, title, lines) for name, title in titles.items()]
    return {one.name: one for one in every if one.made}


def _file_stems(paper: str, name: str, end: str) -> list[str]:
    """Return the names of run directories and files that a table or figure may be in."""
    stems = (paper_folders(paper).get(name, ""), f"{paper}-{name}")
    return [stem + end for stem in stems if stem]


def _is_drawn(paper: str, name: str, base: Path, end: str) -> bool:
    """Return whether all files with the numbers of a figure exist."""
    stems = _file_stems(paper, name, end)
    places = [base / "figures", *(base / stem / "figures" for stem in stems)]
    files = [base / f"{stem}.csv" for stem in stems if stem == f"{paper}-{name}{end}"]
    files += [
        one for place in places for one in (place / f"{name}.csv", *place.glob(f"{name}-*.csv"))
    ]
    return any(one.is_file() for one in files)


def read_recorded_lines(paper: str, folder: str | Path, *, end: str = "") -> pd.DataFrame:
    """Read the lines of a paper, one per cell: the preset's, or the last of other settings."""
    import pandas as pd

    base = Path(folder)
    stems = dict.fromkeys(
        stem for name in paper_titles(paper) for stem in _file_stems(paper, name, end)
    )
    places = [base / REPRODUCTION_FILE, *(base / stem / REPRODUCTION_FILE for stem in stems)]
    places += [base / f"{stem}.csv" for stem in stems]
    parts = [_read(place) for place in places if is_line_table(place)]
    if not parts:
        return pd.DataFrame(columns=list(COLUMNS))
    lines = pd.concat(parts, ignore_index=True)
    lines = lines[(lines["paper"] == paper) & lines["verdict"].isin(VERDICTS)]
    # stable, so that the preset's come last and of the others the one written last
    lines = lines.sort_values("settings", key=lambda text: text.map(_nearness), kind="stable")
    return lines.drop_duplicates(["table", "cell", "stage", "metric"], keep="last")


def _nearness(settings: str) -> int:
    """Rank settings: 2 for the preset, 1 for the preset with other seeds, 0 otherwise.

    Examples
    --------
    >>> _nearness(""), _nearness("seeds=3"), _nearness("mnist.lr=0.003; seeds=3")
    (2, 1, 0)
    """
    changed = [one for one in settings.split("; ") if one and not one.startswith("seeds=")]
    return 0 if changed else 1 + (settings == "")


def _read(path: Path) -> pd.DataFrame:
    lines = read_lines(path)
    if lines is None:
        raise FileNotFoundError(path)
    return lines


def _count_verdicts(paper: str, name: str, title: str, found: pd.DataFrame) -> TableCoverage:
    cells = paper_cells(paper, name)
    tables = {cell.table for cell in cells}
    own = found[found["table"].isin(tables)]
    counts = own["verdict"].value_counts()
    agrees, differs, undecided, other = (int(counts.get(verdict, 0)) for verdict in VERDICTS)
    changed = int((own["settings"].map(_nearness) == 0).sum())
    kinds = {untrained_tables(paper).get(table, TRAINED) for table in tables}
    kind = kinds.pop() if len(kinds) == 1 else "mixed"
    return TableCoverage(
        f"{paper}/{name}", title, len(cells), agrees, differs, undecided, other, changed, kind=kind
    )


def sum_coverage(lines: Iterable[TableCoverage]) -> TableCoverage:
    """Sum the coverage of several tables."""
    every = list(lines)
    names = ("cells", "agrees", "differs", "undecided", "not_comparable", "changed")
    return TableCoverage("", "", *(sum(getattr(one, name) for one in every) for name in names))


def count_missing_sets(paper: str, folder: str | Path) -> dict[str, int]:
    """Count the cells of each of the paper's data sets that have no number of ours.

    Examples
    --------
    >>> count_missing_sets("cgl", "nowhere")
    {'UCLA-CIL': 44, 'NTU-CIL': 44, 'no data set': 39}
    """
    found = read_recorded_lines(paper, folder)
    made = set(zip(*(found[k] for k in ("table", "cell", "stage", "metric")), strict=True))
    counts: Counter[str] = Counter()
    for cell in all_cells(paper):
        if (cell.table, cell.name, cell["stage"], cell["metric"]) not in made:
            counts[cell["dataset"] or "no data set"] += 1
    return dict(counts)


def all_cells(paper: str) -> list[Cell]:
    """List every printed cell of a paper once."""
    every = {
        (cell.table, cell.name, cell["stage"], cell["metric"]): cell
        for name in paper_titles(paper)
        for cell in paper_cells(paper, name)
    }
    return list(every.values())


@dataclass(frozen=True)
class ConstantGuess:
    """How near trained numbers are to the paper's, and how near a constant would be.

    Both count the trained cells within the tolerance or the paper's own deviation, whether or not
    the data are comparable. The constant is, for each table and metric, the printed number that is
    near most others: a guess that sees all the answers and trains nothing.
    """

    cells: int = 0
    near: int = 0
    constant: int = 0
    both: int = 0

    @property
    def near_elsewhere(self) -> float:
        """Share of the cells out of the constant's reach that ours are near."""
        elsewhere = self.cells - self.constant
        return (self.near - self.both) / elsewhere if elsewhere else float("nan")


def compare_with_constant(paper: str, folder: str | Path) -> ConstantGuess:
    """Compare the recorded numbers of a paper with the best constant of each table and metric.

    Examples
    --------
    >>> compare_with_constant("rwalk", "nowhere")
    ConstantGuess(cells=0, near=0, constant=0, both=0)
    """
    lines = read_recorded_lines(paper, folder)
    total = ConstantGuess()
    for table in lines["table"].unique():
        if table in untrained_tables(paper):
            continue
        found = find_table(f"{paper}/{table}")
        cells = {(cell.name, cell["stage"], cell["metric"]): cell for cell in found.cells}
        own = lines[lines["table"] == table]
        for _, group in own.groupby("metric", sort=False):
            pairs = [
                (cells[line["cell"], line["stage"], line["metric"]], float(line["ours"]))
                for line in group.to_dict("records")
                if OTHER_DATA not in line["reason"]
                and (line["cell"], line["stage"], line["metric"]) in cells
            ]
            pairs = [(cell, ours) for cell, ours in pairs if not np.isnan(cell.value)]
            if pairs:
                reach = [allowed_difference(c, found.entry(c).tolerance) for c, _ in pairs]
                one = _compare_group(
                    np.array([c.value for c, _ in pairs]), np.array([o for _, o in pairs]),
                    np.array(reach),
                )  # fmt: skip
                total = ConstantGuess(
                    total.cells + one.cells, total.near + one.near, total.constant + one.constant,
                    total.both + one.both,
                )  # fmt: skip
    return total


def _compare_group(
    paper: npt.NDArray[np.float64], ours: npt.NDArray[np.float64], reach: npt.NDArray[np.float64]
) -> ConstantGuess:
    near = np.abs(ours - paper) <= reach
    hits = np.abs(paper[:, None] - paper) <= reach  # [guess, cell]
    guess = hits[hits.sum(1).argmax()]
    return ConstantGuess(len(paper), int(near.sum()), int(guess.sum()), int((near & guess).sum()))
