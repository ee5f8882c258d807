"""Export to MLflow, TensorBoard and Weights & Biases, of a `Result` or while a run trains."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from engram.errors import EngramError, bad, check_choice
from engram.records.summary import summary_names

if TYPE_CHECKING:
    from engram.records.result import Result
    from engram.records.run_arrays import RunKey

# A Result as one log of named curves per run, which every export starts from.


class MissingExtra(EngramError, ImportError):
    """An optional package that this function needs is not installed."""


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


def import_extra(module: str) -> Any:
    """Import an optional package, or say which extra installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        package = module.split(".")[0]
        raise MissingExtra(
            f"{package} is not installed; get it with: pip install 'engram-cl[export]'"
        ) from problem


def run_logs(result: Result) -> Iterator[RunLog]:
    """Yield one log per run of a result."""
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
    """Flatten the recipe into one level, with dots in the keys."""
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
    """Collect the numbers inside stages, with steps counted over all stages."""
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


# Sinks: one run in another tool, written at once or while it trains.


class Sink(Protocol):
    """One run in another tool; `name` is what the tool calls it."""

    name: str

    def stage(self, stage: int, values: Mapping[str, float]) -> None:
        """Log numbers after a stage."""

    def steps(self, rows: Sequence[tuple[int, str, float]]) -> None:
        """Log numbers inside stages: step over all stages, name, value."""

    def close(self) -> None:
        """Finish the run; nothing is logged after this."""


def export_run(log: RunLog, sink: Sink) -> None:
    """Write a whole log to a sink, and close the sink even if that fails."""
    try:
        sink.steps(log.steps)
        for stage, values in log.stages:
            sink.stage(stage, values)
    finally:
        sink.close()


def folder_name(text: str, longest: int = 120) -> str:
    """Make a folder name of a text: without separators, short, and still unique.

    Examples
    --------
    >>> folder_name("A/B seed0")
    'A_B seed0'
    >>> len(folder_name("x" * 500)), folder_name("x" * 500) == folder_name("x" * 501)
    (120, False)
    """
    safe = re.sub(r"[/\\:*?\"<>|\x00-\x1f]", "_", text).strip(" .") or "run"
    if len(safe) <= longest and safe.isascii():
        return safe
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{safe.encode('ascii', 'replace').decode().replace('?', '_')[: longest - 9]}-{mark}"


OpenSink = Callable[[RunLog], Sink]
TOOLS = ("tensorboard", "wandb", "mlflow")


def choose_sink(tool: str, folder: str | os.PathLike[str]) -> OpenSink:
    """Return a function that opens a run in a tool, whose files are written to `folder`.

    Raises at once if the package is missing. The tools' own variables apply: ``WANDB_MODE``
    (default: offline) and ``WANDB_PROJECT``, ``MLFLOW_TRACKING_URI`` (default: a file
    ``mlflow.db`` in `folder`) and ``MLFLOW_EXPERIMENT_NAME``.
    """
    check_choice("log", tool, TOOLS)
    place = Path(folder)
    if tool == "tensorboard":
        import_extra("tensorboard")
        return lambda log: TensorBoardRun(log, place / "tensorboard")
    place.mkdir(parents=True, exist_ok=True)
    if tool == "wandb":
        import_extra("wandb")
        project, mode = os.environ.get("WANDB_PROJECT"), os.environ.get("WANDB_MODE")
        return lambda log: WandbRun(
            log, project=project or "engram", mode=mode or "offline", path=place
        )
    import_extra("mlflow")
    uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{place.absolute() / 'mlflow.db'}"
    client, known = mlflow_client(os.environ.get("MLFLOW_EXPERIMENT_NAME") or "engram", uri)
    return lambda log: MLflowRun(log, client=client, experiment_id=known)


# MLflow


_LONGEST = 500  # characters of a parameter value that every MLflow store accepts
_MOST_METRICS, _MOST_PARAMS = 1000, 100  # of one request


class MLflowRun:
    """One MLflow run, written through a client so that several may be open at a time."""

    def __init__(self, log: RunLog, *, client: Any, experiment_id: str) -> None:
        self._client, self._entities = client, import_extra("mlflow.entities")
        tags = {"group": log.group}
        self.name = str(client.create_run(experiment_id, run_name=log.name, tags=tags).info.run_id)
        params = [
            self._entities.Param(key, str(value)[:_LONGEST]) for key, value in log.settings.items()
        ]
        for part in _split_rows(params, _MOST_PARAMS):
            client.log_batch(self.name, params=part)

    def stage(self, stage: int, values: Mapping[str, float]) -> None:
        self._log([(stage, f"stage/{name}", value) for name, value in values.items()])

    def steps(self, rows: Sequence[tuple[int, str, float]]) -> None:
        self._log([(step, f"step/{name}", value) for step, name, value in rows])

    def _log(self, rows: Sequence[tuple[int, str, float]]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, step) for step, name, value in rows]
        for part in _split_rows(metrics, _MOST_METRICS):
            self._client.log_batch(self.name, metrics=part)

    def close(self) -> None:
        self._client.set_terminated(self.name)


