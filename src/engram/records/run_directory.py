"""`RunDirectory`: append-only, crash-safe files of runs, written by many processes at once.

Besides: file names, finished stages and the index of files, the list of recipes, recipe files.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import json
import os
import re
import secrets
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.errors import BadArgument, RecordError, bad, wrap_read_errors
from engram.io import (
    DiskError,
    check_folder_path,
    dump_json,
    list_names,
    make_folders,
    parse_json,
    parse_yaml,
    read_json,
    read_text,
    read_yaml,
    remove_leftovers,
    to_plain,
    write_json,
    write_yaml,
)
from engram.records.journal import (
    JOURNAL_SUFFIX,
    RESULTS_PREFIX,
    SETTLED,
    Journal,
    RecordFile,
    list_records,
    read_journal,
)
from engram.records.long_table import Rows
from engram.records.predictions import Prediction, Predictions, pack_predictions
from engram.records.probe_arrays import ProbeArrays, StoredArrays, pack_arrays, stands_alone
from engram.records.saved_models import MODEL_FILE
from engram.records.scored_items import EvaluationItems, read_items, write_items
from engram.records.table_parts import (
    MANY_FILES,
    MERGED_SUFFIX,
    RESULTS_SUFFIXES,
    EndedStages,
    Problem,
    journal_problems,
    keep_stage_ends,
    list_ended_stages,
    merge_parts,
    merged_parts,
    pack_record,
    read_parts,
    result_files,
)
from engram.records.tombstones import MARK_PREFIX, Tombstones, write_mark

if TYPE_CHECKING:
    import pyarrow as pa


class RunDirectory:
    """One directory of records: written by `append`, read by `engram.read`.

    Parameters
    ----------
    path
        Directory; created unless `create` is False.

    Examples
    --------
    >>> import tempfile
    >>> folder = RunDirectory(tempfile.mkdtemp())
    >>> rows = Rows(recipe="0a1b2c3d4e5f", label="ER", seed=0)
    >>> rows.add("accuracy", 0.9, stage=0, task=0, head="single")
    >>> part = folder.append(rows)
    >>> folder.finished("0a1b2c3d4e5f", 0)
    {0}
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = True) -> None:
        self.path = check_folder_path("out" if create else "path", path)
        if create:
            make_folders(self.path)
            make_folders(self.path / "recipes")
        elif not self.path.is_dir():
            raise bad("path", "an existing run directory", str(path))
        self._recorded = FinishedStages(self.path)
        self._place = _directory_identity(self.path)
        self._journal: Journal | None = None
        self._newest = -1  # time stamp of the newest part known; -1: not looked for yet
        self._chain = ""  # hash of the checksums of the last part in the journal
        self._appended = 0

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    # -- writing -----------------------------------------------------------------------------

    def write_recipe(self, recipe: str, content: Mapping[str, Any]) -> Path:
        """Write a recipe as a nested plain dict; raises if the id belongs to another recipe."""
        return write_recipe(self._recipe_path(recipe), content)

    def _recipe_path(self, recipe: str) -> Path:
        return self.path / "recipes" / f"{recipe}.yaml"

    def list_recipes(self, recipes: Iterable[str]) -> None:
        """Record the order in which recipes were requested, in which their numbers are shown."""
        add_to_recipe_list(self.path, recipes)

    def write_items(self, recipe: str, order: str, items: EvaluationItems) -> Path:
        """Write the test items of a recipe under an order, unless an intact file exists."""
        path = self.items_path(recipe, order)
        with suppress(RecordError):
            if path.exists() and read_items(path):
                return path
        return write_items(path, items, recipe=recipe, order=order)

    def append(
        self,
        rows: Rows | pa.Table | None,
        *,
        predictions: Iterable[Prediction | None] = (),
        ledger: Any = None,
        environment: Any = None,
        probes: Any = None,
        arrays: Sequence[StoredArrays] = (),
        environment_part: str = "",
    ) -> str:
        """Add one part, which is on disk when this returns. Rows must cover whole stages.

        All of it is one block at the end of this process's journal: first a checksum of each file,
        and the results last, since a stage counts as finished only when all else is there.

        Returns
        -------
        The part id. An `environment` may take the place of that of an earlier part,
        `environment_part`.
        """
        self.check_there()
        kept = [p for p in predictions if p is not None]
        if kept and rows is None:
            raise bad("rows", "the rows that belong to the predictions", "none")
        part = self.new_part()
        files: dict[str, bytes] = {}
        if kept:
            files[f"predictions-{part}.safetensors"] = pack_predictions(kept)
        # no results file will complete this part
        alone = {"alone": True} if rows is None else {}
        if ledger is not None:
            whole = ledger if isinstance(ledger, Mapping) else {"entries": ledger}
            files[f"ledger-{part}.json"] = dump_json({**whole, **alone})
        if probes is not None:  # the probes that have measured each stage
            files[f"probes-{part}.json"] = dump_json({"runs": probes, **alone})
        if arrays:
            files[f"arrays-{part}.safetensors"] = pack_arrays(arrays, alone=rows is None)
        if environment is not None:
            files[f"environment-{environment_part or part}.json"] = dump_json(environment)
        journal = self._own_journal(part)
        if rows is None:
            journal.append(self._with_checksums(part, files, ledger))
            return part
        table = rows.arrow() if isinstance(rows, Rows) else rows
        results, content = pack_record(f"{RESULTS_PREFIX}{part}", table)
        files[results] = content
        where = journal.append(self._with_checksums(part, files, ledger))
        self._recorded.add(journal.path.name, where, results, table)
        self._appended += 1
        if self._appended % (MANY_FILES // 4) == 0:
            merge_parts(self.path, least=MANY_FILES)
        return part

    def new_part(self) -> str:
        """Make a part id that sorts after those of the directory, even if the clock stepped back.

        What is newer is told by ids, so time alone would let old records stand for new ones.
        """
        if self._newest < 0:
            names = list_names(self.path, (RESULTS_PREFIX, MARK_PREFIX), "")
            self._newest = max((_stamp_of(name.partition("-")[2]) for name in names), default=0)
        part = new_part(after=self._newest)
        self._newest = _stamp_of(part)
        return part

    def _own_journal(self, part: str) -> Journal:
        if self._journal is None or self._journal.process != os.getpid():
            self._journal = Journal(self.path / f"{RESULTS_PREFIX}{part}{JOURNAL_SUFFIX}")
            self._chain = ""
        return self._journal

    def _with_checksums(
        self, part: str, files: Mapping[str, bytes], ledger: Any
    ) -> dict[str, bytes]:
        """Return the files of a part behind one with their checksums, for `engram verify`.

        It also has those of the models of runs that ended, and of the part before.
        """
        sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        ended = ledger.get("runs", ()) if isinstance(ledger, Mapping) else ()
        models = {
            run_id(*run): told
            for one in ended
            if "recipe" in one and "order" in one
            for run in [(one["recipe"], one["seed"], one["order"])]
            if (told := hash_model(self.checkpoint_path(*run))) is not None
        }
        content = dump_json({"sha256": sums, "models": models, "previous": self._chain})
        self._chain = hashlib.sha256(content).hexdigest()
        return {f"{CHECKSUMS}-{part}.json": content, **files}

    @property
    def own_files(self) -> tuple[RecordFile, ...]:
        """The record files that this object has written and not sealed yet."""
        there = self._journal is not None and self._journal.path.exists()
        return read_journal(self._journal.path).files if self._journal and there else ()

    def seal(self) -> None:
        """Note in the index what this object has written, after which it begins a new journal.

        If there are many results files, which are slow to read, they are merged.
        """
        journal, self._journal = self._journal, None
        if journal is not None and journal.process == os.getpid():
            self._recorded.seal(journal.path)
        if self._recorded.count_unmerged() >= MANY_FILES:
            merge_parts(self.path, least=MANY_FILES, sealed=self._recorded.sealed)
            self._recorded.look(("", 0, ""))  # reads the merged file, for the index
        self._recorded.write_index()

    def check_there(self) -> None:
        """Raise if the directory was deleted or replaced since it was opened."""
        if _directory_identity(self.path) != self._place:
            raise DiskError(FileNotFoundError(errno.ENOENT, "gone"), self.path)

    def tidy(self, runs: Iterable[RunTriple] | None = None) -> None:
        """Remove temporary files of writers that were killed; of checkpoints, those of some runs.

        Without `runs`, those of all.
        """
        shelf = self.path / "checkpoint"
        names = ["groups", "steps", *(run_id(*run) for run in runs or ())]
        shelves = shelf.glob("*") if runs is None else (shelf / name for name in names)
        for folder in (self.path, self.path / "recipes", *shelves):
            remove_leftovers(folder)

    def compact(self) -> int:
        """Merge the results parts written so far into one, for fast reading; returns how many.

        Safe beside other writers and readers, and if interrupted: a number counts once. Merged
        files are removed by a later call. `append` merges by itself if there are many.
        """
        return merge_parts(self.path)

    def supersede(self, runs: Iterable[tuple[str, int, str]]) -> int:
        """Mark the records of some runs as superseded, so that they run again; returns how many.

        Nothing is deleted: rows and predictions stay in their files, checkpoints are renamed.
        """
        recorded = self.finished_runs()
        chosen = [run for run in dict.fromkeys(runs) if run in recorded]
        if not chosen:
            return 0
        part = self.new_mark()
        for run in chosen:  # first: at worst, a run without its checkpoint starts over
            path = self.checkpoint_path(*run)
            if path.is_dir():
                aside = path.parent / f"{MARK_PREFIX}{part}"
                aside.mkdir(exist_ok=True)
                path.rename(aside / path.name)
        shared = self.path / "checkpoint" / "groups"  # of many runs; written by the engine
        if shared.is_dir():
            shared.rename(self.path / "checkpoint" / f"{MARK_PREFIX}{part}-groups")
        write_mark(self.path, part, chosen)
        return len(chosen)

    def new_mark(self) -> str:
        """Make a part id for a mark: after all recorded so far, those in journals included."""
        known = [_stamp_of(one.part) for one in list_records(self.path, "results")]
        self._newest = max(_stamp_of(self.new_part()), *known, 0)
        return self.new_part()

    # -- reading -----------------------------------------------------------------------------

    def items_path(self, recipe: str, order: str = "") -> Path:
        return self.path / f"items-{recipe}-{order_name(order)}.safetensors"

    def checkpoint_path(self, recipe: str, seed: int, order: str = "") -> Path:
        """Return the directory of a run's checkpoint, which the engine writes."""
        return self.path / "checkpoint" / run_id(recipe, seed, order)

    def result_files(self) -> list[RecordFile]:
        """List the results files that count, oldest first."""
        return result_files(self.path)

    def finished(self, recipe: str, seed: int, order: str = "") -> set[int]:
        """Return the stages of a run that are completely recorded."""
        run = recipe, int(seed), order
        return set(self._recorded.look(run).stages.get(run, ()))

    def diverged(self, recipe: str, seed: int, order: str = "") -> bool:
        """Return whether a run diverged, after which it has no further stages."""
        run = recipe, int(seed), order
        return run in self._recorded.look(run).diverged

    def ended(self, recipe: str, seed: int, order: str = "", *, stages: int) -> bool:
        """Return whether a run of so many stages has nothing left to train.

        Examples
        --------
        >>> import tempfile
        >>> folder = RunDirectory(tempfile.mkdtemp())
        >>> rows = Rows(recipe="0a1b2c3d4e5f", seed=0)
        >>> rows.add("diverged", 1.0, stage=0)
        >>> part = folder.append(rows)
        >>> folder.ended("0a1b2c3d4e5f", 0, stages=5)
        True
        """
        whole = len(self.finished(recipe, seed, order)) >= stages
        return whole or self.diverged(recipe, seed, order)

    def finished_runs(self) -> dict[tuple[str, int, str], set[int]]:
        """Return the finished stages of every run, by (recipe, seed, order)."""
        return {run: set(stages) for run, stages in self._recorded.look().stages.items()}

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Results files that cannot be read, and damage in journals."""
        return (*self._recorded.look().problems.values(), *find_journal_problems(self.path))

    def recipe(self, recipe: str) -> dict[str, Any]:
        """Read the recipe of an id as a nested plain dict."""
        return read_recipe(self._recipe_path(recipe))

    def identity(self, recipe: str) -> dict[str, Any]:
        """Read the identity of a recipe: the hashes that distinguish it from other experiments."""
        return read_identity(self._recipe_path(recipe))

    def identities(self) -> dict[str, dict[str, Any]]:
        """Return the format and the names of every recorded experiment, by id, in order.

        Those in the index are not read, since there may be thousands of files.
        """
        self._recorded.read_index()
        known = self._recorded.recipes
        for recipe in (found := self.recipes()):
            if recipe not in known:
                known[recipe] = {name: self.identity(recipe).get(name) for name in INDEXED}
        return {recipe: known[recipe] for recipe in found}

    def recipes(self) -> list[str]:
        """Return the ids of the recipes in the directory: first those listed, in that order."""
        shelf = self.path / "recipes"
        names = list_names(shelf, "", ".yaml", any_kind=True) if shelf.is_dir() else ()
        found = dict.fromkeys(name.removesuffix(".yaml") for name in names if name[0] != ".")
        return list(dict.fromkeys([*(one for one in self.listed() if one in found), *found]))

    def listed(self) -> list[str]:
        """Return recipes in the order in which they were first requested."""
        return read_recipe_list(self.path)

    def items(self, recipe: str, order: str = "") -> EvaluationItems | None:
        """Read the test items of a recipe under an order; None if they were not kept."""
        path = self.items_path(recipe, order)
        return read_items(path) if path.exists() else None

    def predictions(self) -> Predictions:
        """Return the stored predictions of parts whose results file exists."""
        complete, marks = find_complete_parts(self.path), Tombstones.read(self.path)
        files = list_records(self.path, "predictions")
        return Predictions((one for one in files if complete(one.part)), marks=marks)

    def arrays(self) -> ProbeArrays:
        """Return the arrays stored by probes."""
        complete, marks = find_complete_parts(self.path), Tombstones.read(self.path)
        files = list_records(self.path, "arrays")
        whole = [one for one in files if complete(one.part) or stands_alone(one)]
        return ProbeArrays(whole, marks=marks)

    def documents(self, kind: str) -> tuple[list[dict[str, Any]], list[Problem]]:
        """Read the parts of a kind (ledger, probes, environment), oldest first, and problems."""
        return read_documents(self.path, kind)


def _directory_identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a directory; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


# File names.


_counter = itertools.count()


def new_part(after: int = -1) -> str:
    """Make a part id: unique over processes and machines, and sorted by time.

    Its time is later than `after`, whatever the clock says.
    """
    stamp = max(time.time_ns(), after + 1)
    return f"{stamp:019d}-{os.getpid():07d}-{next(_counter):06d}-{secrets.token_hex(3)}"


def _stamp_of(part: str) -> int:
    """Return the time in a part id; 0 for other names."""
    stamp = part.partition("-")[0]
    return int(stamp) if len(stamp) == 19 and stamp.isdecimal() else 0


CHECKSUMS = "checksums"  # the kind of record file that holds those of its part


def hash_model(folder: Path) -> str | None:
    """Hash the header of a run's model, which has the checksums of its tensors; None without one.

    All of it may be gigabytes.
    """
    try:
        with open(folder / MODEL_FILE, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return hashlib.sha256(file.read(min(size, _MOST_HEADER))).hexdigest()
    except OSError:
        return None


_MOST_HEADER = 100 << 20  # safetensors allows no more


def run_id(recipe: str, seed: int, order: str = "") -> str:
    """Return the file name of one run; long orders are shortened to a hash.

    Examples
    --------
    >>> run_id("0a1b2c3d4e5f", 3, "2-0-1")
    '0a1b2c3d4e5f-3-2-0-1'
    """
    return f"{recipe}-{int(seed)}-{order_name(order)}"


def order_name(order: str) -> str:
    """Return an order as part of a file name."""
    if len(order) <= 80 and re.fullmatch(r"[\w.,+-]*", order):
        return order
    return "h" + hashlib.sha256(order.encode()).hexdigest()[:16]


# Finished stages, read again when the directory has changed, and the index.


RunTriple = tuple[str, int, str]  # recipe, seed, order
INDEX_FILE = ".index"
INDEXED = ("form", "asked")  # facts of a recipe's identity that the index holds


class FinishedStages:
    """Stages of the runs in a folder; `look` reads what was written since the last call.

    The index tells which runs a file holds, so that the files of other runs are left unread. It is
    never needed: a file that is not in it is read. Lines have checksums and are only ever appended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stages: dict[RunTriple, set[int]] = {}
        self.diverged: set[RunTriple] = set()
        self.problems: dict[str, Problem] = {}  # by file
        self.sealed: set[str] = set()  # journals that do not grow any more
        self.recipes: dict[
            str, dict[str, Any]
        ] = {}  # facts of recipes in the index; may be added to
        self._indexed: set[str] = set()  # recipes in the index
        self._index: dict[str, tuple[int, list[RunTriple]]] | None = None  # parts and runs of files
        self._parts: dict[str, int] = {}  # file: parts in it; of merged ones, less those they hold
        self._loose: list[str] = []  # files that are not in the index, nor journals
        self._journals: dict[str, int] = {}  # those that may grow: size when they were last read
        self._unread: dict[RunTriple, list[str]] = {}  # run: files in the index that hold it
        self._read: set[str] = set()  # names of record files
        self._runs: dict[str, set[RunTriple]] = {}  # of files that are not in the index
        self._added: list[tuple[str, pa.Table]] = []  # by this process: journal, rows
        self._marked: list[str] = []
        self._stamp = -1

    def look(self, run: RunTriple | None = None) -> FinishedStages:
        """Read what is new of a run, or of all."""
        for _ in range(5):  # a file that vanishes before it is read was merged: try again
            self._note_added()  # before marks that are found now hide it
            self._list_files()
            indexed = dict.fromkeys(
                self._unread.pop(run, ())
                if run is not None
                else (name for names in self._unread.values() for name in names)
            )
            if run is None:
                self._unread = {}
            fresh = self._records(indexed)
            if not fresh:
                break
            parts = read_parts(fresh, keep_stage_ends)
            self._read.update(one.name for one in fresh)
            self.problems.update({one.file: one for one in parts.problems})
            self._note(list_ended_stages(parts.table))
            for number, file in enumerate(parts.files):
                if file.size is None and file.name not in indexed:
                    rows = parts.table.take(np.flatnonzero(parts.part == number))
                    self._runs[file.name] = set(list_ended_stages(rows).stages)
            if all(one.is_there for one in parts.problems):
                break
            self._stamp = -1
        return self

    def _note(self, found: EndedStages) -> None:
        for run, stages in found.stages.items():
            self.stages.setdefault(run, set()).update(stages)
        self.diverged |= found.diverged

    def add(self, journal: str, where: range, results: str, table: pa.Table) -> None:
        """Add what this process has appended to a journal, which need not be read for it."""
        self._added.append((journal, table))
        self._read.add(results)
        self._parts[journal] = self._parts.get(journal, 0) + 1
        if self._journals.get(journal, 0) == where.start:  # else it is to be read anew
            self._journals[journal] = where.stop

    def _note_added(self) -> None:
        for journal, table in self._added:
            found = list_ended_stages(table)
            self._note(found)
            self._runs.setdefault(journal, set()).update(found.stages)
        self._added = []

    def _list_files(self) -> None:
        """List files that were not there at the last call, and forget all if marks were added."""
        try:
            stamp = self.path.stat().st_mtime_ns
        except OSError as problem:
            raise DiskError(problem, self.path) from problem
        if stamp == self._stamp:
            return
        listed = list_names(self.path, (RESULTS_PREFIX, MARK_PREFIX), "")
        marked = [one for one in listed if one.startswith(MARK_PREFIX) and one.endswith(".json")]
        if marked != self._marked:  # parts read before may be superseded now
            self._marked, self._read, self.stages, self.diverged = marked, set(), {}, set()
            self._parts, self._journals, self._unread, self._loose = {}, {}, {}, []
        self._parts = {name: self._parts[name] for name in listed if name in self._parts}
        index = {} if marked else self.read_index()
        for name in listed:
            if name in self._parts or name in self._journals or name in marked:
                continue
            if (known := index.get(name)) is not None:
                self._parts[name], runs = known
                for run in runs:
                    self._unread.setdefault(run, []).append(name)
            elif name.endswith(JOURNAL_SUFFIX):
                self._journals[name] = -1
            elif name.endswith(RESULTS_SUFFIXES) and name.startswith(RESULTS_PREFIX):
                self._loose.append(name)
                held = merged_parts([self.path / name])[0] if MERGED_SUFFIX in name else ()
                self._parts[name] = 1 - len(held)
        # A change in the same clock tick would leave the stamp as it is: trust old stamps only.
        self._stamp = stamp if time.time_ns() - stamp > SETTLED else -1

    def _records(self, indexed: Iterable[str]) -> list[RecordFile]:
        """List unread results: of files in the index, loose ones, journals that have grown."""
        grown = []
        for name, before in self._journals.items():
            with suppress(OSError):
                size = os.stat(self.path / name).st_size
                grown += [name] if size != before else []
                self._journals[name] = size
        found = []
        for name in (*indexed, *self._loose, *grown):
            path = self.path / name
            if name.endswith(JOURNAL_SUFFIX):
                with suppress(RecordError):  # reported as a problem of the journal
                    own = [one for one in read_journal(path).files if one.kind == "results"]
                    self._parts[name] = len(own)
                    found += own
            else:
                found.append(RecordFile(path))
        return [one for one in found if one.name not in self._read]

    # -- the index -------------------------------------------------------------------------------
    def read_index(self) -> dict[str, tuple[int, list[RunTriple]]]:
        """Read the index once."""
        if self._index is None:
            self._index, found = _read_index(self.path / INDEX_FILE)
            self.recipes = {**found, **self.recipes}
            self._indexed = set(found)
            self.sealed |= {name for name in self._index if name.endswith(JOURNAL_SUFFIX)}
        return self._index

    def count_unmerged(self) -> int:
        """Return how many parts are in no merged file."""
        self._list_files()
        return sum(self._parts.values())

    def seal(self, journal: Path) -> None:
        """Note that nothing more will be appended to a journal."""
        self.sealed.add(journal.name)

    def write_index(self) -> None:
        """Add what is known of complete files to the index."""
        self._note_added()
        if self._marked:  # with marks, everything is read anyway
            return
        lines: list[list[Any]] = []
        for name in [*self._runs]:
            if not name.endswith(JOURNAL_SUFFIX) or name in self.sealed:
                runs: dict[str, dict[str, list[int]]] = {}
                for recipe, seed, order in sorted(self._runs.pop(name)):
                    runs.setdefault(recipe, {}).setdefault(order, []).append(seed)
                lines.append(["file", name, self._parts.get(name, 0), runs])
        for recipe, facts in self.recipes.items():
            if recipe not in self._indexed:
                lines.append(["recipe", recipe, *(facts[name] for name in INDEXED)])
        if lines:
            self._indexed = set(self.recipes)
            with suppress(OSError):  # it is never needed
                _append_index(self.path / INDEX_FILE, lines)


def _append_index(path: Path, lines: Iterable[Sequence[Any]]) -> None:
    texts = [json.dumps(line, separators=(",", ":")) for line in lines]
    # the empty line ends what another writer may have left unfinished
    whole = "\n" + "".join(f"{text}\t{_line_sum(text)}\n" for text in texts)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        os.write(handle, whole.encode())
    finally:
        os.close(handle)


def _line_sum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _read_index(
    path: Path,
) -> tuple[dict[str, tuple[int, list[RunTriple]]], dict[str, dict[str, Any]]]:
    """Read parts and runs of files, and facts of recipes; lines that are damaged are left out."""
    files: dict[str, tuple[int, list[RunTriple]]] = {}
    recipes: dict[str, dict[str, Any]] = {}
    try:
        lines = path.read_bytes().decode("utf-8", "replace").splitlines()
    except OSError:
        return files, recipes
    pairs = (line.rpartition("\t")[::2] for line in lines)
    good = [text for text, told in pairs if told and told == _line_sum(text)]
    try:
        for kind, name, *facts in json.loads(f"[{','.join(good)}]"):
            if kind == "recipe":
                recipes[name] = dict(zip(INDEXED, facts, strict=True))
                continue
            parts, runs = facts
            keys = [
                (r, k, o)
                for r, orders in runs.items()
                for o, seeds in orders.items()
                for k in seeds
            ]
            files[name] = parts, keys
    except (ValueError, TypeError, AttributeError, RecursionError):  # of another version
        return {}, {}
    return files, recipes


def read_sealed_journals(folder: Path) -> dict[str, int]:
    """Read from the index how many results each journal holds to which nothing is added any more.

    Only the beginnings of lines are parsed, since the index of a large study has 100,000.
    """
    try:
        lines = (folder / INDEX_FILE).read_bytes().decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    found: dict[str, int] = {}
    for line in lines:
        if not line.startswith(_FILE_LINE):
            continue
        name, _, rest = line[len(_FILE_LINE) :].partition('",')
        text, _, told = line.rpartition("\t")
        if name.endswith(JOURNAL_SUFFIX) and told == _line_sum(text):
            count = rest.partition(",")[0]
            found[name] = int(count) if count.isdecimal() else 0
    return found


_FILE_LINE = '["file","'


def find_journal_problems(folder: Path) -> list[Problem]:
    """List journals that are damaged or gone."""
    lost = [
        Problem(str(folder / name), "is missing")
        for name in read_sealed_journals(folder)
        if not (folder / name).exists()
    ]
    return [*journal_problems(folder), *lost]


# Files beside the results, which count once the results file of their part exists.


def find_complete_parts(folder: Path) -> Callable[[str], bool]:
    """Return a test of whether the results of a part were written, which completes it."""
    files = list_records(folder, "results")
    merged = [one.path for one in files if one.part.endswith(MERGED_SUFFIX)]
    done = {one.part for one in files} | merged_parts(merged)[0]
    return lambda name: name in done


def read_documents(folder: Path, kind: str) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The parts of a kind (ledger, probes, environment), oldest first, and broken files."""
    found, problems = [], []
    # an incomplete part is written again, so it must not count twice
    complete = find_complete_parts(folder) if kind != "environment" else lambda name: True
    marks = Tombstones.read(folder)
    for file in list_records(folder, kind):
        try:
            content = parse_json(file, file.read())
        except RecordError as problem:
            problems.append(Problem.of(file, problem))
            continue
        whole = dict(content) if isinstance(content, dict) else {"entries": content}
        if marks and isinstance(whole.get("runs"), list):
            whole["runs"] = [one for one in whole["runs"] if not marks.hides_entry(one, file.part)]
        if whole.pop("alone", False) or complete(file.part):
            found.append({"part": file.part, **whole})
    return found, problems


# The list of recipes, in the order in which they were requested.


def add_to_recipe_list(folder: Path, recipes: Iterable[str]) -> None:
    """Add recipes that are not in the list yet; several processes may do so at once.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> add_to_recipe_list(folder, ["c", "a"])
    >>> add_to_recipe_list(folder, ["a", "b", "c"])
    >>> read_recipe_list(folder)
    ['c', 'a', 'b']
    """
    known = set(read_recipe_list(folder))
    fresh = [one for one in dict.fromkeys(recipes) if one not in known]
    if fresh:
        name = f"listed-{time.time_ns():019d}-{os.getpid():07d}-{secrets.token_hex(3)}.json"
        write_json(folder / name, fresh)


def read_recipe_list(folder: Path) -> list[str]:
    """Read recipes in the order in which they were first requested; empty without a list."""
    files = [folder / name for name in list_names(folder, "listed-", ".json")]
    found: dict[str, None] = {}
    for path in files:
        with wrap_read_errors(path, "list of recipes"):
            found |= dict.fromkeys(str(one) for one in read_json(path))
    return list(found)


# Recipe files, one per recipe.


_IDENTITY = ("method", "stream", "model", "training", "memory")
_IDENTITY_LINES = re.compile(r"^identity:\n((?:  \w+: '?\w+'?\n)+)(?! )", re.MULTILINE)


def write_recipe(path: Path, content: Mapping[str, Any]) -> Path:
    """Write a recipe as a nested plain dict; raises if the file holds another recipe."""
    fresh = to_plain(dict(content))
    if path.exists():
        known = read_recipe(path)
        # the same experiment may be written in several ways: compare identities if there are any
        whole = "identity" in known and "identity" in fresh
        for key in ("identity",) if whole else _IDENTITY:
            if _without_runs(known.get(key)) != _without_runs(fresh.get(key)):
                raise RecordError(f"{path}: already holds another recipe ({key} differs)")
        if known == fresh:
            return path
    return write_yaml(path, fresh)


def read_recipe(path: Path) -> dict[str, Any]:
    """Read a recipe as a nested plain dict."""
    text = read_text(path)
    sections = _SECTION.findall(text)
    try:
        if "".join(sections) == text and len({s.partition(":")[0] for s in sections}) == len(
            sections
        ):
            return {
                key: one for section in sections for key, one in _parse_section(section).items()
            }
    except BadArgument:  # the whole text is parsed for an error that names its line
        pass
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise RecordError(f"{path}: not a recipe")
    return content


# A key at the margin, and the indented lines and items of lists below it.
_SECTION = re.compile(r"^[a-z_]+:(?: .*)?\n(?:(?: |- |-\n).*\n)*", re.MULTILINE)


@functools.lru_cache(maxsize=4096)
def _parse_section(text: str) -> dict[str, Any]:
    """Parse a section of a recipe; thousands of recipes of a directory share most of theirs."""
    return dict(parse_yaml("recipe", text))


def read_identity(path: Path) -> dict[str, Any]:
    """Read the identity of a recorded experiment; empty if the file has none.

    Only these lines of the file are parsed, since thousands of files may have to be read.
    """
    text = read_text(path)
    if (found := _IDENTITY_LINES.search(text)) is None:
        return dict(read_recipe(path).get("identity") or {})
    lines = (line.strip().split(": ", 1) for line in found[1].splitlines())
    return {key: int(value) if key == "form" else value.strip("'") for key, value in lines}


def _without_runs(content: Any) -> Any:
    """Drop seeds, orders and names of data from a part of a recipe: not its identity."""
    if isinstance(content, dict):
        skip = ("seed", "seeds", "order", "orders", "asked", "data_root", "data_in_memory",
                "model_built")  # fmt: skip
        return {k: _without_runs(v) for k, v in content.items() if k not in skip}
    return content
