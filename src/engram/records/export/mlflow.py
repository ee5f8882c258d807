"""Export to MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engram.errors import bad
from engram.records.export.logs import logs, need

if TYPE_CHECKING:
    from engram.records.result import Result

_LONGEST = 500  # characters of a parameter value that every MLflow store accepts


def to_mlflow(
    result: Result, *, experiment: str = "engram", tracking_uri: str | None = None
) -> list[str]:
    """Log every run as one MLflow run; their run ids.

    Parameters
    ----------
    tracking_uri
        Where MLflow keeps its runs, for example ``sqlite:///runs.db``; default: MLflow's own. Not a
        folder: MLflow has given up writing those.
    """
    if tracking_uri is not None and (":" not in tracking_uri or tracking_uri.startswith("file:")):
        raise bad("tracking_uri", "a database or server, such as sqlite:///runs.db", tracking_uri)
    mlflow = need("mlflow")
    if tracking_uri is not None:
        mlflow.set_tracking_uri(tracking_uri)
    mlflow.set_experiment(experiment)
    ids = []
    for log in logs(result):
        with mlflow.start_run(run_name=log.name) as run:
            mlflow.log_params({key: str(value)[:_LONGEST] for key, value in log.settings.items()})
            mlflow.set_tag("group", log.group)
            for stage, values in log.stages:
                mlflow.log_metrics(_named("stage", values), step=stage)
            for step, name, value in log.steps:
                mlflow.log_metrics(_named("step", {name: value}), step=step)
            ids.append(str(run.info.run_id))
    return ids


def _named(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    return {f"{kind}/{name}": value for name, value in values.items()}
