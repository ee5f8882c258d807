"""Which probes have measured which stages of a run directory."""

from __future__ import annotations

from collections.abc import Iterable

from engram.records.directory import RunDirectory
from engram.records.run_names import new_part
from engram.records.superseded import Key, Marks, write_mark


def measured(folder: RunDirectory) -> dict[Key, dict[str, set[int]]]:
    """Stages by run and by the key of the probe, ``name@version``."""
    found: dict[Key, dict[str, set[int]]] = {}
    marks = Marks.read(folder.path).metrics
    documents, _ = folder.documents("probes")
    for document in documents:
        for one in document["runs"]:
            run = (str(one["recipe"]), int(one["seed"]), str(one["order"]))
            for key in one["probes"]:
                newest = marks.get(f"{name_of(key)}/", {}).get(run, "")
                if document["part"] >= newest:
                    found.setdefault(run, {}).setdefault(key, set()).add(int(one["stage"]))
    return found


def name_of(key: str) -> str:
    """The name of a probe, with which its metrics begin.

    Examples
    --------
    >>> name_of("entropy temperature=2@0a1b2c3d4e5f")
    'entropy temperature=2'
    """
    return key.rpartition("@")[0]


def forget(folder: RunDirectory, runs: Iterable[Key], name: str) -> None:
    """Let what a probe has said about some runs count no more; nothing is deleted."""
    write_mark(folder.path, new_part(), runs, metrics=f"{name}/")
