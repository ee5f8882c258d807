"""`RunDirectory`: append-only, crash-safe files of runs, written by many processes at once.

Besides: file names, the index of finished stages, the list of recipes and the recipe files.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from engram.errors import BadArgument, RecordError, bad, wrap_read_errors
from engram.io import (
    DiskError,
    check_folder_path,
    list_names,
    make_folders,
    parse_yaml,
    read_json,
    read_text,
    read_yaml,
    remove_leftovers,
    to_plain,
    write_json,
    write_yaml,
)
from engram.records.long_table import Rows, to_frame
from engram.records.predictions import Prediction, Predictions, write_predictions
from engram.records.probe_arrays import ARRAYS_PREFIX as ARRAYS
from engram.records.probe_arrays import ProbeArrays, StoredArrays, stands_alone, write_arrays
from engram.records.run_arrays import end_of_stage_rows, list_finished_stages
from engram.records.scored_items import EvaluationItems, read_items, write_items
from engram.records.table_parts import (
    MANY_FILES,
    Problem,
    keep_stage_ends,
    merge_parts,
    merged_part_ids,
    part_id,
    read_parts,
    result_files,
    write_part,
)
from engram.records.tombstones import MARK_PREFIX, Tombstones, write_mark


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
        rows: Rows | None,
        *,
        predictions: Iterable[Prediction | None] = (),
        ledger: Any = None,
        environment: Any = None,
        probes: Any = None,
        arrays: Sequence[StoredArrays] = (),
    ) -> str:
        """Add one part, which is on disk when this returns. Rows must cover whole stages.

        The results file is written last: a stage counts as finished only when all else is there.

        Returns
        -------
        The part id.
        """
        self.check_there()
        kept = [p for p in predictions if p is not None]
        if kept and not rows:
            raise bad("rows", "the rows that belong to the predictions", "none")
        part = new_part()
        if kept:
            write_predictions(self.path / f"predictions-{part}.safetensors", kept)
        alone = {} if rows else {"alone": True}  # no results file will complete this part
        if ledger is not None:
            whole = ledger if isinstance(ledger, Mapping) else {"entries": ledger}
            write_json(self.path / f"ledger-{part}.json", {**whole, **alone})
        if probes is not None:  # the probes that have measured each stage
            write_json(self.path / f"probes-{part}.json", {"runs": probes, **alone})
        if arrays:
            path = self.path / f"{ARRAYS}{part}.safetensors"
            write_arrays(path, arrays, alone=not rows)
        if environment is not None:
            self.write_environment(environment, part)
        if rows:
            write_part(self.path / f"results-{part}.parquet", rows)
            self._appended += 1
            if self._appended % (MANY_FILES // 4) == 0:
                self.merge_if_many()
        return part

    def merge_if_many(self) -> None:
        """Merge results files if there are so many that reading them is slow."""
        merge_parts(self.path, least=MANY_FILES)

    def write_environment(self, facts: Any, part: str = "") -> str:
        """Write facts about software and device, for a part if given, and return the part id."""
        part = part or new_part()
        write_json(self.path / f"environment-{part}.json", facts)
        return part

    def check_there(self) -> None:
        """Raise if the directory was deleted or replaced since it was opened."""
        if _directory_identity(self.path) != self._place:
            raise DiskError(FileNotFoundError(errno.ENOENT, "gone"), self.path)

    def tidy(self) -> None:
        """Remove temporary files of writers that were killed."""
        for folder in (self.path, self.path / "recipes", *self.path.glob("checkpoint/*")):
            remove_leftovers(folder)

    def compact(self) -> int:
        """Merge the results parts written so far into one, for fast reading; returns how many.

        Safe beside other writers and readers, and if interrupted: a number counts once. The merged
        parts are removed by a later call. `append` merges by itself if there are many.
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
        part = new_part()
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

    # -- reading -----------------------------------------------------------------------------

    def items_path(self, recipe: str, order: str = "") -> Path:
        return self.path / f"items-{recipe}-{order_name(order)}.safetensors"

    def checkpoint_path(self, recipe: str, seed: int, order: str = "") -> Path:
        """Return the directory of a run's checkpoint, which the engine writes."""
        return self.path / "checkpoint" / run_id(recipe, seed, order)

    def result_files(self) -> list[Path]:
        """List the results files that count, oldest first."""
        return result_files(self.path)

    def finished(self, recipe: str, seed: int, order: str = "") -> set[int]:
        """Return the stages of a run that are completely recorded."""
        return set(self._recorded.look().stages.get((recipe, int(seed), order), ()))

    def diverged(self, recipe: str, seed: int, order: str = "") -> bool:
        """Return whether a run diverged, after which it has no further stages."""
        return (recipe, int(seed), order) in self._recorded.look().diverged

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
        """Results files that could not be read so far."""
        return tuple(self._recorded.look().problems.values())

    def recipe(self, recipe: str) -> dict[str, Any]:
        """Read the recipe of an id as a nested plain dict."""
        return read_recipe(self._recipe_path(recipe))

    def identity(self, recipe: str) -> dict[str, Any]:
        """Read the identity of a recipe: the hashes that distinguish it from other experiments."""
        return read_identity(self._recipe_path(recipe))

    def recipes(self) -> list[str]:
        """Return the ids of the recipes in the directory: first those listed, in that order."""
        found = dict.fromkeys(sorted(p.stem for p in (self.path / "recipes").glob("*.yaml")))
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
        complete = find_complete_parts(self.path)
        files = self.path.glob("predictions-*.safetensors")
        part = {p: p.stem.removeprefix("predictions-") for p in files}
        marks = Tombstones.read(self.path)
        return Predictions((p for p, name in part.items() if complete(name)), marks=marks)

    def arrays(self) -> ProbeArrays:
        """Return the arrays stored by probes."""
        complete, files = find_complete_parts(self.path), self.path.glob(f"{ARRAYS}*.safetensors")
        whole = [p for p in files if complete(p.stem.removeprefix(ARRAYS)) or stands_alone(p)]
        return ProbeArrays(whole, marks=Tombstones.read(self.path))

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