def _split_rows(rows: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def mlflow_client(experiment: str, tracking_uri: str | None) -> tuple[Any, str]:
    """Return a client and the id of an experiment, which is created if there is none."""
    if tracking_uri is not None and (":" not in tracking_uri or tracking_uri.startswith("file:")):
        raise bad("tracking_uri", "a database or server, such as sqlite:///runs.db", tracking_uri)
    client = import_extra("mlflow").MlflowClient(tracking_uri=tracking_uri)
    found = client.get_experiment_by_name(experiment)
    known = client.create_experiment(experiment) if found is None else found.experiment_id
    return client, str(known)


def to_mlflow(
    result: Result, *, experiment: str = "engram", tracking_uri: str | None = None
) -> list[str]:
    """Log every run as one MLflow run, and return the run ids.

    Parameters
    ----------
    tracking_uri
        Where MLflow keeps its runs, for example ``sqlite:///runs.db``; default: MLflow's own. Not a
        folder, which MLflow no longer supports.
    """
    client, known = mlflow_client(experiment, tracking_uri)
    ids = []
    for log in run_logs(result):
        run = MLflowRun(log, client=client, experiment_id=known)
        export_run(log, run)
        ids.append(run.name)
    return ids


# TensorBoard


class TensorBoardRun:
    """One run as a directory of events below `path`."""

    def __init__(self, log: RunLog, path: str | os.PathLike[str]) -> None:
        import_extra("tensorboard")
        writer_class = import_extra("torch.utils.tensorboard").SummaryWriter
        self.folder = Path(path) / folder_name(log.name)
        self.name = str(self.folder)
        self._writer = writer_class(log_dir=self.name)
        text = "\n".join(f"    {key}: {value}" for key, value in log.settings.items())
        self._writer.add_text("recipe", text, 0)

    def stage(self, stage: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(f"stage/{name}", value, stage)
        self._writer.flush()  # a run may take hours: show what is known

    def steps(self, rows: Sequence[tuple[int, str, float]]) -> None:
        for step, name, value in rows:
            self._writer.add_scalar(f"step/{name}", value, step)

    def close(self) -> None:
        self._writer.close()


def to_tensorboard(result: Result, path: str | os.PathLike[str]) -> list[Path]:
    """Write one TensorBoard log per run below `path`, and return the directories written.

    Numbers per stage are drawn over stages, numbers inside stages over steps.
    """
    folders = []
    for log in run_logs(result):
        run = TensorBoardRun(log, path)
        export_run(log, run)
        folders.append(run.folder)
    return folders


# Weights & Biases


MODES = ("offline", "online", "shared", "disabled")


class WandbRun:
    """One W&B run; several may be open at a time."""

    def __init__(
        self, log: RunLog, *, project: str, mode: str, path: str | os.PathLike[str] | None
    ) -> None:
        self.name = log.name
        self._run = import_extra("wandb").init(
            project=project, name=log.name, group=log.group, config=log.settings, mode=mode,
            dir=None if path is None else str(path), reinit="create_new",
            settings={"silent": True, "console": "off"},
        )  # fmt: skip
        # Stage and step curves have their own x axes; wandb's counter only orders the calls.
        for clock in ("stage", "step"):
            self._run.define_metric(clock)
            self._run.define_metric(f"{clock}/*", step_metric=clock)

    def stage(self, stage: int, values: Mapping[str, float]) -> None:
        self._run.log({"stage": stage, **{f"stage/{name}": v for name, v in values.items()}})
        for name, value in values.items():
            self._run.summary[name] = value

    def steps(self, rows: Sequence[tuple[int, str, float]]) -> None:
        for step, name, value in rows:
            self._run.log({"step": step, f"step/{name}": value})

    def close(self) -> None:
        self._run.finish()


def to_wandb(
    result: Result,
    *,
    project: str = "engram",
    mode: str = "offline",
    path: str | os.PathLike[str] | None = None,
) -> list[str]:
    """Log every run as one W&B run, grouped by label, and return the names of the runs.

    Parameters
    ----------
    mode
        ``offline`` writes files only (`wandb sync` uploads them later), ``online`` sends them.
    path
        Directory of the offline files; default: wandb's own.
    """
    check_choice("mode", mode, MODES)
    names = []
    for log in run_logs(result):
        run = WandbRun(log, project=project, mode=mode, path=path)
        export_run(log, run)
        names.append(run.name)
    return names
