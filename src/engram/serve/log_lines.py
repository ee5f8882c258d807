"""Lines of the log: one for each request and each job, as text or as JSON."""

from __future__ import annotations

import json
import logging
import logging.config
import re
import time
import uuid
from dataclasses import dataclass
from typing import Any

LOG_FORMATS = ("text", "json")
REQUESTS = logging.getLogger("engram.serve.requests")
REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
QUIET_ROUTES = ("/live", "/ready", "/metrics")  # asked every few seconds by supervisors


@dataclass
class RequestFacts:
    """What the log tells of a request; filled in while it is answered."""

    id: str
    method: str
    role: str = ""
    route: str = "other"
    model: str = ""
    rows: int = 0


class LogFacts(dict[str, Any]):
    r"""What a line tells, by name; as text, no value can end the line or pass for another fact.

    Examples
    --------
    >>> print(LogFacts(event="job", rows=3, error="full\ndisk rows=9"))
    event=job rows=3 error="full\ndisk rows=9"
    """

    def __str__(self) -> str:
        return " ".join(f"{name}={_quote(value)}" for name, value in self.items())


def choose_request_id(given: bytes | None) -> str:
    r"""Return the id that a client sent, or a new one where there is none that can be logged.

    Examples
    --------
    >>> (
    ...     choose_request_id(b"week-12/a"),
    ...     len(choose_request_id(b"x\ny")),
    ...     len(choose_request_id(None)),
    ... )
    ('week-12/a', 32, 32)
    """
    if given is not None and REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return uuid.uuid4().hex


def log_request(facts: RequestFacts, status: int, seconds: float) -> None:
    """Log a request that was answered; questions of supervisors only if something is wrong."""
    level = logging.WARNING if status >= 500 else logging.INFO
    if facts.route in QUIET_ROUTES and status < 400:
        level = logging.DEBUG
    if REQUESTS.isEnabledFor(level):
        told = LogFacts(
            event="request", method=facts.method, route=facts.route, status=status,
            ms=round(1000 * seconds, 2), rows=facts.rows, id=facts.id,
        )  # fmt: skip
        told |= {name: one for name in ("model", "role") if (one := getattr(facts, name))}
        REQUESTS.log(level, told)


class TextLine(logging.Formatter):
    """``2026-03-02T10:00:00.125Z INFO event=request method=POST route=/predict status=200 ...``."""

    def format(self, record: logging.LogRecord) -> str:
        """Write the time, the level, and the facts of a line or its message."""
        words = record.getMessage()
        return f"{_utc(record.created)} {record.levelname} {words}{_traceback(self, record)}"


class JSONLine(logging.Formatter):
    """One JSON mapping in plain ASCII per line.

    Examples
    --------
    >>> record = logging.makeLogRecord({"msg": "hello", "levelname": "INFO", "created": 0.5})
    >>> JSONLine().format(record)
    '{"time": "1970-01-01T00:00:00.500Z", "level": "info", "message": "hello"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Write the facts of a line, or its message, as JSON."""
        told = {"time": _utc(record.created), "level": record.levelname.lower()}
        told |= record.msg if isinstance(record.msg, LogFacts) else {"message": record.getMessage()}
        if said := _traceback(self, record):
            told["traceback"] = said.strip()
        return json.dumps(told, default=str)


def configure_logging(form: str) -> None:
    """Send the lines of the service, and what its server warns of, to standard error."""
    formatter = {"text": TextLine, "json": JSONLine}[form]
    line = {"handlers": ["lines"], "level": "INFO", "propagate": False}
    logging.config.dictConfig({
        "version": 1, "disable_existing_loggers": False,
        "formatters": {"line": {"()": formatter}},
        "handlers": {"lines": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {"engram.serve": line, "uvicorn": {**line, "level": "WARNING"}},
    })  # fmt: skip


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def _quote(value: Any) -> str:
    text = str(value)
    return text if re.fullmatch(r"[\w./:{}+-]+", text, re.ASCII) else json.dumps(text)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return "\n" + formatter.formatException(record.exc_info) if record.exc_info else ""