def new_part() -> str:
    """Make a part id: unique over processes and machines, and sorted by time."""
    return f"{time.time_ns():019d}-{os.getpid():07d}-{next(_counter):06d}-{secrets.token_hex(3)}"


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


# Finished stages, read again when the directory has changed.


RunTriple = tuple[str, int, str]  # recipe, seed, order
_SETTLED = 100_000_000  # ns after which a directory's time stamp surely shows its last change


class FinishedStages:
    """Stages of the runs in a folder; `look` reads what was written since the last call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stages: dict[RunTriple, set[int]] = {}
        self.diverged: set[RunTriple] = set()
        self.problems: dict[str, Problem] = {}  # by file
        self._read: set[str] = set()
        self._marked: list[str] = []
        self._stamp = -1

    def look(self) -> FinishedStages:
        """Read the parts that are new since the last call."""
        try:
            stamp = self.path.stat().st_mtime_ns
        except OSError as problem:
            raise DiskError(problem, self.path) from problem
        if stamp == self._stamp:
            return self
        for _ in range(5):  # a file that vanishes before it is read was merged: try again
            listed = list_names(
                self.path, ("results-", MARK_PREFIX), ""
            )  # one listing: there may be thousands
            marked = [
                one for one in listed if one.startswith(MARK_PREFIX) and one.endswith(".json")
            ]
            if marked != self._marked:  # parts read before may be superseded now
                self._marked, self._read, self.stages = marked, set(), {}
                self.diverged = set()
            parts = [one for one in listed if one.endswith(".parquet")]
            fresh = [p for p in result_files(self.path, parts) if p.name not in self._read]
            found, diverged, problems = _read_stages(fresh)
            if all(Path(one.file).exists() for one in problems):
                break
        self.problems.update({one.file: one for one in problems})
        for run, stages in found.items():
            self.stages.setdefault(run, set()).update(stages)
        self.diverged |= diverged
        self._read.update(p.name for p in fresh)
        # A change in the same clock tick would leave the stamp as it is: trust old stamps only.
        self._stamp = stamp if time.time_ns() - stamp > _SETTLED else -1
        return self


def _read_stages(
    files: Sequence[Path],
) -> tuple[dict[RunTriple, set[int]], set[RunTriple], tuple[Problem, ...]]:
    """Read finished stages per run, diverged runs and broken files from part files."""
    if not files:
        return {}, set(), ()
    parts = read_parts(files, keep_stage_ends)
    frame = to_frame(parts.table)
    lost = frame[end_of_stage_rows(frame, "diverged") & (frame["value"].to_numpy() > 0)]
    return list_finished_stages(frame), set(list_finished_stages(lost)), parts.problems


# Files beside the results, which count once the results file of their part exists.


def find_complete_parts(folder: Path) -> Callable[[str], bool]:
    """Return a test of whether the results of a part were written, which completes it."""
    files = [folder / name for name in list_names(folder, "results-", ".parquet")]
    done = {part_id(path) for path in files} | merged_part_ids(files)
    return lambda name: name in done


def read_documents(folder: Path, kind: str) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The parts of a kind (ledger, probes, environment), oldest first, and broken files."""
    found, problems = [], []
    # an incomplete part is written again, so it must not count twice
    complete = find_complete_parts(folder) if kind != "environment" else lambda name: True
    marks = Tombstones.read(folder)
    for path in sorted(folder.glob(f"{kind}-*.json"), key=lambda p: p.name):
        try:
            content = read_json(path)
        except RecordError as problem:
            problems.append(Problem(str(path), str(problem).removeprefix(f"{path}: ")))
            continue
        part = path.stem.removeprefix(f"{kind}-")
        whole = dict(content) if isinstance(content, dict) else {"entries": content}
        if marks and isinstance(whole.get("runs"), list):
            whole["runs"] = [one for one in whole["runs"] if not marks.hides_entry(one, part)]
        if whole.pop("alone", False) or complete(part):
            found.append({"part": part, **whole})
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
        skip = ("seed", "seeds", "order", "orders", "asked", "data_root", "data_in_memory")
        return {k: _without_runs(v) for k, v in content.items() if k not in skip}
    return content
