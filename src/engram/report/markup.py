"""Pieces of the page that need care: swatches, cells that sort, and JSON inside a script."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import numpy as np
from markupsafe import Markup

from engram.report.digest import DEFINITIONS
from engram.report.section import DrawnMethods
from engram.report.style import Style
from engram.report.tables import Column, Table, cell_text, is_missing

ForgettingCell: TypeAlias = tuple[str, str, float | None, bool]


def script_json(value: Any) -> str:
    """JSON that no name can break out of: no <, > or & is left in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def forgetting_cells(table: Table) -> list[dict[str, ForgettingCell]]:
    """Per row of the summary and definition: mean, spread, number to sort by, if it is best."""
    rows: list[dict[str, ForgettingCell]] = [{} for _ in range(len(table.frame))]
    for definition in DEFINITIONS if len(table.frame) else ():
        goal = "max" if definition == "cglb" else "min"
        column = Column(f"forgetting/{definition}", "", "spread", best=goal)
        best = table.best_rows(column)
        for i, value in enumerate(table.frame[column.key]):
            sort = float(value) if np.isfinite(value) else None
            rows[i][definition] = (*_parts(cell_text(table, column, i)), sort, i in best)
    return rows


def table_rows(table: Table, cast: DrawnMethods) -> dict[str, Any]:
    """The table as the template wants it: rows of cells with text, sort key and marks."""
    best = {column.key: table.best_rows(column) for column in table.columns}
    place = {name: number for number, name in enumerate(cast.names)}
    names = table.frame["name"].astype(str).tolist() if "name" in table.frame else None
    heads = table.frame["head"].astype(str).tolist() if "head" in table.frame else None
    rows = []
    for i in range(len(table.frame)):
        cells = [_cell(table, column, i, i in best[column.key]) for column in table.columns]
        rows.append({
            "method": place.get(names[i], -1) if names else None,
            "head": heads[i] if heads else "",
            "swatch": swatch(cast.looks[names[i]]) if names and names[i] in place else "",
            "cells": cells,
        })  # fmt: skip
    return {"name": table.name, "title": table.title, "columns": table.columns, "rows": rows,
            "note": table.note}  # fmt: skip


def _cell(table: Table, column: Column, row: int, best: bool) -> dict[str, Any]:
    text, spread = cell_text(table, column, row), ""
    if column.kind == "spread":
        text, spread = _parts(text)
    return {"key": column.key, "kind": column.kind, "text": text, "spread": spread, "best": best,
            "sort": _sort_key(table, column, row)}  # fmt: skip


def _parts(text: str) -> tuple[str, str]:
    """Mean and spread of a cell, to be set in different weights."""
    mean, sign, spread = text.partition(" ± ")
    return mean, f"± {spread}" if sign else ""


def _sort_key(table: Table, column: Column, row: int) -> str | None:
    if column.kind == "text":
        return None
    key = {"rank": "rank", "count": "number"}.get(column.kind, column.key)
    value = table.values[key][row]
    return "NaN" if is_missing(value) else repr(float(value))


_SHAPES = {
    "circle": '<circle cx="15" cy="7" r="4"/>',
    "square": '<path d="M11 3h8v8h-8z"/>',
    "diamond": '<path d="M15 2l5 5-5 5-5-5z"/>',
    "triangle-up": '<path d="M15 2l5 9H10z"/>',
    "cross": '<path d="M13 2h4v3h3v4h-3v3h-4V9h-3V5h3z"/>',
    "x": '<path d="M11.5 2l3.5 3.5L18.5 2 20 3.5 16.5 7l3.5 3.5-1.5 1.5L15 8.5 11.5 12'
    ' 10 10.5 13.5 7 10 3.5z"/>',
    "triangle-down": '<path d="M10 3h10l-5 9z"/>',
    "pentagon": '<path d="M15 2l5 3.8-1.9 6h-6.2l-1.9-6z"/>',
    "star": '<path d="M15 1.5l1.6 3.8 4 .3-3.1 2.6 1 4L15 10l-3.5 2.2 1-4-3.1-2.6 4-.3z"/>',
}
_STROKES = {"solid": "", "dash": "6 4", "dot": "2 3", "dashdot": "7 3 2 3"}


def swatch(look: Style) -> Markup:
    """A small picture of a method's line and marker."""
    return Markup(
        '<svg class="swatch" viewBox="0 0 30 14" aria-hidden="true" fill="{color}">'
        '<path d="M0 7h30" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>'
        "{shape}</svg>"
    ).format(color=look.color, dash=_STROKES[look.dash], shape=Markup(_SHAPES[look.symbol]))
