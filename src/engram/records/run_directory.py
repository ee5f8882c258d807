"""A run directory: append-only, crash-safe, written by many processes at once; its recipes,
parts, file names and finished stages.
"""

from __future__ import annotations

import errno
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

from engram.errors import RecordError, bad, wrap_read_errors
from engram.io import (
    DiskError,
    check_folder_path,
    list_names,
    make_folders,
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
    merge_parts,
    merged_part_ids,
    part_id,
    read_parts,
    result_files,
    write_part,
)
from engram.records.tombstones import MARK_PREFIX, Tombstones, write_mark


class RunDirectory:
    """One directory of records; see `append` for what a writer does and `engram.read` for readers.

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
        """Keep the recipe as a nested plain dict; another one under the same id is refused."""
        return write_recipe(self._recipe_path(recipe), content)

    def _recipe_path(self, recipe: str) -> Path:
        return self.path / "recipes" / f"{recipe}.yaml"

    def list_recipes(self, recipes: Iterable[str]) -> None:
        """Note the order in which recipes were asked for, in which their numbers are shown."""
        add_to_recipe_list(self.path, recipes)

    def write_items(self, recipe: str, order: str, items: EvaluationItems) -> Path:
        """Keep the test items of a recipe under an order, once, unless the file is damaged."""
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
        """Add one part; when this returns, it is on disk. Rows must cover whole stages.

        The results file comes last: a stage counts as finished only when all else is there.

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
        alone = {} if rows else {"alone": True}  # no results will complete this part
        if ledger is not None:
            whole = ledger if isinstance(ledger, Mapping) else {"entries": ledger}
            write_json(self.path / f"ledger-{part}.json", {**whole, **alone})
        if probes is not None:  # which probes have measured which stages
            write_json(self.path / f"probes-{part}.json", {"runs": probes, **alone})
        if arrays:  # what probes store
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
        """Merge results files where there are so many that reading them takes long."""
        merge_parts(self.path, least=MANY_FILES)

    def write_environment(self, facts: Any, part: str = "") -> str:
        """Keep facts about software and device, of a part that may have some; its id."""
        part = part or new_part()
        write_json(self.path / f"environment-{part}.json", facts)
        return part

    def check_there(self) -> None:
        """Complain if the directory was deleted since it was opened, or made anew by others."""
        if _directory_identity(self.path) != self._place:
            raise DiskError(FileNotFoundError(errno.ENOENT, "gone"), self.path)

    def tidy(self) -> None:
        """Remove temporary files of writers that were killed."""
        for folder in (self.path, self.path / "recipes", *self.path.glob("checkpoint/*")):
            remove_leftovers(folder)

    def compact(self) -> int:
        """Merge the results parts written so far into one, so that reading is fast; number merged.

        Safe beside other writers and readers, and if interrupted: a number counts once. What was
        merged is removed by a later call. `append` merges by itself where there are many.
        """
        return merge_parts(self.path)

    def supersede(self, runs: Iterable[tuple[str, int, str]]) -> int:
        """Let what is recorded of some runs count no more, so that they are run anew; how many.

        Nothing is deleted: rows and predictions stay in their files, checkpoints move aside.
        """
        recorded = self.finished_runs()
        chosen = [run for run in dict.fromkeys(runs) if run in recorded]
        if not chosen:
            return 0
        part = new_part()
        for run in chosen:  # first: a run without its checkpoint begins again at worst
            path = self.checkpoint_path(*run)
            if path.is_dir():
                aside = path.parent / f"{MARK_PREFIX}{part}"
                aside.mkdir(exist_ok=True)
                path.rename(aside / path.name)
        shared = self.path / "checkpoint" / "groups"  # of many runs; which is the engine's affair
        if shared.is_dir():
            shared.rename(self.path / "checkpoint" / f"{MARK_PREFIX}{part}-groups")
        write_mark(self.path, part, chosen)
        return len(chosen)

    # -- reading -----------------------------------------------------------------------------

    def items_path(self, recipe: str, order: str = "") -> Path:
        return self.path / f"items-{recipe}-{order_name(order)}.safetensors"

    def checkpoint_path(self, recipe: str, seed: int, order: str = "") -> Path:
        """Directory of a run's checkpoint; the engine's own affair."""
        return self.path / "checkpoint" / run_id(recipe, seed, order)

    def result_files(self) -> list[Path]:
        """Results files that count, oldest first."""
        return result_files(self.path)

    def finished(self, recipe: str, seed: int, order: str = "") -> set[int]:
        """Stages of a run that are completely recorded."""
        return set(self._recorded.look().stages.get((recipe, int(seed), order), ()))

    def diverged(self, recipe: str, seed: int, order: str = "") -> bool:
        """Whether a run left all measure; it has no further stages then."""
        return (recipe, int(seed), order) in self._recorded.look().diverged

    def ended(self, recipe: str, seed: int, order: str = "", *, stages: int) -> bool:
        """Whether nothing is left to train of a run of so many stages.

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
        """Finished stages of every run in the directory, by (recipe, seed, order)."""
        return {run: set(stages) for run, stages in self._recorded.look().stages.items()}

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Results files that could not be read by now."""
        return tuple(self._recorded.look().problems.values())

    def recipe(self, recipe: str) -> dict[str, Any]:
        """The recipe of an id as a nested plain dict."""
        return read_recipe(self._recipe_path(recipe))

    def identity(self, recipe: str) -> dict[str, Any]:
        """What makes a recorded experiment the one it is."""
        return read_identity(self._recipe_path(recipe))

    def recipes(self) -> list[str]:
        """Ids of the recipes in the directory: in the order of their list, those without after."""
        found = dict.fromkeys(sorted(p.stem for p in (self.path / "recipes").glob("*.yaml")))
        return list(dict.fromkeys([*(one for one in self.listed() if one in found), *found]))

    def listed(self) -> list[str]:
        """Recipes in the order in which they were first asked for."""
        return read_recipe_list(self.path)

    def items(self, recipe: str, order: str = "") -> EvaluationItems | None:
        """The test items of a recipe under an order, None if they were not kept."""
        path = self.items_path(recipe, order)
        return read_items(path) if path.exists() else None

    def predictions(self) -> Predictions:
        """Stored predictions of parts whose results are there too."""
        complete = find_complete_parts(self.path)
        files = self.path.glob("predictions-*.safetensors")
        part = {p: p.stem.removeprefix("predictions-") for p in files}
        marks = Tombstones.read(self.path)
        return Predictions((p for p, name in part.items() if complete(name)), marks=marks)

    def arrays(self) -> ProbeArrays:
        """What probes stored."""
        complete, files = find_complete_parts(self.path), self.path.glob(f"{ARRAYS}*.safetensors")
        whole = [p for p in files if complete(p.stem.removeprefix(ARRAYS)) or stands_alone(p)]
        return ProbeArrays(whole, marks=Tombstones.read(self.path))

    def documents(self, kind: str) -> tuple[list[dict[str, Any]], list[Problem]]:
        """The parts of a kind (ledger, probes, environment), oldest first, and broken files."""
        return read_documents(self.path, kind)


