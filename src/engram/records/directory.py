"""A run directory: append-only, crash-safe, written by many processes at once."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from engram.disk import DiskError, folder_path, make_folders, remove_leftovers
from engram.errors import RecordError, bad
from engram.records.arrays import PREFIX as ARRAYS
from engram.records.arrays import Arrays, StoredArrays, stands_alone, write_arrays
from engram.records.documents import completed, documents
from engram.records.files import write_json
from engram.records.finished import FinishedStages
from engram.records.items import Items, read_items, write_items
from engram.records.listed import add_listed, read_listed
from engram.records.merging import MANY, merge, result_files
from engram.records.parts import Problem, write_part
from engram.records.predictions import Prediction, Predictions, write_predictions
from engram.records.recipe_files import read_identity, read_recipe, write_recipe
from engram.records.run_names import new_part, order_name, run_id
from engram.records.superseded import PREFIX, Marks, write_mark
from engram.records.table import Rows


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
        self.path = folder_path("out" if create else "path", path)
        if create:
            make_folders(self.path)
            make_folders(self.path / "recipes")
        elif not self.path.is_dir():
            raise bad("path", "an existing run directory", str(path))
        self._recorded = FinishedStages(self.path)
        self._place = _place(self.path)
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
        add_listed(self.path, recipes)

    def write_items(self, recipe: str, order: str, items: Items) -> Path:
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
            if self._appended % (MANY // 4) == 0:
                self.merge_if_many()
        return part

    def merge_if_many(self) -> None:
        """Merge results files where there are so many that reading them takes long."""
        merge(self.path, least=MANY)

    def write_environment(self, facts: Any, part: str = "") -> str:
        """Keep facts about software and device, of a part that may have some; its id."""
        part = part or new_part()
        write_json(self.path / f"environment-{part}.json", facts)
        return part

    def check_there(self) -> None:
        """Complain if the directory was deleted since it was opened, or made anew by others."""
        if _place(self.path) != self._place:
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
        return merge(self.path)

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
                aside = path.parent / f"{PREFIX}{part}"
                aside.mkdir(exist_ok=True)
                path.rename(aside / path.name)
        shared = self.path / "checkpoint" / "groups"  # of many runs; which is the engine's affair
        if shared.is_dir():
            shared.rename(self.path / "checkpoint" / f"{PREFIX}{part}-groups")
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
        return read_listed(self.path)

    def items(self, recipe: str, order: str = "") -> Items | None:
        """The test items of a recipe under an order, None if they were not kept."""
        path = self.items_path(recipe, order)
        return read_items(path) if path.exists() else None

    def predictions(self) -> Predictions:
        """Stored predictions of parts whose results are there too."""
        complete = completed(self.path)
        files = self.path.glob("predictions-*.safetensors")
        part = {p: p.stem.removeprefix("predictions-") for p in files}
        marks = Marks.read(self.path)
        return Predictions((p for p, name in part.items() if complete(name)), marks=marks)

    def arrays(self) -> Arrays:
        """What probes stored."""
        complete, files = completed(self.path), self.path.glob(f"{ARRAYS}*.safetensors")
        whole = [p for p in files if complete(p.stem.removeprefix(ARRAYS)) or stands_alone(p)]
        return Arrays(whole, marks=Marks.read(self.path))

    def documents(self, kind: str) -> tuple[list[dict[str, Any]], list[Problem]]:
        """The parts of a kind (ledger, probes, environment), oldest first, and broken files."""
        return documents(self.path, kind)


def _place(path: Path) -> tuple[int, int] | None:
    """Which directory is under a name."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
