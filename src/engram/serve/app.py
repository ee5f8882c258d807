"""Routes of the service: requests, responses and errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt
from starlette.exceptions import HTTPException as StarletteHTTPException

from engram import __version__
from engram.deploy.model_store import StoreBusy
from engram.errors import BadArgument, EngramError
from engram.serve.access_tokens import AccessTokens, allows
from engram.serve.job_queue import QueueFull
from engram.serve.log_lines import RequestFacts
from engram.serve.request_examples import add_examples
from engram.serve.request_limits import NAMED, RequestGate, RequestLimits
from engram.serve.request_tables import TABLE_BODIES, TableRoute
from engram.serve.served_model import NotRecorded, NoVersions, ServedModel
from engram.serve.service import Service

PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; style-src 'unsafe-inline'; script-src "
    "'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
Inputs = Annotated[
    list[Any],
    Field(
        min_length=1,
        description="Inputs: a list of rows, each nested as `input_shape` says, or a record "
        "{column: value} for a model of tables.",
    ),
]
LONGEST_NAME = 200
Label = StrictBool | StrictInt | Annotated[str, Field(max_length=LONGEST_NAME)]
Task = Annotated[
    int | None,
    Field(ge=0, lt=1 << 31, description="The task of the rows, where each task has its own head."),
]


LONGEST_ID = 200
Ids = Annotated[
    list[Annotated[str, Field(max_length=LONGEST_ID)]],
    Field(min_length=1, description="A text for each row, by which its label is joined later."),
]


class SafeJSONResponse(JSONResponse):
    """JSON in plain ASCII, which can represent any label."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class StrictModel(BaseModel):
    """A request without unknown fields."""

    model_config = ConfigDict(extra="forbid")


class PredictRequest(StrictModel):
    """Inputs to predict labels for."""

    x: Inputs
    task: Task = None
    probabilities: Annotated[bool, Field(strict=True)] = False
    ids: Ids | None = None


class NoveltyRequest(StrictModel):
    """Inputs to compute novelty scores for."""

    x: Inputs
    task: Task = None
    detector: Annotated[str | None, Field(max_length=100)] = None
    rate: Annotated[float | None, Field(gt=0, le=1, description="Rate of false alarms (0.05).")] = (
        None
    )
    per_class: Annotated[bool, Field(strict=True)] = False


def read_labels(y: Any) -> list[Any] | None:
    """Read the labels of a request; pydantic would name the members of its union, not the row.

    Examples
    --------
    >>> read_labels([1.0, "cat", [True]])
    [1, 'cat', [True]]
    """
    if y is None:
        return None
    if not isinstance(y, list) or not y:
        got = "no rows" if y == [] else _show(y)
        raise ValueError(f"expected a list of labels, got {got}")
    found = []
    for row, one in enumerate(y):
        many = [_read_label(label) for label in (one if isinstance(one, list) else [one])]
        if not many or None in many:
            words = (
                f"expected a label for each row (a name of at most {LONGEST_NAME} characters, a "
                f"whole number, true or false), or a list of them, got {_show(one)} in row {row}"
            )
            raise ValueError(words)
        found.append(many if isinstance(one, list) else many[0])
    return found


def _read_label(label: Any) -> bool | int | str | None:
    """Return a label, None if it is none; a whole number may have a decimal point in JSON."""
    if isinstance(label, float) and label.is_integer():
        return int(label)
    if isinstance(label, str) and (len(label) > LONGEST_NAME or not _is_text(label)):
        return None
    return label if isinstance(label, (bool, int, str)) else None


def _is_text(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)  # halves of characters


def _show(value: Any) -> str:
    return ascii(value)[:60]


class LearnRequest(StrictModel):
    """Rows to learn as one task, with a label or a list of labels each.

    Records may have their labels themselves, in the column `label` or that of the first table.
    """

    x: Inputs
    y: Annotated[
        list[Label | Annotated[list[Label], Field(min_length=1)]] | None,
        BeforeValidator(read_labels),
    ] = None  # fmt: skip
    label: Annotated[str | None, Field(max_length=LONGEST_NAME)] = None


