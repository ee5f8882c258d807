"""Counts and times of a service, in the text form that Prometheus reads."""

from __future__ import annotations

import threading
from collections import Counter

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """What a service has done so far.

    Examples
    --------
    >>> metrics = Metrics()
    >>> metrics.request("/predict", 200, 0.004)
    >>> metrics.rows("predict", 3)
    >>> lines = metrics.text({"engram_tasks": 2}).splitlines()
    >>> 'engram_requests_total{path="/predict",status="200"} 1' in lines
    True
    >>> 'engram_request_seconds_bucket{path="/predict",le="0.005"} 1' in lines
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()
        self._seconds: dict[str, float] = {}
        self._rows: Counter[str] = Counter()
        self._jobs: Counter[str] = Counter()

    def request(self, path: str, status: int, seconds: float) -> None:
        """A request was answered."""
        with self._lock:
            self._requests[path, status] += 1
            self._seconds[path] = self._seconds.get(path, 0.0) + seconds
            for edge in BUCKETS:
                self._buckets[path, edge] += seconds <= edge

    def rows(self, what: str, count: int) -> None:
        """Rows were asked about, or learnt."""
        with self._lock:
            self._rows[what] += count

    def job(self, end: str) -> None:
        """A task was learnt, or failed."""
        with self._lock:
            self._jobs[end] += 1

    def text(self, gauges: dict[str, float]) -> str:
        """All of it, with some present values."""
        with self._lock:
            lines = ["# TYPE engram_requests_total counter"]
            lines += [f'engram_requests_total{{path="{path}",status="{status}"}} {count}'
                      for (path, status), count in sorted(self._requests.items())]  # fmt: skip
            lines += ["# TYPE engram_request_seconds histogram"]
            for path in sorted(self._seconds):
                total = sum(n for (own, _), n in self._requests.items() if own == path)
                lines += [f'engram_request_seconds_bucket{{path="{path}",le="{edge:g}"}} '
                          f"{self._buckets[path, edge]}" for edge in BUCKETS]  # fmt: skip
                lines += [
                    f'engram_request_seconds_bucket{{path="{path}",le="+Inf"}} {total}',
                    f'engram_request_seconds_sum{{path="{path}"}} {self._seconds[path]:.6f}',
                    f'engram_request_seconds_count{{path="{path}"}} {total}',
                ]
            lines += ["# TYPE engram_rows_total counter"]
            lines += [f'engram_rows_total{{of="{k}"}} {n}' for k, n in sorted(self._rows.items())]
            lines += ["# TYPE engram_jobs_total counter"]
            lines += [f'engram_jobs_total{{end="{k}"}} {n}' for k, n in sorted(self._jobs.items())]
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"
