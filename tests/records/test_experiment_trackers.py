from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engram.errors import BadArgument
from engram.records import RunDirectory, read
from engram.records.experiment_trackers import (
    MissingExtra,
    run_logs,
    to_mlflow,
    to_tensorboard,
    to_wandb,
)


def test_logs_hold_stage_curves_and_step_curves(folder: RunDirectory) -> None:
    result = read(folder.path)
    log = next(run_logs(result))
    assert log.name == "ER-seed0"
    assert log.settings["method.name"] == "ER"
    assert log.settings["seed"] == 0
    assert [stage for stage, _ in log.stages] == [0, 1, 2]
    stage, values = log.stages[1]
    assert stage == 1
    assert values["average_accuracy"] == np.nanmean(result.matrix[0, 1])
    assert values["accuracy/task_0"] == result.matrix[0, 1, 0]
    assert "accuracy/task_2" not in values  # not learnt yet
    assert "forgetting" not in log.stages[0][1]  # undefined after the first stage
    # Ten steps a stage, losses after steps 4 and 9 of each.
    assert [step for step, _, _ in log.steps] == [4, 9, 14, 19, 24, 29]


@pytest.mark.parametrize(
    ("package", "export"),
    [("tensorboard", to_tensorboard), ("wandb", to_wandb), ("mlflow", to_mlflow)],
)
def test_a_missing_package_names_the_extra(
    package: str, export: Any, folder: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    options = {"path": tmp_path} if package == "tensorboard" else {}
    with pytest.raises(MissingExtra, match=rf"{package}.*engram-cl\[export\]"):
        export(read(folder.path), **options)


def test_wandb_gets_one_run_per_run(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    class FakeRun:
        def __init__(self, options: dict[str, Any]) -> None:
            self.options, self.rows, self.finished = options, [], False
            self.summary: dict[str, float] = {}
            self.clocks: dict[str, Any] = {}

        def define_metric(self, name: str, step_metric: str | None = None) -> None:
            self.clocks[name] = step_metric

        def log(self, row: dict[str, float]) -> None:
            self.rows.append(row)

        def finish(self) -> None:
            self.finished = True

    def init(**options: Any) -> FakeRun:
        started.append(FakeRun(options))
        return started[-1]

    fake = ModuleType("wandb")
    fake.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    result = read(folder.path)
    names = to_wandb(result, project="p")
    assert names == [run.options["name"] for run in started]
    assert len(started) == 4
    first = started[0]
    assert first.finished
    assert first.options["mode"] == "offline"
    assert first.options["config"]["method.name"] == "ER"
    assert first.clocks["stage/*"] == "stage"
    stages = [row for row in first.rows if "stage" in row]
    assert stages[-1]["stage/average_accuracy"] == result.metric("average_accuracy")[0]
    assert first.summary["average_accuracy"] == result.metric("average_accuracy")[0]


def test_mlflow_gets_metrics_with_steps(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    class Client:
        def __init__(self, tracking_uri: str | None) -> None:
            calls.append(("client", tracking_uri))

        def get_experiment_by_name(self, name: str) -> None:
            return None

        def create_experiment(self, name: str) -> str:
            return f"experiment {name}"

        def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
            assert experiment == "experiment e"
            return SimpleNamespace(info=SimpleNamespace(run_id=f"id-{run_name}"))

        def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
            assert len(params) <= 100
            calls.extend(("log", run, *one) for one in metrics)

        def set_terminated(self, run: str) -> None:
            calls.append(("end", run))

    fake, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    fake.MlflowClient = Client  # type: ignore[attr-defined]
    entities.Metric = lambda *values: values  # type: ignore[attr-defined]
    entities.Param = lambda *values: values  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    ids = to_mlflow(read(folder.path), experiment="e", tracking_uri="sqlite:///x.db")
    assert ids[0] == "id-ER-seed0"
    assert calls[0] == ("client", "sqlite:///x.db")
    assert [call[1] for call in calls if call[0] == "end"] == ids
    first = [call for call in calls if call[:2] == ("log", "id-ER-seed0")]
    assert [call[5] for call in first if call[2] == "step/loss/total"] == [4, 9, 14, 19, 24, 29]


def test_tensorboard_gets_scalars(
    folder: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: dict[str, list[tuple[str, float, int]]] = {}

    class FakeWriter:
        def __init__(self, log_dir: str) -> None:
            self.rows = written.setdefault(Path(log_dir).name, [])

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.rows.append((name, value, step))

        def add_text(self, name: str, text: str, step: int) -> None:
            assert "method.name: " in text

        def flush(self) -> None: ...

        def close(self) -> None:
            self.rows.append(("closed", 0.0, 0))

    fake = ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = FakeWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    result = read(folder.path)
    folders = to_tensorboard(result, tmp_path)
    assert [f.name for f in folders] == list(written)
    last = ("stage/average_accuracy", result.metric("average_accuracy")[0], 2)
    assert last in written["ER-seed0"]
    assert written["ER-seed0"][-1] == ("closed", 0.0, 0)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard")
def test_real_tensorboard_files_appear(folder: RunDirectory, tmp_path: Path) -> None:
    for written in to_tensorboard(read(folder.path), tmp_path):
        assert list(written.glob("events.out.*"))


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs wandb")
def test_real_wandb_works_offline(
    folder: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    to_wandb(read(folder.path), path=tmp_path)
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's use of its database
@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="needs mlflow")
def test_real_mlflow_keeps_runs(folder: RunDirectory, tmp_path: Path) -> None:
    ids = to_mlflow(read(folder.path), tracking_uri=f"sqlite:///{tmp_path / 'runs.db'}")
    assert len(set(ids)) == 4


@pytest.mark.parametrize("place", ["file:///runs", "runs", "file:x"])
def test_mlflow_is_given_no_folder(folder: RunDirectory, place: str) -> None:
    with pytest.raises(BadArgument, match="tracking_uri: expected a database or server"):
        to_mlflow(read(folder.path), tracking_uri=place)