Table = Annotated[
    dict[str, Any] | None,
    Field(description="What the rows had that the model's first table did not."),
]


class LabelsRequest(StrictModel):
    """Labels of rows that were predicted, by their ids."""

    ids: Ids
    y: Annotated[list[Label], Field(min_length=1), BeforeValidator(read_labels)]


class LabelsResponse(BaseModel):
    """The number of labels recorded."""

    labels: int


class PredictResponse(BaseModel):
    """Predicted labels, all of one network, which has learnt `tasks` tasks.

    With the ids under which they are recorded, if they are.
    """

    labels: list[Any]
    tasks: int
    table: Table = None
    ids: list[str] | None = None
    classes: list[Any] | None = None
    probabilities: list[list[float]] | None = None


class NoveltyResponse(BaseModel):
    """Novelty scores; higher is more novel.

    With p-values and alarms if the model has calibration rows.
    """

    novelty: list[float]
    tasks: int
    table: Table = None
    rate: float | None = None
    p_value: list[float] | None = None
    alarm: list[bool] | None = None
    compared: list[int] | None = None


class JobResponse(BaseModel):
    """State of a task: queued, learning, learnt, refused by the gate of a store, or failed.

    `error` says why it failed or was refused.
    """

    job: int
    state: str
    rows: int
    error: str = ""
    seconds: float = 0.0
    table: Table = None
    version: int | None = None


class VersionRequest(StrictModel):
    """The number of a version."""

    version: Annotated[int, Field(ge=1, lt=1 << 31, strict=True)]


class VersionResponse(BaseModel):
    """What one learning has led to: see `engram.ModelStore`."""

    number: int
    state: str
    parent: int
    how: str
    time: str
    rows: int
    classes: list[str]
    accepted: bool
    reason: str
    note: str
    fingerprint: str
    metrics: dict[str, Any] | None
    checks: list[dict[str, Any]]
    notes: dict[str, Any] | None


class VersionsResponse(BaseModel):
    """The newest versions, the oldest first, and which one is served."""

    current: int
    versions: list[VersionResponse]


class StateResponse(BaseModel):
    """State of the service in a word, without anything about its models."""

    status: str


class ModelState(BaseModel):
    """A model in numbers: tasks and classes learnt, tasks that wait."""

    tasks: int
    classes: int
    queued: int
    learning: bool
    version: int | None


class ModelsResponse(BaseModel):
    """Models by name; the first one answers where no name is given."""

    first: str
    models: dict[str, ModelState]


class HealthResponse(BaseModel):
    """What is served, and what waits to be learnt."""

    status: str
    model: str
    tasks: int
    classes: list[Any]
    input_shape: list[int]
    input_type: str
    queued: int
    learning: bool
    version: int | None
    method: str
    heads: str
    label_sets: bool
    columns: Annotated[
        list[dict[str, Any]] | None, Field(description="Of a model of tables: what it reads.")
    ] = None


class ErrorResponse(BaseModel):
    """Description of an error."""

    error: str


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorResponse} for code in (400, 401, 403, 404, 408, 413, 422, 503)
}


