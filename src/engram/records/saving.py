"""Writing a Result into a run directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from engram.records.arrays import PREFIX as ARRAYS
from engram.records.arrays import write_arrays
from engram.records.directory import RunDirectory
from engram.records.models import save_models
from engram.records.parts import write_part
from engram.records.predictions import write_predictions
from engram.records.run_names import new_part
from engram.records.table import from_frame

if TYPE_CHECKING:
    from engram.records.result import Result


def save(result: Result, path: str | os.PathLike[str]) -> None:
    """See `Result.save`."""
    folder = RunDirectory(path)
    for recipe, content in result.recipes.items():
        folder.write_recipe(recipe, content)
    folder.list_recipes(run.recipe for run in result.runs)
    for run in dict.fromkeys((run.recipe, run.order) for run in result.runs):
        items = result.items(*run)
        if items is not None:
            folder.write_items(*run, items)
    part = new_part()
    stored = [result.predictions.get(*key) for key in result.predictions]
    kept = [one for one in stored if one is not None]
    if kept:
        write_predictions(folder.path / f"predictions-{part}.safetensors", kept)
    arrays = [one for place in result.stored if (one := result.stored.stored(*place)) is not None]
    if arrays:
        write_arrays(folder.path / f"{ARRAYS}{part}.safetensors", arrays)
    write_part(folder.path / f"results-{part}.parquet", from_frame(result.frame()))
    for kind, documents in (("ledger", result.ledger), ("environment", result.environment)):
        for document in documents:
            content = {k: v for k, v in document.items() if k != "part"}
            folder.append(None, **{kind: content})  # type: ignore[arg-type]
    save_models(result, folder)
