"""The tables of a report as files of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from engram.disk import make_folders
from engram.errors import choose
from engram.records.files import write_text
from engram.report.digest import digest
from engram.report.inputs import ReportInput
from engram.report.listing import all_tables
from engram.report.tables import FORMATS, render


def write_tables(
    inputs: ReportInput,
    folder: str | os.PathLike[str],
    *,
    formats: Sequence[str] = ("csv", "latex", "markdown"),
) -> list[Path]:
    """Write every table of a report, complete, in each format; the paths of the files.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from engram.report.inputs import COLUMNS
    >>> empty = ReportInput(pd.DataFrame(columns=list(COLUMNS)))
    >>> [path.name for path in write_tables(empty, tempfile.mkdtemp(), formats=["csv"])]
    ['summary.csv', 'doctor.csv']
    """
    for form in formats:
        choose("formats", form, FORMATS)
    target = Path(folder)
    make_folders(target)
    return [
        write_text(target / f"{table.name}.{FORMATS[form][0]}", render(table, form) + "\n")
        for table in all_tables(inputs, digest(inputs))
        for form in formats
    ]
