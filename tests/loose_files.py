"""Run directories in their former layout, in which every record was a file of its own."""

from __future__ import annotations

import tarfile
from pathlib import Path

from engram.records.journal import list_journals, read_journal
from engram.records.table_parts import read_part, write_part


def unpack(folder: Path) -> Path:
    """Turn the journals of a run directory into loose files, as any tar program does."""
    for path in sorted(folder.glob("results-*.tar")):
        with tarfile.open(path) as journal:
            journal.extractall(folder, filter="data")
        path.unlink()
    for path in folder.glob("results-*.arrow"):
        write_part(path.with_suffix(".parquet"), read_part(path))
        path.unlink()
    (folder / ".index").unlink(missing_ok=True)
    return folder


def journal_files(folder: Path, kind: str) -> dict[str, bytes]:
    """The records of a kind in the journals of a run directory, by name."""
    files = [one for path in list_journals(folder) for one in read_journal(path).files]
    return {one.name: one.read() for one in files if one.kind == kind}
