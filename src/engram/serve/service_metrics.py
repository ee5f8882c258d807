"""Counts and times of a service in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServiceMetrics:
    """Counters of a service in their own registry; thread-safe.

    Examples
    --------
    >>> metrics = ServiceMetrics()
    >>> metrics.request("/predict", "cats", 200, 0.004)
    >>> metrics.rows("cats", "predict", 3)
    >>> lines = metrics.text({"cats": {"tasks": 2}}).splitlines()
    >>> 'engram_requests_total{model="cats",path="/predict",status="200"} 1.0' in lines
    True
    >>> 'engram_request_seconds_bucket{le="0.005",model="cats",path="/predict"} 1.0' in lines
    True
    >>> 'engram_tasks{model="cats"} 2.0' in lines
    True
    """

    def __init__(self) -> None:
        self._registry = all_of = CollectorRegistry()
        ProcessCollector(registry=all_of)
        self._requests = Counter(
            "engram_requests", "Requests answered.", ["path", "model", "status"], registry=all_of
        )
        self._seconds = Histogram(
            "engram_request_seconds", "Seconds until a request was answered.", ["path", "model"],
            buckets=BUCKETS, registry=all_of,
        )  # fmt: skip
        self._rows = Counter(
            "engram_rows", "Rows asked about or learnt.", ["model", "of"], registry=all_of
        )
        self._jobs = Counter(
            "engram_jobs", "Tasks learnt, refused or failed.", ["model", "end"], registry=all_of
        )
        self._gauges = {
            name: Gauge(f"engram_{name}", words, ["model"], registry=all_of)
            for name, words in {
                "tasks": "Tasks learnt by the network that answers.",
                "classes": "Classes it knows.",
                "queued": "Tasks that wait to be learnt.",
                "learning": "1 while a task is being learnt.",
                "version": "The version that is served, of a store of versions.",
            }.items()
        }

    def request(self, path: str, model: str, status: int, seconds: float) -> None:
        """Count a request and its time; `model` is empty where it is about none."""
        self._requests.labels(path, model, status).inc()
        self._seconds.labels(path, model).observe(seconds)

    def rows(self, model: str, what: str, count: int) -> None:
        """Count rows of a kind."""
        self._rows.labels(model, what).inc(count)

    def job(self, model: str, end: str) -> None:
        """Count a task that was learnt or failed."""
        self._jobs.labels(model, end).inc()

    def text(
        self, states: Mapping[str, Mapping[str, float | None]],
        monitored: Mapping[str, Mapping[str, float]] | None = None,
    ) -> str:  # fmt: skip
        """Return the metrics as text, with the present state of each model.

        `monitored` is what `Monitor.numbers` knows of it.
        """
        for model, numbers in (monitored or {}).items():
            for name, number in numbers.items():
                full = f"monitor_{name}"
                if full not in self._gauges:
                    words = "As in engram.Monitor.numbers."
                    self._gauges[full] = Gauge(
                        f"engram_{full}", words, ["model"], registry=self._registry
                    )
                self._gauges[full].labels(model).set(number)
        for model, state in states.items():
            for name, value in state.items():
                if value is not None:
                    self._gauges[name].labels(model).set(value)
        return str(generate_latest(self._registry), "utf-8")