def create_app(
    service: Service,
    *,
    limits: RequestLimits | None = None,
    tokens: AccessTokens | None = None,
    hosts: tuple[str, ...] = (),
) -> RequestGate:
    """Create the ASGI application of a service, behind its request gate."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.stop()

    app = FastAPI(
        title="Engram",
        version=__version__,
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        description="Models that predict, detect novel inputs, and continue to learn.",
        default_response_class=SafeJSONResponse,
        dependencies=[Depends(HTTPBearer(auto_error=False))],
    )
    app.state.service = service
    app.router.route_class = TableRoute
    _add_error_handlers(app)
    _add_service_routes(app, service)
    _add_model_routes(app, "", Depends(find_first))
    _add_model_routes(app, NAMED, Depends(find_named))
    _add_pages(app, service)
    paths = [getattr(route, "path", "") for route in app.routes]
    return RequestGate(
        app, limits=limits or RequestLimits(), metrics=service.metrics, tokens=tokens, hosts=hosts,
        paths=sorted(filter(None, paths)), models=tuple(service.models),
    )  # fmt: skip


async def find_first(request: Request) -> ServedModel:
    """Find the model of a request without a name."""
    found: ServedModel = request.app.state.service.first
    return found


async def find_named(
    request: Request, name: Annotated[str, Path(description="Name of a model: see `/models`.")]
) -> ServedModel:
    """Find the model that the path of a request names."""
    try:
        found: ServedModel = request.app.state.service.find(name)
    except BadArgument as problem:
        raise HTTPException(404, str(problem)) from problem
    return found


def require_role(role: str) -> Any:
    """Make the dependency of routes that need a role."""

    async def check(request: Request) -> None:
        given = request.scope["facts"].role
        if not allows(given, role):
            raise HTTPException(403, f"this needs a token of the role {role}, not {given}")

    return Depends(check)


def _add_model_routes(app: FastAPI, prefix: str, found_model: Any) -> None:
    """Add the routes about one model, which the dependency `found_model` finds."""
    tables = {"requestBody": {"content": TABLE_BODIES}}

    @app.post(prefix + "/predict", responses=ERROR_RESPONSES, openapi_extra=tables)
    def predict(
        asked: PredictRequest, request: Request, model: ServedModel = found_model
    ) -> PredictResponse:
        """Predict labels of inputs."""
        found = model.predict(asked.x, asked.task, asked.probabilities, asked.ids)
        request.scope["facts"].rows = len(found["labels"])
        return PredictResponse(**found)

    @app.post(prefix + "/novelty", responses=ERROR_RESPONSES, openapi_extra=tables)
    def novelty(
        asked: NoveltyRequest, request: Request, model: ServedModel = found_model
    ) -> NoveltyResponse:
        """Compute how novel inputs are to the model."""
        found = model.novelty(asked.x, asked.detector, asked.task, asked.rate, asked.per_class)
        request.scope["facts"].rows = len(found["novelty"])
        return NoveltyResponse(**found)

    @app.post(
        prefix + "/learn", status_code=202,
        responses={**ERROR_RESPONSES, 429: {"model": ErrorResponse}},
        dependencies=[require_role("learn")], openapi_extra=tables,
    )  # fmt: skip
    def learn(
        asked: LearnRequest, request: Request, model: ServedModel = found_model
    ) -> JobResponse:
        """Queue a task; `/jobs/{number}` shows its state."""
        facts: RequestFacts = request.scope["facts"]
        job = request.app.state.service.learn(model, asked.x, asked.y, facts.id, asked.label)
        facts.rows = job.rows
        return JobResponse(job=job.number, state=job.state, rows=job.rows, table=job.table)

    @app.post(prefix + "/labels", responses=ERROR_RESPONSES, dependencies=[require_role("learn")])
    def labels(
        asked: LabelsRequest, request: Request, model: ServedModel = found_model
    ) -> LabelsResponse:
        """Record labels of predicted rows, which may come late, early, or again."""
        count = model.label(asked.ids, list(asked.y))
        request.scope["facts"].rows = count
        return LabelsResponse(labels=count)

    @app.get(prefix + "/jobs/{number}", responses=ERROR_RESPONSES)
    async def job(
        number: Annotated[int, Path(ge=1, lt=1 << 31)], model: ServedModel = found_model
    ) -> JobResponse:
        """Return the state of a task."""
        found = model.jobs.get(number)
        if found is None:
            raise HTTPException(404, "no such task is known")
        return JobResponse(
            job=number, state=found.state, rows=found.rows, error=found.error,
            seconds=found.seconds, table=found.table, version=found.version,
        )  # fmt: skip

    @app.get(prefix + "/health", responses=ERROR_RESPONSES)
    async def health(model: ServedModel = found_model) -> HealthResponse:
        """Return what is served, and what waits to be learnt."""
        return HealthResponse(**model.health)

    @app.get(prefix + "/versions", responses=ERROR_RESPONSES)
    def versions(
        last: Annotated[int, Query(ge=1, le=1000)] = 100, model: ServedModel = found_model
    ) -> VersionsResponse:
        """List the newest versions of a store."""
        store = model.require_store()
        every = [VersionResponse(**one) for one in store.list_versions(last)]
        return VersionsResponse(current=store.store.current.number, versions=every)

    @app.post(prefix + "/rollback", responses=ERROR_RESPONSES, dependencies=[require_role("admin")])
    def rollback(
        asked: VersionRequest, request: Request, model: ServedModel = found_model
    ) -> VersionResponse:
        """Serve an earlier accepted version of a store again."""
        service, store = request.app.state.service, model.require_store()
        return VersionResponse(**service.change(store, "rollback", asked.version))

    @app.post(prefix + "/accept", responses=ERROR_RESPONSES, dependencies=[require_role("admin")])
    def accept(
        asked: VersionRequest, request: Request, model: ServedModel = found_model
    ) -> VersionResponse:
        """Serve a version after all that the gate of a store has refused."""
        service, store = request.app.state.service, model.require_store()
        return VersionResponse(**service.change(store, "accept", asked.version))


def _add_service_routes(app: FastAPI, service: Service) -> None:
    @app.get("/live")
    async def live() -> StateResponse:
        """Answer as long as the process does."""
        return StateResponse(status="live")

    @app.get("/ready", responses={503: {"model": ErrorResponse}})
    async def ready() -> StateResponse:
        """Return whether the service predicts and learns."""
        if not service.ready:
            raise HTTPException(503, "the service is stopping, or no longer learns")
        return StateResponse(status="ready")

    @app.get("/models", responses=ERROR_RESPONSES)
    async def models() -> ModelsResponse:
        """List the models by name."""
        every = {name: ModelState(**model.state) for name, model in service.models.items()}
        return ModelsResponse(first=service.first.name, models=every)

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> PlainTextResponse:
        """Return counts and times in the format of Prometheus."""
        models = service.models.items()
        text = service.metrics.text(
            {name: one.state for name, one in models}, {name: one.numbers for name, one in models}
        )
        return PlainTextResponse(text, media_type=CONTENT_TYPE_LATEST)


def _add_pages(app: FastAPI, service: Service) -> None:
    @app.get("/openapi.json", include_in_schema=False)
    async def openapi(request: Request) -> SafeJSONResponse:
        plain = app.openapi()
        known = service.models.values() if request.scope["facts"].role else ()
        return SafeJSONResponse(add_examples(plain, known))

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page() -> HTMLResponse:
        return _read_html("page.html")

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    def docs() -> HTMLResponse:
        return _read_html("docs.html")


def _read_html(name: str) -> HTMLResponse:
    text = files("engram.serve").joinpath(name).read_text(encoding="utf-8")
    return HTMLResponse(text, headers=PAGE_HEADERS)


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, problem: RequestValidationError) -> SafeJSONResponse:
        first = problem.errors()[0]  # without its input, which may be anything
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        words = first["msg"].removeprefix("Value error, ")  # of `read_labels`
        return SafeJSONResponse({"error": f"{where or 'body'}: {words}"[:500]}, status_code=422)

    @app.exception_handler(QueueFull)
    async def full(request: Request, problem: QueueFull) -> SafeJSONResponse:
        return SafeJSONResponse(
            {"error": str(problem)}, status_code=429, headers={"retry-after": "5"}
        )

    @app.exception_handler(StoreBusy)
    async def busy(request: Request, problem: StoreBusy) -> SafeJSONResponse:
        return SafeJSONResponse(
            {"error": str(problem)}, status_code=503, headers={"retry-after": "5"}
        )

    @app.exception_handler(NoVersions)
    @app.exception_handler(NotRecorded)
    async def not_kept(request: Request, problem: EngramError) -> SafeJSONResponse:
        return SafeJSONResponse({"error": str(problem)}, status_code=404)

    @app.exception_handler(EngramError)
    async def refused(request: Request, problem: EngramError) -> SafeJSONResponse:
        return SafeJSONResponse({"error": str(problem)[:500]}, status_code=422)

    @app.exception_handler(StarletteHTTPException)
    async def plain(request: Request, problem: StarletteHTTPException) -> SafeJSONResponse:
        return SafeJSONResponse({"error": str(problem.detail)}, status_code=problem.status_code,
                    headers=problem.headers)  # fmt: skip
