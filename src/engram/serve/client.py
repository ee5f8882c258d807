"""`engram.Client`: asks a service from Python; it needs the standard library only."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
import urllib.parse
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from engram.errors import EngramError, bad, check_float, check_int

FIRST_WAIT, LONGEST_WAIT = 0.1, 30.0  # seconds before a request is sent again
LONGEST_POLL = 1.0  # seconds between two looks at a job
BUSY = (429, 503)


class ServiceError(EngramError):
    """An answer of the service that is an error, or no answer.

    Attributes
    ----------
    status
        HTTP status; 0 if there was no answer.
    request
        Id of the request, by which the log of the service has it.
    """

    def __init__(self, words: str, status: int, request: str) -> None:
        super().__init__(f"{words} (status {status}, request {request})")
        self.status, self.request = status, request


@dataclass(frozen=True)
class Job:
    """A task of a model at the service: queued, learning, learnt, refused or failed."""

    job: int
    state: str
    rows: int = 0
    error: str = ""
    seconds: float = 0.0
    table: dict[str, Any] | None = None
    version: int | None = None

    @property
    def over(self) -> bool:
        """Whether it is no longer waiting or being learnt."""
        return self.state not in ("queued", "learning")


class Client:
    """A service of models (``engram serve``), asked with the words of `Learner`.

    Rows are lists, arrays, records (mappings by column) or a pandas DataFrame. A request that the
    service has no room for is sent again, after as long as it asks or longer each time; any other
    error is raised as `ServiceError`. A task is sent again only if it was refused: were the answer
    lost on the way, it might be learnt twice. Threads may share a client.

    Parameters
    ----------
    address
        ``http://`` or ``https://``, host and port.
    token
        Access token; by default that of the environment, ``ENGRAM_TOKEN``.
    model
        Name of a model, where the service has several; by default its first.
    timeout
        Seconds to wait for an answer.
    retries
        How often a request is sent again.

    Examples
    --------
    >>> client = Client("http://127.0.0.1:8000", model="cats")  # asks nothing yet
    >>> client.path("/predict")
    '/models/cats/predict'
    >>> client.predict([[0.1, 0.2]])  # doctest: +SKIP
    ['tom']
    >>> client.wait(client.learn([[0.3, 0.4]], ["felix"])).state  # doctest: +SKIP
    'learnt'
    """

    def __init__(
        self, address: str = "http://127.0.0.1:8000", *, token: str | None = None, model: str = "",
        timeout: float = 60.0, retries: int = 6,
    ) -> None:  # fmt: skip
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise bad("address", "http://HOST:PORT or https://HOST:PORT", address)
        self._secure, self._host, self._base = (
            parts.scheme == "https", parts.netloc.rpartition("@")[2], parts.path.rstrip("/"),
        )  # fmt: skip
        self._token = os.environ.get("ENGRAM_TOKEN", "") if token is None else token
        self.address, self.model = address, model
        self.timeout = check_float("timeout", timeout, open_low=True)
        self.retries = check_int("retries", retries)

    def path(self, route: str) -> str:
        """Return the path of a route of the client's model."""
        named = f"/models/{urllib.parse.quote(self.model, safe='')}" if self.model else ""
        return named + route

    # -- predicting --------------------------------------------------------------------------------
    def predict(self, x: Any, *, task: int | None = None) -> list[Any]:
        """Predict a label for each row, or a list of labels for label sets."""
        found: list[Any] = self._about(x, "/predict", task=task)["labels"]
        return found

    def predict_proba(self, x: Any, *, task: int | None = None) -> list[dict[Any, float]]:
        """Predict the probability of each class, by its label, for each row."""
        found = self._about(x, "/predict", task=task, probabilities=True)
        return [dict(zip(found["classes"], row)) for row in found["probabilities"]]

    def novelty(
        self, x: Any, *, detector: str | None = None, task: int | None = None
    ) -> list[float]:
        """Compute novelty scores; higher is more novel."""
        found: list[float] = self._about(x, "/novelty", detector=detector, task=task)["novelty"]
        return found

    def alarm(
        self, x: Any, rate: float = 0.05, *, detector: str | None = None, per_class: bool = False
    ) -> dict[str, list[Any]]:
        """Raise alarms: lists ``novelty``, ``p_value``, ``alarm`` and ``compared``."""
        found = self._about(x, "/novelty", detector=detector, rate=rate, per_class=per_class)
        return {name: found[name] for name in ("novelty", "p_value", "alarm", "compared")}

    # -- learning ----------------------------------------------------------------------------------
    def learn(self, x: Any, y: Any = None, *, label: str | None = None) -> Job:
        """Send a task; it is on the disk of the service when this returns, and learnt later.

        Records and tables may have their labels themselves, in the column `label`, by default that
        of the model's first table.
        """
        body = {"x": to_rows(x), "y": y, "label": label}
        return Job(**self.ask("POST", self.path("/learn"), body, again=False))

    def job(self, number: int) -> Job:
        """Return the state of a task."""
        return Job(**self.ask("GET", self.path(f"/jobs/{number}")))

    def wait(self, job: Job | int, seconds: float = 3600.0) -> Job:
        """Wait until a task is learnt; raises if it failed, was refused, or is not in time."""
        number = job.job if isinstance(job, Job) else job
        deadline, pause = time.monotonic() + seconds, 0.02
        while not (now := self.job(number)).over:
            if time.monotonic() > deadline:
                raise EngramError(f"job {number} is {now.state} after {seconds:g} seconds")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_POLL)
        if now.state != "learnt":
            raise EngramError(f"job {number} is {now.state}: {now.error}")
        return now

    # -- monitoring --------------------------------------------------------------------------------
    def observe(self, x: Any, ids: list[str] | None = None) -> list[tuple[str, Any]]:
        """Predict rows and return their ids and labels; `labels` tells later what was right.

        Needs a service that records (``engram serve --record``).
        """
        found = self._about(x, "/predict", ids=ids)
        if found["ids"] is None:
            raise EngramError("nothing was recorded (engram serve --record)")
        return list(zip(found["ids"], found["labels"]))

    def labels(self, ids: list[str], y: Any) -> int:
        """Record the labels of predicted rows by their ids; they may come late, early, or again."""
        found: int = self.ask("POST", self.path("/labels"), {"ids": ids, "y": y})["labels"]
        return found

    # -- versions ----------------------------------------------------------------------------------
    def versions(self, last: int = 100) -> list[dict[str, Any]]:
        """Return the records of the newest versions of a store, the oldest first."""
        found = self.ask("GET", self.path(f"/versions?last={last}"))["versions"]
        return list(found)

    def rollback(self, version: int) -> dict[str, Any]:
        """Serve an earlier version of a store again; returns its record."""
        found: dict[str, Any] = self.ask("POST", self.path("/rollback"), {"version": version})
        return found

    def accept(self, version: int) -> dict[str, Any]:
        """Serve a version of a store after all that was refused; returns its record."""
        body = {"version": version}
        found: dict[str, Any] = self.ask("POST", self.path("/accept"), body, again=False)
        return found

    # -- the service -------------------------------------------------------------------------------
    def health(self) -> dict[str, Any]:
        """Return what the model knows, and what waits to be learnt."""
        found: dict[str, Any] = self.ask("GET", self.path("/health"))
        return found

    def models(self) -> dict[str, Any]:
        """Return the models of the service by name, in numbers."""
        found: dict[str, Any] = self.ask("GET", "/models")["models"]
        return found

    def ask(self, method: str, path: str, body: Any = None, *, again: bool = True) -> Any:
        """Send a request and return the answer, read from JSON.

        `again` tells that the request may be repeated even if it may have been carried out.
        """
        request, wait = uuid.uuid4().hex, FIRST_WAIT
        content = None if body is None else json.dumps(body, default=_to_plain).encode()
        for left in range(self.retries, -1, -1):
            try:
                status, headers, text = self._send(method, path, content, request)
            except (OSError, http.client.HTTPException) as problem:
                unsent = isinstance(problem, ConnectionRefusedError)
                if not left or not (again or unsent):
                    words = f"{self.address}: no answer ({problem or type(problem).__name__})"
                    raise ServiceError(words, 0, request) from problem
                asked = ""
            else:
                asked = headers.get("retry-after", "")
                if status < 400:
                    return json.loads(text)
                if not left or status not in BUSY or not (again or asked):
                    raise ServiceError(
                        _read_error(text), status, headers["x-request-id"] or request
                    )
            # clients that were refused together do not come back together
            time.sleep(max(wait, float(asked) if asked.isdigit() else 0.0) * (1 + _draw(request)))
            wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError("the last attempt returns or raises")

    def _about(self, x: Any, route: str, **options: Any) -> dict[str, Any]:
        given = {name: one for name, one in options.items() if one is not None}
        found: dict[str, Any] = self.ask("POST", self.path(route), {"x": to_rows(x), **given})
        return found

    def _send(
        self, method: str, path: str, content: bytes | None, request: str
    ) -> tuple[int, http.client.HTTPMessage, str]:
        # a connection for each request: one kept open may be closed by the service meanwhile, and
        # whether it has read the request would then be unknown
        connection = (
            http.client.HTTPSConnection(
                self._host, timeout=self.timeout, context=ssl.create_default_context()
            )
            if self._secure
            else http.client.HTTPConnection(self._host, timeout=self.timeout)
        )
        headers = {"x-request-id": request, "content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # refused before all was sent
                connection.request(method, self._base + path, content, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode("utf-8", errors="replace")
        finally:
            connection.close()


def to_rows(x: Any) -> Any:
    """Return rows as JSON has them; a DataFrame becomes records, its missing values null.

    Examples
    --------
    >>> import pandas as pd
    >>> to_rows(pd.DataFrame({"age": [3, None], "kind": ["cat", "dog"]}))
    [{'age': 3.0, 'kind': 'cat'}, {'age': None, 'kind': 'dog'}]
    """
    if hasattr(x, "to_json") and hasattr(x, "columns"):
        return json.loads(x.to_json(orient="records", date_format="iso", double_precision=15))
    return x


def _to_plain(value: Any) -> Any:
    """Return an array or a number of numpy or torch, a date or a set as JSON has it."""
    for convert in ("tolist", "isoformat"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise bad("x", "numbers, text, lists, arrays or records", type(value).__name__)


def _read_error(text: str) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text[:200] or "an empty answer"


def _draw(request: str) -> float:
    return int(request[:4], 16) / (1 << 16)
