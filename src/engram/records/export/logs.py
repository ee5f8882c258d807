"""What every export shares: a Result as one log of named curves per run."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.errors import EngramError
from engram.records.summary import summary_names

if TYPE_CHECKING:
    from engram.records.arrange import RunKey
    from engram.records.result import Result


class MissingExtra(EngramError, ImportError):
    """A package that only an optional part needs is not installed."""


@dataclass(frozen=True)
class RunLog:
    """One run: its name, its settings and its numbers.

    `stages` holds (stage, {name: value}), `steps` (step counted over all stages, name, value).
    """

    name: str
    group: str
    settings: dict[str, Any]
    stages: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    steps: list[tuple[int, str, float]] = field(default_factory=list)


def need(module: str) -> Any:
    """Import an optional package, or say which extra installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        package = module.split(".")[0]
        raise MissingExtra(
            f"{package} is not installed; get it with: pip install 'engram[export]'"
        ) from problem


def logs(result: Result) -> Iterator[RunLog]:
    """One log per run of a Result."""
    names = [name for name in summary_names(result) if name != "backward_transfer"]
    curves = {name: result.curve(name) for name in names}  # [run, stage]
    frame = result.frame().assign(run=result._arranged.run)
    fine = dict(iter(frame[frame["step"] >= 0].groupby("run")))
    spent = frame[(frame["metric"] == "steps") & (frame["step"] == -1)]
    lengths = spent.groupby(["run", "stage"])["value"].sum()
    for number, (run, label) in enumerate(zip(result.runs, result.run_labels, strict=True)):
        name = f"{label}-seed{run.seed}" + (f"-{run.order}" if run.order else "")
        log = RunLog(name, label, _settings(result, run, label))
        for stage in result.stages[run]:
            values = {k: float(v[number, stage]) for k, v in curves.items()}
            row = result.matrix[number, stage]
            values |= {f"{result.figures[number]}/task_{j}": float(a) for j, a in enumerate(row)}
            known = {k: v for k, v in values.items() if np.isfinite(v)}
            log.stages.append((stage, known))
        if number in fine:
            own = lengths.loc[number] if number in lengths.index.get_level_values(0) else {}
            log.steps.extend(_steps(fine[number], {int(k): int(v) for k, v in own.items()}))
        yield log


def _settings(result: Result, run: RunKey, label: str) -> dict[str, Any]:
    """The recipe, flat, with dots between the levels."""
    flat: dict[str, Any] = {}

    def add(prefix: str, content: Any) -> None:
        if isinstance(content, dict):
            for key, value in content.items():
                add(f"{prefix}.{key}" if prefix else str(key), value)
        else:
            flat[prefix] = content

    add("", result.recipes.get(run.recipe, {}))
    return {**flat, "label": label, "recipe": run.recipe, "seed": run.seed, "order": run.order}


def _steps(rows: Any, lengths: dict[int, int]) -> list[tuple[int, str, float]]:
    """Numbers taken inside stages, with steps counted on from stage to stage."""
    stages = rows["stage"].to_numpy()
    seen = {int(k): int(rows["step"].to_numpy()[stages == k].max()) + 1 for k in np.unique(stages)}
    size = {**seen, **lengths}  # the recorded number of steps, where there is one
    before = {k: sum(n for earlier, n in size.items() if earlier < k) for k in size}
    found = []
    for row in rows.itertuples(index=False):
        if not np.isfinite(row.value):
            continue
        name = str(row.metric) + (f"/{row.head}" if row.head else "")
        name += f"/task_{row.task}" if row.task >= 0 else ""
        found.append((before[int(row.stage)] + int(row.step), name, float(row.value)))
    return sorted(found)
