"""Coverage of a paper: counts of verdicts by table, from recorded runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engram.reproduce.result_tables import is_line_table, read_lines
from engram.reproduce.table_registry import paper_cells, paper_folders, paper_titles
from engram.reproduce.verdicts import AGREES, DIFFERS, NOT_COMPARABLE

if TYPE_CHECKING:
    import pandas as pd

REPRODUCTION_FILE = "reproduction.csv"
VERDICTS = (AGREES, DIFFERS, NOT_COMPARABLE)


@dataclass(frozen=True)
class TableCoverage:
    """Counts of the cells of one table, or of several made together; a figure has none.

    `changed` counts those among the made ones that were made with another preset only; another
    number of seeds is none. `drawn`: the numbers of the figure are there.
    """

    name: str
    title: str
    cells: int
    agrees: int = 0
    differs: int = 0
    not_comparable: int = 0
    changed: int = 0
    drawn: bool = False

    @property
    def made(self) -> int:
        return self.agrees + self.differs + self.not_comparable

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
        return pd.DataFrame(columns=["table", "verdict", "settings"])
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
    own = found[found["table"].isin({cell.table for cell in cells})]
    counts = own["verdict"].value_counts()
    agrees, differs, other = (int(counts.get(verdict, 0)) for verdict in VERDICTS)
    changed = int((own["settings"].map(_nearness) == 0).sum())
    return TableCoverage(f"{paper}/{name}", title, len(cells), agrees, differs, other, changed)


def sum_coverage(lines: Iterable[TableCoverage]) -> TableCoverage:
    """Sum the coverage of several tables."""
    every = list(lines)
    names = ("cells", "agrees", "differs", "not_comparable", "changed")
    return TableCoverage("", "", *(sum(getattr(one, name) for one in every) for name in names))
