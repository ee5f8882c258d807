"""Export to MLflow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engram.errors import bad
from engram.records.export.logs import RunLog, logs, need
from engram.records.export.sink import pour

if TYPE_CHECKING:
    from engram.records.result import Result

_LONGEST = 500  # characters of a parameter value that every MLflow store accepts
_MOST_METRICS, _MOST_PARAMS = 1000, 100  # of one request


class MLflowRun:
    """One MLflow run; it goes by a client, so that several may be open at a time."""

    def __init__(self, log: RunLog, *, client: Any, experiment_id: str) -> None:
        self._client, self._entities = client, need("mlflow.entities")
        tags = {"group": log.group}
        self.name = str(client.create_run(experiment_id, run_name=log.name, tags=tags).info.run_id)
        params = [
            self._entities.Param(key, str(value)[:_LONGEST]) for key, value in log.settings.items()
        ]
        for part in _parts(params, _MOST_PARAMS):
            client.log_batch(self.name, params=part)

    def stage(self, stage: int, values: Mapping[str, float]) -> None:
        self._log([(stage, f"stage/{name}", value) for name, value in values.items()])

    def steps(self, rows: Sequence[tuple[int, str, float]]) -> None:
        self._log([(step, f"step/{name}", value) for step, name, value in rows])

    def _log(self, rows: Sequence[tuple[int, str, float]]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(name, value, now, step) for step, name, value in rows]
        for part in _parts(metrics, _MOST_METRICS):
            self._client.log_batch(self.name, metrics=part)

    def close(self) -> None:
        self._client.set_terminated(self.name)


def _parts(rows: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def mlflow_client(experiment: str, tracking_uri: str | None) -> tuple[Any, str]:
    """A client and the id of an experiment, which is made if there is none."""
    if tracking_uri is not None and (":" not in tracking_uri or tracking_uri.startswith("file:")):
        raise bad("tracking_uri", "a database or server, such as sqlite:///runs.db", tracking_uri)
    client = need("mlflow").MlflowClient(tracking_uri=tracking_uri)
    found = client.get_experiment_by_name(experiment)
    known = client.create_experiment(experiment) if found is None else found.experiment_id
    return client, str(known)


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
    client, known = mlflow_client(experiment, tracking_uri)
    ids = []
    for log in logs(result):
        run = MLflowRun(log, client=client, experiment_id=known)
        pour(log, run)
        ids.append(run.name)
    return ids