def _directory_identity(path: Path) -> tuple[int, int] | None:
    """Which directory is under a name."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


# ------------------------------------------------------------------------------------------------
# Names of files in a run directory: parts, runs, orders.


_counter = itertools.count()


def new_part() -> str:
    """A part id: unique over processes and machines, later ids sort after earlier ones."""
    return f"{time.time_ns():019d}-{os.getpid():07d}-{next(_counter):06d}-{secrets.token_hex(3)}"


def run_id(recipe: str, seed: int, order: str = "") -> str:
    """A file name for one run; long orders are shortened to a hash.

    Examples
    --------
    >>> run_id("0a1b2c3d4e5f", 3, "2-0-1")
    '0a1b2c3d4e5f-3-2-0-1'
    """
    return f"{recipe}-{int(seed)}-{order_name(order)}"


def order_name(order: str) -> str:
    """An order as part of a file name."""
    if len(order) <= 80 and re.fullmatch(r"[\w.,+-]*", order):
        return order
    return "h" + hashlib.sha256(order.encode()).hexdigest()[:16]


# ------------------------------------------------------------------------------------------------
# Which stages of which runs a directory has recorded, looked up again when it has changed.


RunTriple = tuple[str, int, str]  # recipe, seed, order
_SETTLED = 100_000_000  # ns after which a directory's time stamp surely shows its last change


class FinishedStages:
    """Stages of the runs in a folder; `look` reads what others have written since the last time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stages: dict[RunTriple, set[int]] = {}
        self.diverged: set[RunTriple] = set()
        self.problems: dict[str, Problem] = {}  # by file
        self._read: set[str] = set()
        self._marked: list[str] = []
        self._stamp = -1

    def look(self) -> FinishedStages:
        """Read the parts that are new since the last look."""
        try:
            stamp = self.path.stat().st_mtime_ns
        except OSError as problem:
            raise DiskError(problem, self.path) from problem
        if stamp == self._stamp:
            return self
        for _ in range(5):  # a file that vanishes before it is read is in a merged one: look again
            listed = list_names(
                self.path, ("results-", MARK_PREFIX), ""
            )  # one walk: there may be thousands
            marked = [
                one for one in listed if one.startswith(MARK_PREFIX) and one.endswith(".json")
            ]
            if marked != self._marked:  # what was read may count no more
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
    """Stages with end-of-stage rows in some part files, per run; diverged runs; broken files."""
    if not files:
        return {}, set(), ()
    parts = read_parts(files)
    frame = to_frame(parts.table)
    lost = frame[end_of_stage_rows(frame, "diverged") & (frame["value"].to_numpy() > 0)]
    return list_finished_stages(frame), set(list_finished_stages(lost)), parts.problems


