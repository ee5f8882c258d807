"""Bodies of requests that are tables: CSV and Parquet, as records."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from engram.data.tables.table_rows import read_csv_texts, read_parquet_table
from engram.errors import EngramError, bad

CSV, PARQUET = "text/csv", "application/vnd.apache.parquet"
TABLE_BODIES: dict[str, Any] = {
    CSV: {"schema": {"type": "string"}},
    PARQUET: {"schema": {"type": "string", "format": "binary"}},
}


def read_records(body: bytes, media: str) -> list[dict[str, Any]]:
    r"""Read a table as records, whose values a model's schema understands.

    Examples
    --------
    >>> read_records(b"size,hue\n1.5,red\n", "text/csv")
    [{'size': '1.5', 'hue': 'red'}]
    """
    table = read_csv_texts(body) if media == CSV else read_parquet_table(body)
    names = [str(one) for one in table.columns]
    if twice := sorted({one for one in names if names.count(one) > 1}):
        raise bad("columns of x", "names that differ", twice)
    plain = table.set_axis(names, axis=1).astype(object)
    return list(plain.to_dict("records"))


def read_query(text: str) -> Any:
    """Read the value of an option in the address: a number, true, false, null, or text.

    Examples
    --------
    >>> read_query("0.05"), read_query("true"), read_query("Energy")
    (0.05, True, 'Energy')
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(found, (dict, list)) else found


class TableRequest(Request):  # type: ignore[misc]
    """A request with a table in its body, read as the JSON that says the same."""

    async def json(self) -> Any:
        media = self.scope["table"]
        body = await self.body()
        try:
            records = await run_in_threadpool(read_records, body, media)
        except EngramError as problem:
            raise HTTPException(422, str(problem)[:500]) from problem
        options = {name: read_query(value) for name, value in self.query_params.items()}
        return {**options, "x": records}


class TableRoute(APIRoute):  # type: ignore[misc]
    """A route whose body may be a table; the options are then in the address."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if media not in TABLE_BODIES:
                return await handle(request)
            others = [one for one in request.scope["headers"] if one[0] != b"content-type"]
            headers = [*others, (b"content-type", b"application/json")]
            scope = {**request.scope, "headers": headers, "table": media}
            return await handle(TableRequest(scope, request.receive))

        return read
