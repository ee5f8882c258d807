"""Models kept of runs: load one, copy them, explain why one is missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from engram.errors import RecordError, bad, unknown, wrap_read_errors
from engram.io import TensorFile, atomic_write
from engram.records.run_arrays import RunKey

if TYPE_CHECKING:
    from engram.records.result import Result
    from engram.records.run_directory import RunDirectory


class ModelInMemory(Protocol):
    """A model that is not on disk."""

    def save(self, path: Path) -> Path:
        """Write it to a file."""

    def open(self, learner: Any, **options: Any) -> Any:
        """Return a learner of the given class with this model."""


ModelLocation = Path | ModelInMemory
ModelSource = Callable[[RunKey], ModelLocation | None]
MODEL_FILE = "model.engram"


def load_model(
    result: Result, label: str | None, seed: int | None, order: str | None, **options: Any
) -> Any:
    """Implement `Result.model`."""
    run = find_run(result, label, seed, order)
    kept = result.kept_model(run)
    if kept is None:
        raise RecordError(_explain_missing_model(result, run))
    if isinstance(kept, Path):
        check_owner(kept, run)
    # imported by name, so that reading a result needs neither torch nor the engine
    learner = import_module("engram.deploy.deployed_learner").Learner
    return (
        learner.load(kept, **options) if isinstance(kept, Path) else kept.open(learner, **options)
    )


def save_models(result: Result, folder: RunDirectory) -> None:
    """Copy the models of a result into a run directory."""
    for run in result.runs:
        kept, own = result.kept_model(run), folder.checkpoint_path(*run)
        if kept is None or (own / MODEL_FILE).exists():
            continue
        own.mkdir(parents=True, exist_ok=True)
        if isinstance(kept, Path):
            check_owner(kept, run)
            with atomic_write(own / MODEL_FILE) as temporary:
                shutil.copyfile(kept, temporary)
        else:
            kept.save(own / MODEL_FILE)


def check_owner(path: Path, run: RunKey) -> None:
    """Raise unless a model file says that it holds the model of this run."""
    facts = read_model_facts(path)
    own = facts["made_by"].get("run")
    if own is not None and list(own) != list(run):
        raise RecordError(f"{path}: holds the model of another run {tuple(own)}, not of {run}")
    if facts.get("seed") != run.seed:  # all that files of earlier versions tell
        raise RecordError(f"{path}: holds the model of seed {facts.get('seed')}, not of {run}")


def read_model_facts(path: Path) -> dict[str, Any]:
    """Read the facts in the header of a model file; raises for other files."""
    file = TensorFile(path, what="model file")
    with wrap_read_errors(path, "model file"):
        facts = json.loads(file.facts["facts"])
        return {**facts, "made_by": dict(facts.get("made_by") or {})}


def find_run(
    result: Result, label: str | None, seed: int | None, order: str | None
) -> RunKey:  # fmt: skip
    """Find the one run that matches; values left out must be the same in all runs."""
    runs = list(zip(result.runs, result.run_labels, strict=True))
    if not runs:
        raise RecordError("the result has no runs")
    wanted = {"label": label, "seed": seed, "order": order}
    for name, value in wanted.items():
        have = sorted({str(_run_property(name, *one)) for one in runs})
        if value is not None and str(value) not in have:
            if name == "label":
                raise unknown(name, value, have)
            raise bad(name, f"one of {', '.join(have)}", value)
        if value is None and name == "label" and len(have) > 1:
            raise bad(name, f"one of {', '.join(have)}, since there are several", None)
        if value is not None:
            runs = [one for one in runs if str(_run_property(name, *one)) == str(value)]
            if not runs:
                raise bad(name, "an existing run with the other values given", value)
    return runs[0][0]  # the first of several seeds


def _run_property(name: str, run: RunKey, label: str) -> Any:
    return label if name == "label" else getattr(run, name)


def _explain_missing_model(result: Result, run: RunKey) -> str:
    """Explain why no model of a run was kept, and how to get one."""
    keep = result.recipes.get(run.recipe, {}).get("keep")
    what = f"the model of run {run.recipe}, seed {run.seed}, was not kept"
    if run in result.diverged:
        return f"{what}: the run diverged"
    if keep == "counts":
        return f"{what}, because of keep='counts'; run it with keep='scores' (--keep scores)"
    return (
        f"{what}: the run is not finished, or trained beside "
        f"more than 32 others; run it again on its own, with seeds=[{run.seed}] and out=DIR"
    )
