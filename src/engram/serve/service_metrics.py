"""Counts and times of a service in the text format of Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServiceMetrics:
    """Counters of a service in their own registry; thread-safe.

    Examples
    --------
    >>> metrics = ServiceMetrics()
    >>> metrics.request("/predict", 200, 0.004)
    >>> metrics.rows("predict", 3)
    >>> lines = metrics.text({"engram_tasks": 2}).splitlines()
    >>> 'engram_requests_total{path="/predict",status="200"} 1.0' in lines
    True
    >>> 'engram_request_seconds_bucket{le="0.005",path="/predict"} 1.0' in lines
    True
    """

    def __init__(self) -> None:
        self._registry = all_of = CollectorRegistry()
        self._requests = Counter(
            "engram_requests", "Requests answered.", ["path", "status"], registry=all_of
        )
        self._seconds = Histogram(
            "engram_request_seconds", "Seconds until a request was answered.", ["path"],
            buckets=BUCKETS, registry=all_of,
        )  # fmt: skip
        self._rows = Counter("engram_rows", "Rows asked about or learnt.", ["of"], registry=all_of)
        self._jobs = Counter("engram_jobs", "Tasks learnt or failed.", ["end"], registry=all_of)
        self._gauges = {
            name: Gauge(name, words, registry=all_of)
            for name, words in {
                "engram_tasks": "Tasks learnt by the network that answers.",
                "engram_classes": "Classes it knows.",
                "engram_queued": "Tasks that wait to be learnt.",
                "engram_learning": "1 while a task is being learnt.",
            }.items()
        }

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request and its time."""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def rows(self, what: str, count: int) -> None:
        """Count rows of a kind."""
        self._rows.labels(what).inc(count)

    def job(self, end: str) -> None:
        """Count a task that was learnt or failed."""
        self._jobs.labels(end).inc()

    def text(self, gauges: dict[str, float]) -> str:
        """Return the metrics as text, with the present values of gauges."""
        for name, value in gauges.items():
            self._gauges[name].set(value)
        return str(generate_latest(self._registry), "utf-8")
