"""What ``engram data`` does: list, add, pack, verify, inspect."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engram.data.catalogue import SetInfo, datasets, find_set, load, missing_rows, search_root
from engram.data.dataset import Data
from engram.data.duplicates import count_duplicates, describe_count, find_repeats
from engram.data.formats import Place, find_place
from engram.data.inspection import find_problems
from engram.data.lazy_rows import LazyRows
from engram.data.memory_maps import SummedMap, sum_inputs
from engram.data.named_sets import NAMED_SETS
from engram.data.packed import write_npz, write_packed
from engram.data.skeletons.nw_ucla import read_nw_ucla
from engram.data.skeletons.skeleton_data import pack_sequences, read_packed_sequences
from engram.errors import BadArgument, bad

_CHUNK = 1024  # rows read at a time


@dataclass(frozen=True)
class DataReport:
    """What `inspect` found."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    counts: dict[str, dict[str, int]]  # class -> rows of train, valid, test
    attributes: dict[str, int]  # attribute -> number of its values
    notes: tuple[str, ...]
    fingerprint: str
    repeated: str  # how many test rows have the same input as a training row
    findings: tuple[str, ...] = ()  # imbalance, constant columns, wild scales


@dataclass(frozen=True)
class DataCheck:
    """One line of `verify`."""

    what: str
    good: bool
    found: str
    kind: str = ""  # of the error, see `BadArgument`
    note: bool = False  # nothing that breaks runs, but who reports numbers should know it

    @property
    def verdict(self) -> str:
        """``ok``, ``note`` or ``FAIL``."""
        return "FAIL" if not self.good else "note" if self.note else "ok"


def list_sets(root: str | Path | None = None) -> tuple[SetInfo, ...]:
    """The sets that can be loaded here: embedded ones and those under the search root."""
    return tuple(one for one in datasets(root) if one.available)


def add(
    path: str | Path, name: str, root: str | Path | None = None, *, replace: bool = False,
    **options: Any,
) -> Path:  # fmt: skip
    """Read the set at `path` and keep it under `root` as ``<name>.npz``; returns the file."""
    where = search_root() if root is None else Path(root).expanduser()
    if where is None:
        raise bad("root", "a folder, or ENGRAM_DATA set to one", None)
    if not name.isidentifier():
        raise bad("name", "letters, digits and underscores", name)
    if name in NAMED_SETS and NAMED_SETS[name].make is not None:
        raise bad("name", "a name other than those of the embedded data sets", name)
    target = where / f"{name}.npz"
    if target.exists() and not replace:
        raise bad("name", "a name that is not taken (or replace=True)", f"{target} exists")
    return pack(Path(path), target, **options)


def pack(
    source: Data | str | Path, out: str | Path, *, root: str | Path | None = None, **options: Any
) -> Path:
    """Write a set (or Data in memory) as one packed file; returns the file.

    Unprepared skeleton sequences stay unprepared, so that all loading options still apply.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = load(pack("digits", Path(folder) / "small.npz"))
    >>> again.fingerprint() == load("digits").fingerprint()
    True
    """
    if isinstance(source, Data):
        return write_packed(source, Path(out))
    place = _place(source, root)
    if place is not None and not options:
        if place.form == "NW-UCLA JSON":
            return write_npz(pack_sequences(read_nw_ucla(place.path)), Path(out))
        if place.form == "packed skeletons":
            return write_npz(pack_sequences(read_packed_sequences(place.path)), Path(out))
    return write_packed(load(source, root=root, **options), Path(out))


def _place(source: str | Path, root: str | Path | None) -> Place | None:
    where = search_root(root)
    if isinstance(source, str) and source in NAMED_SETS:
        return find_set(source, where) if where is not None else None
    return find_place(Path(source).expanduser())


