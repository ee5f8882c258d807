"""Run directories in their former layout, in which every record was a file of its own."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(folder: Path) -> Path:
    """Turn the journals of a run directory into loose files, as any tar program does."""
    for path in sorted(folder.glob("results-*.tar")):
        with tarfile.open(path) as journal:
            journal.extractall(folder, filter="data")
        path.unlink()
    (folder / ".index").unlink(missing_ok=True)
    return folder


def journal_files(folder: Path, kind: str) -> dict[str, bytes]:
    """The records of a kind in the journals of a run directory, by name."""
    found = {}
    for path in sorted(folder.glob("results-*.tar")):
        with tarfile.open(path) as journal:
            for member in journal.getmembers():
                if member.name.startswith(f"{kind}-"):
                    content = journal.extractfile(member)
                    assert content is not None
                    found[member.name] = content.read()
    return found
