"""Ways to a `Result`: read run directories, combine results, import accuracies from CSV files."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.errors import RecordError, bad, check_choice
from engram.records.journal import RecordFile
from engram.records.long_table import Rows, from_frame, to_frame
from engram.records.predictions import Predictions
from engram.records.probe_arrays import ProbeArrays
from engram.records.result import Result
from engram.records.run_arrays import RunKey, arrange_runs, sort_by_run
from engram.records.run_directory import RunDirectory, find_journal_problems
from engram.records.saved_models import MODEL_FILE, ModelLocation, ModelSource
from engram.records.scored_items import HEADS, EvaluationItems
from engram.records.table_parts import (
    PartContents,
    Problem,
    drop_repeats,
    keep_metrics,
    read_folders,
    result_files,
)


def read(
    *paths: str | os.PathLike[str],
    recipes: Collection[str] | None = None,
    metrics: Callable[[str], bool] | None = None,
) -> Result:
    """Read one or several run directories; broken files are listed in `problems`.

    Runs are in the order in which they were requested, not that in which they finished. Of many
    recipes, those with an id in `recipes` can be selected; of many numbers, those of the metrics
    of which `metrics` is true, which takes less memory.

    Examples
    --------
    >>> import tempfile
    >>> rows = Rows(recipe="0a1b2c3d4e5f", label="ER", seed=0)
    >>> rows.add("accuracy", 0.9, stage=0, task=0, head="single")
    >>> folder = RunDirectory(tempfile.mkdtemp())
    >>> part = folder.append(rows)
    >>> read(folder.path).matrix.tolist()
    [[[0.9]]]
    """
    if not paths:
        raise bad("paths", "at least one run directory", "none")
    folders = [RunDirectory(path, create=False) for path in paths]
    reduce = None if metrics is None else keep_metrics(metrics)
    parts = read_folders([folder.path for folder in folders], result_files, reduce)
    problems = [*parts.problems, *(p for one in folders for p in find_journal_problems(one.path))]
    if not parts.files and not problems:
        shown = ", ".join(str(folder.path) for folder in folders)
        if any(folder.recipes() for folder in folders):
            raise RecordError(
                f"{shown}: no task of any run is finished yet; engram resume continues them"
            )
        raise RecordError(f"{shown}: no results-* file found; not a run directory?")
    contents: dict[str, Any] = {}
    for folder in folders:
        contents |= _recipes(folder, problems, recipes)
    frame = to_frame(parts.table)
    del parts  # the same numbers once more
    listed = [recipe for folder in folders for recipe in folder.listed()]
    frame = sort_by_run(frame, arrange_runs(frame), listed)
    ledger, environment = (_documents(folders, k, problems) for k in ("ledger", "environment"))
    return Result(
        frame, recipes=contents, items=_find_items(folders), ledger=ledger,
        predictions=Predictions.join(folder.predictions() for folder in folders),
        arrays=ProbeArrays.join(folder.arrays() for folder in folders),
        problems=problems, environment=environment, models=find_models(folders),
    )  # fmt: skip


MOST_ITEMS = 256  # files of test items kept in memory


def find_models(folders: Sequence[RunDirectory]) -> ModelSource:
    """Return a lookup of model files by run."""

    def models(run: RunKey) -> Path | None:
        paths = (folder.checkpoint_path(*run) / MODEL_FILE for folder in folders)
        return next((path for path in paths if path.is_file()), None)

    return models


def load_into_memory(
    result: Result, models: Mapping[RunKey, ModelLocation] | None = None
) -> Result:
    """Load everything that the result reads lazily, so that its files may be deleted.

    Examples
    --------
    >>> rows = Rows(recipe="0a1b2c3d4e5f", label="ER")
    >>> rows.add("accuracy", 0.9, stage=0, task=0, head="single")
    >>> load_into_memory(Result(rows.frame())).matrix.tolist()
    [[[0.9]]]
    """
    runs = dict.fromkeys((run.recipe, run.order) for run in result.runs)
    items = {key: found for key in runs if (found := result.items(*key)) is not None}
    arrays = [result.stored.stored(*place) for place in result.stored]
    return Result(
        result.recorded_frame(), recipes=result.labelled_recipes(), items=items,
        ledger=result.ledger,
        predictions=[result.predictions.get(*key) for key in result.predictions],
        arrays=ProbeArrays(memory=[one for one in arrays if one is not None]),
        problems=result.problems, environment=result.environment, models=(models or {}).get,
    )  # fmt: skip


def _recipes(
    folder: RunDirectory, problems: list[Problem], wanted: Collection[str] | None
) -> dict[str, Any]:
    found = {}
    for name in folder.recipes():
        if wanted is not None and name not in wanted:
            continue
        try:
            found[name] = folder.recipe(name)
        except RecordError as problem:
            problems.append(Problem.of(folder.path / "recipes" / f"{name}.yaml", problem))
    return found


def _documents(
    folders: Sequence[RunDirectory], kind: str, problems: list[Problem]
) -> list[dict[str, Any]]:
    documents = []
    for folder in folders:
        found, broken = folder.documents(kind)
        documents += found
        problems += broken
    return documents


def _find_items(folders: Sequence[RunDirectory]) -> Any:
    """Return a lookup of test items, which keeps those read last."""

    @functools.lru_cache(maxsize=MOST_ITEMS)
    def items(recipe: str, order: str) -> EvaluationItems | None:
        every = (folder.items(recipe, order) for folder in folders)
        return next((one for one in every if one is not None), None)

    return items


def combine(results: Iterable[Result]) -> Result:
    """Combine several results into one; of a run in two of them, the later numbers count.

    Examples
    --------
    >>> results = []
    >>> for name in ("ER", "EWC"):
    ...     rows = Rows(recipe=name, label=name)
    ...     rows.add("accuracy", 0.5, stage=0, task=0, head="single")
    ...     results.append(Result(rows.frame()))
    >>> combine(results).labels
    ['ER', 'EWC']
    """
    import pyarrow as pa

    several = list(results)
    if not several:
        raise bad("results", "at least one Result", "none")
    tables = [from_frame(one.recorded_frame()) for one in several]
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    part = np.repeat(np.arange(len(tables), dtype=np.int32), [len(t) for t in tables])
    whole = drop_repeats(
        PartContents(table, part, tuple(RecordFile(Path(str(i))) for i in range(len(tables))))
    )

    def items(recipe: str, order: str) -> EvaluationItems | None:
        every = (one.items(recipe, order) for one in reversed(several))
        return next((found for found in every if found is not None), None)

    def models(run: RunKey) -> ModelLocation | None:
        every = (one.kept_model(run) for one in reversed(several))
        return next((found for found in every if found is not None), None)

    return Result(
        to_frame(whole.table), items=items,
        recipes={k: v for one in several for k, v in one.labelled_recipes().items()},
        predictions=Predictions.join(one.predictions for one in several),
        arrays=ProbeArrays.join(one.stored for one in several),
        problems=[p for one in several for p in one._problems],
        ledger=[entry for one in several for entry in one.ledger],
        environment=[facts for one in several for facts in one.environment],
        models=models,
    )  # fmt: skip


def from_csv(
    *paths: str | os.PathLike[str], label: str = "", head: str = "single", percent: bool = False
) -> Result:
    r"""Read accuracy matrices (one row per stage, one column per task) of other tools.

    A line of column names and a column of row names are recognised and skipped; cells may be empty
    or missing above the diagonal. Each file is one run; its number is the seed.

    Parameters
    ----------
    label
        Name of the method; default: name of the first file.
    percent
        Whether the file holds percentages. Without it, numbers above 1 raise an error.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "finetune.csv"
    >>> _ = path.write_text("stage,task 1,task 2\n1,0.9,\n2,0.3,0.8\n")
    >>> from_csv(path).matrix.tolist()
    [[[0.9, nan], [0.3, 0.8]]]
    """
    check_choice("head", head, HEADS)
    if not paths:
        raise bad("paths", "at least one CSV file", "none")
    name = label or Path(paths[0]).stem
    rows = Rows()
    for number, path in enumerate(paths):
        matrix = _matrix(path, percent)
        stage, task = np.nonzero(~np.isnan(matrix))
        rows.bind(recipe=f"csv-{name}", label=name, seed=number)
        rows.add_array("accuracy", matrix[stage, task], stage=stage, task=task, head=head)
    recipe = {"method": {"name": name}, "stream": {"head": head}, "source": "csv"}
    return Result(rows.frame(), recipes={f"csv-{name}": recipe})


def _matrix(path: str | os.PathLike[str], percent: bool) -> npt.NDArray[np.float64]:
    """Read one CSV file as [stage, task], with NaN for missing cells."""
    import csv

    from engram.io import read_text

    lines = [line for line in csv.reader(read_text(path).splitlines()) if any(map(str.strip, line))]
    cells = [[_number(cell) for cell in line] for line in lines]
    corner = lines[0][0].strip().lower() if lines else ""
    # The first accuracy is never missing, so an empty corner belongs to a line of names.
    words = bool(cells) and all(isinstance(c, str) or np.isnan(c) for c in cells[0])
    if words or corner == "":
        named = corner == "" or any(w in corner for w in ("stage", "after", "trained", "step"))
        cells = [row[1:] if named else row for row in cells[1:]]
    if all(row and isinstance(row[0], str) for row in cells):
        cells = [row[1:] for row in cells]
    found = [cell for row in cells for cell in row]
    if not found or any(isinstance(cell, str) for cell in found):
        raise RecordError(f"{path}: not a table of accuracies, one row per stage")
    matrix = np.full((len(cells), max(map(len, cells))), np.nan)
    for stage, row in enumerate(cells):
        matrix[stage, : len(row)] = row
    if percent:
        matrix = matrix / 100.0
    if np.nanmax(matrix) > 1.0 or np.nanmin(matrix) < 0.0:
        hint = "" if percent else " (percent=True reads percentages)"
        raise RecordError(f"{path}: accuracies must lie between 0 and 1{hint}")
    return matrix


def _number(cell: str) -> float | str:
    text = cell.strip().removesuffix("%")
    if text == "" or text.lower() in ("nan", "-"):
        return float("nan")
    try:
        return float(text)
    except ValueError:
        return text