# ------------------------------------------------------------------------------------------------
# Parts of a run directory beside its results, which count once their results are there.


def find_complete_parts(folder: Path) -> Callable[[str], bool]:
    """Whether the results of a part were written, which is what completes it."""
    files = [folder / name for name in list_names(folder, "results-", ".parquet")]
    done = {part_id(path) for path in files} | merged_part_ids(files)
    return lambda name: name in done


def read_documents(folder: Path, kind: str) -> tuple[list[dict[str, Any]], list[Problem]]:
    """The parts of a kind (ledger, probes, environment), oldest first, and broken files."""
    found, problems = [], []
    # what was read belongs to results: a part cut short is made again, and must not count twice
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


# ------------------------------------------------------------------------------------------------
# The order in which recipes were asked for, in which a run directory shows its numbers.


def add_to_recipe_list(folder: Path, recipes: Iterable[str]) -> None:
    """Note recipes that are not in the list yet; several processes may do so at once.

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
    """Recipes as they were first asked for; none where nobody noted it."""
    files = [folder / name for name in list_names(folder, "listed-", ".json")]
    found: dict[str, None] = {}
    for path in files:
        with wrap_read_errors(path, "list of recipes"):
            found |= dict.fromkeys(str(one) for one in read_json(path))
    return list(found)


# ------------------------------------------------------------------------------------------------
# Recipes of a run directory: one file each, which never becomes another experiment's.


_IDENTITY = ("method", "stream", "model", "training", "memory")
_IDENTITY_LINES = re.compile(r"^identity:\n((?:  \w+: '?\w+'?\n)+)(?! )", re.MULTILINE)


def write_recipe(path: Path, content: Mapping[str, Any]) -> Path:
    """Keep a recipe as a nested plain dict; another one under the same name is refused."""
    fresh = to_plain(dict(content))
    if path.exists():
        known = read_recipe(path)
        # the same experiment may be named in several ways: its identity decides, if it has one
        whole = "identity" in known and "identity" in fresh
        for key in ("identity",) if whole else _IDENTITY:
            if _without_runs(known.get(key)) != _without_runs(fresh.get(key)):
                raise RecordError(f"{path}: already holds another recipe ({key} differs)")
        if known == fresh:
            return path
    return write_yaml(path, fresh)


def read_recipe(path: Path) -> dict[str, Any]:
    """A recipe as a nested plain dict."""
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise RecordError(f"{path}: is not a recipe")
    return content


def read_identity(path: Path) -> dict[str, Any]:
    """What makes a recorded experiment the one it is; nothing if the file does not say.

    Quick, because thousands may have to be looked at: the rest of the file is not parsed.
    """
    text = read_text(path)
    if (found := _IDENTITY_LINES.search(text)) is None:
        return dict(read_recipe(path).get("identity") or {})
    lines = (line.strip().split(": ", 1) for line in found[1].splitlines())
    return {key: int(value) if key == "form" else value.strip("'") for key, value in lines}


def _without_runs(content: Any) -> Any:
    """A recipe's part without seeds, orders and names of data: they are not its identity."""
    if isinstance(content, dict):
        skip = ("seed", "seeds", "order", "orders", "asked", "data_root", "data_in_memory")
        return {k: _without_runs(v) for k, v in content.items() if k not in skip}
    return content