def verify(
    name_or_path: str | Path, *, root: str | Path | None = None, **options: Any
) -> tuple[DataCheck, ...]:
    """Read a set with its checksums and look for what breaks runs later."""
    try:
        data = load(name_or_path, root=root, **options)
    except ValueError as problem:
        kind = problem.kind if isinstance(problem, BadArgument) else ""
        return (DataCheck("files read and match their checksums", False, str(problem), kind),)
    y, x = data.y, data.x
    finite = True
    if isinstance(x, torch.Tensor) and x.dtype != torch.uint8:
        wrong = x.isinf() if data.fill else ~x.isfinite()  # streams fill what is missing
        finite = not bool(wrong.any())
    empty = [name for i, name in enumerate(data.classes) if not bool((y[data.train] == i).any())]
    shared = sorted(set(data.train.tolist()) & set(data.test.tolist()))
    short = missing_rows(data)
    return (
        DataCheck("files read and match their checksums", True, repr(data)),
        DataCheck("number of rows", not short, "; ".join(short) or "complete"),
        DataCheck(
            "labels in range", bool((y[:, 0] >= 0).all()), f"{int(y.min())} to {int(y.max())}"
        ),
        DataCheck(
            "every class has training rows", not empty, f"without: {empty}" if empty else "yes"
        ),
        DataCheck("finite values", finite, "yes" if finite else "nan or inf"),
        *_check_on_disk(data),
        DataCheck("no row in both train and test", not shared, f"{len(shared)} shared"),
        *_check_repeats(data),
        *_check_subjects(data),
        DataCheck("notes", True, "; ".join(data.notes) or "none"),
    )


def _check_on_disk(data: Data) -> list[DataCheck]:
    """What stays on disk is known by an index or a stored sum: here all of it is read."""
    if isinstance(data.x, LazyRows):
        what = "every image can be decoded"
        try:
            for start in range(0, len(data.x), _CHUNK):
                data.x[start : start + _CHUNK]
        except BadArgument as problem:
            return [DataCheck(what, False, str(problem), problem.kind)]
        return [DataCheck(what, True, f"{len(data.x):,} files")]
    if isinstance(data.x, SummedMap) and data.x.sums is not None:
        found = sum_inputs(data.x)
        same = found == data.x.sums.inputs
        return [DataCheck("inputs match the sum stored with them", same, found)]
    return []


def _check_repeats(data: Data) -> list[DataCheck]:
    """Counts of samples that occur more than once; official sets have them, so none is a fault."""
    both = len(find_repeats(data))
    found = [
        DataCheck(
            "samples both for training and test",
            True,
            describe_count(both, len(data.test)),
            note=both > 0,
        )
    ]
    for part, rows in (("training", data.train), ("test", data.test)):
        again = count_duplicates(data, rows)
        words = f"{again:,} of {len(rows):,} {part} rows have the same input as an earlier one"
        found.append(DataCheck(f"samples twice for {part}", True, words, note=again > 0))
    return found


def _check_subjects(data: Data) -> tuple[DataCheck, ...]:
    """Whether subjects are for training and for testing; no fault, sets may be meant so."""
    if "subject" not in data.attributes:
        return ()
    train, test = (
        set(data.attributes["subject"][rows].tolist()) for rows in (data.train, data.test)
    )
    both = len(train & test)
    found = f"{both} of {len(test)} test subjects are training subjects as well"
    return (DataCheck("subjects both for training and test", True, found, note=both > 0),)


def inspect(
    name_or_path: str | Path, *, root: str | Path | None = None, **options: Any
) -> DataReport:
    """Shape, rows per class and part, attributes, notes and what to look at in a set.

    Examples
    --------
    >>> inspect("blobs", classes=2, per_class=10).counts
    {'0': {'train': 8, 'valid': 0, 'test': 2}, '1': {'train': 8, 'valid': 0, 'test': 2}}
    """
    data = load(name_or_path, root=root, **options)
    parts = {"train": data.train, "valid": data.valid, "test": data.test}
    return DataReport(
        name=data.name,
        shape=data.sample_shape,
        dtype=str(data.x.dtype).removeprefix("torch."),
        counts={
            label: {part: int((data.y[rows] == i).any(1).sum()) for part, rows in parts.items()}
            for i, label in enumerate(data.classes)
        },
        attributes={key: len(values.unique()) for key, values in data.attributes.items()},
        notes=data.notes,
        fingerprint=data.fingerprint(),
        repeated=describe_count(len(find_repeats(data)), len(data.test)),
        findings=find_problems(data),
    )
