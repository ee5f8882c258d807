"""The report as one self-contained HTML page, with the markup of its tables and swatches."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jinja2
import numpy as np
import plotly.offline
import yaml
from markupsafe import Markup

from engram import __version__
from engram.errors import bad, plural
from engram.io import make_folders, write_text
from engram.records.summary import describe_search
from engram.report import report_tables
from engram.report.figures import HEAT_SCALES
from engram.report.method_styles import Style
from engram.report.plot_tables import describe_streams
from engram.report.report_data import DEFINITIONS, ReportData, digest_streams
from engram.report.report_inputs import ReportInput
from engram.report.section_types import DrawnMethods, Section
from engram.report.sections import build_stream_sections, choose_methods, list_panels
from engram.report.table import Column, Table, format_cell, is_missing, render_table

MOST_RECIPES = 200

DEFINITION_TEXTS = {
    "max": "best accuracy since a task was learnt, minus the final one; mean over earlier tasks",
    "diagonal": "accuracy right after learning a task, minus the final one",
    "all": "as diagonal, but averaged over all stages instead of the last one only",
    "mean_T": "as diagonal, but averaged over all tasks, the last one counting as 0",
    "mammoth": "as reported by Mammoth: never negative, the last stage counts as past too",
    "libcontinual": "as reported by LibContinual: leaves out the newest of the earlier tasks",
    "cglb": "as reported by CGLB: diagonal with the opposite sign, so forgetting is negative",
    "pyclad": "as reported by pyCLAD: from the best of all earlier stages, even before learning, "
    "and over the newest task too (runs with evaluate_unseen)",
}


def build(inputs: ReportInput, out: str | os.PathLike[str], *, title: str | None = None) -> Path:
    """Write a report of `inputs` as one HTML file that opens without a network.

    Examples
    --------
    >>> import tempfile
    >>> import pandas as pd
    >>> from engram.report.report_inputs import COLUMNS
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = build(ReportInput(pd.DataFrame(columns=list(COLUMNS))), f"{folder}/report.html")
    ...     "No accuracies were recorded." in path.read_text(encoding="utf-8")
    True
    """
    if not isinstance(inputs, ReportInput):
        raise bad("inputs", "a ReportInput", type(inputs).__name__)
    path = Path(out)
    if path.is_dir():
        raise bad("out", "the path of a file", f"the directory {str(path)!r}")
    text = render_page(inputs, title=title)
    make_folders(path.parent)
    # By rename: a reader never sees half a page, and a failure leaves the old one.
    return write_text(path, text)


def render_page(inputs: ReportInput, *, title: str | None = None) -> str:
    """Render the report as HTML."""
    parts, facts = digest_streams(inputs)
    cast = choose_methods(*(part for _, part in parts.values()))
    ranked = report_tables.rank_streams(facts) if len(parts) > 1 else {}
    built = build_stream_sections(parts, cast, ranked)
    tables = report_tables.build_tables(inputs, parts, facts)
    shown = {table.name: report_tables.limit_rows(table) for table in tables}
    views = head_views(facts)
    own = choose_head(inputs.recipes, views)
    environment = make_environment()
    rows = {name: table_rows(table, cast) for name, table in shown.items()}
    sections = [one for one in built if one.panels or one.name in rows]
    scripts = plotly.offline.get_plotlyjs(), load_asset(environment, "report.js")
    text: str = environment.get_template("report.html.j2").render(
        title=title or "Engram report",
        version=__version__,
        about=describe_streams(facts),
        facts=_facts_line(facts),
        left_out=[(one.title, one.note) for one in built if one not in sections],
        searched=describe_search(inputs.recipes),
        problems=[str(problem) for problem in inputs.problems],
        methods=[_method_entry(name, cast) for name in cast.names],
        others=cast.total - len(cast.names),
        heads=views,
        own_head=own,
        contents=_contents(sections, rows, inputs),
        summary=rows["summary"],
        final=rows.get("final-accuracy"),
        compared=[rows[name] for name in ("intervals", "differences") if name in rows],
        figure=facts.figure,
        average=facts.average,
        doctor=rows["doctor"],
        ledger=rows.get("ledger"),
        reproductions=[v for k, v in rows.items() if k.startswith("reproduction-")],
        sections=[section_for_page(s, cast, rows.get(s.name)) for s in sections],
        definitions=DEFINITION_TEXTS,
        ramps=list_ramps(),
        recipes=_recipes(inputs, facts),
        more_recipes=max(0, len(inputs.recipes) - MOST_RECIPES),
        environment=_yaml(inputs.environment) if inputs.environment else "",
        page_data=Markup(script_json(_page_data(facts, cast, sections, shown, own))),
        policy=content_security_policy(*scripts),
        scripts=[Markup(one) for one in scripts],
        css=Markup(load_asset(environment, "report.css")),
    )
    return text


def list_ramps() -> dict[str, str]:
    """List the colours of heat maps by theme, for a style sheet."""
    return {
        theme: ", ".join(color for _, color in scale.colors) for theme, scale in HEAT_SCALES.items()
    }


def draw_all_sections(inputs: ReportInput) -> tuple[list[Section], list[str]]:
    """Draw the sections of a report, and list its head views."""
    parts, whole = digest_streams(inputs)
    cast = choose_methods(*(part for _, part in parts.values()))
    ranked = report_tables.rank_streams(whole) if len(parts) > 1 else {}
    return build_stream_sections(parts, cast, ranked), head_views(whole)


def content_security_policy(*scripts: str) -> str:
    """Return a policy that lets a browser run exactly these scripts, and fetch nothing.

    Examples
    --------
    >>> (
    ...     "'sha256-" in content_security_policy("let a = 1"),
    ...     "script-src 'unsafe-inline'" in content_security_policy("let a = 1"),
    ... )
    (True, False)
    """
    sums = (hashlib.sha256(one.encode()).digest() for one in scripts)
    own = " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in sums)
    rules = {
        "default-src": "'none'", "script-src": own, "style-src": "'unsafe-inline'",
        "img-src": "data: blob:", "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def choose_head(recipes: Mapping[str, Mapping[str, Any]], heads: Sequence[str]) -> str:
    """Choose the view shown first: the streams' own if they agree, else single.

    Examples
    --------
    >>> choose_head({"0": {"stream": {"head": "multi"}}}, ["single", "multi"])
    'multi'
    """
    streams = [recipe.get("stream") for recipe in recipes.values()]
    told = {str(s.get("head")) if isinstance(s, Mapping) else "" for s in streams}
    if len(told) == 1 and told <= set(heads):
        return told.pop()
    return "single" if "single" in heads else (heads[0] if heads else "")


def head_views(facts: ReportData) -> list[str]:
    """List the head views that occur, single first."""
    found = {str(h) for h in facts.frame["head"].unique()} - {""}
    return sorted(found, key=lambda head: (head != "single", head))


def make_environment() -> jinja2.Environment:
    """Make what fills the templates of pages."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("engram.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )


def load_asset(environment: jinja2.Environment, name: str) -> str:
    """Load a style sheet or a script as it is."""
    loader = environment.loader
    if loader is None:
        raise bad("environment", "a loader", None)
    return loader.get_source(environment, name)[0]


def _page_data(
    facts: ReportData,
    cast: DrawnMethods,
    sections: Sequence[Section],
    shown: Mapping[str, Table],
    own: str,
) -> dict[str, Any]:
    return {
        "methods": list(cast.names),
        "view": own,
        "figures": plain_figures(sections),
        "heat": {theme: scale._asdict() for theme, scale in HEAT_SCALES.items()},
        "forgetting": forgetting_cells(shown["summary"]),
        "tables": render_tables(shown),
    }


def render_tables(shown: Mapping[str, Table]) -> dict[str, dict[str, str]]:
    """Write every table in the forms that can be downloaded."""
    return {
        name: {form: render_table(table, form) for form in ("csv", "latex", "markdown")}
        for name, table in shown.items()
    }


def plain_figures(sections: Sequence[Section]) -> dict[str, Any]:
    """List the figures of sections by name, as plain values."""
    plots = {panel.name: json.loads(panel.figure.to_json()) for panel in list_panels(sections)}
    for plot in plots.values():
        plot["layout"].pop("template", None)
    return plots


def section_for_page(section: Section, cast: DrawnMethods, table: Any) -> dict[str, Any]:
    """Convert a section for the template; `table` goes below its figures."""
    place = {name: number for number, name in enumerate(cast.names)}
    panels = [
        {
            "name": panel.name, "title": panel.title, "height": panel.figure.layout.height,
            "method": None if panel.label is None else place[panel.label],
        }
        for panel in section.panels
    ]  # fmt: skip
    return {"name": section.name, "title": section.title, "help": section.help, "panels": panels,
            "note": section.note, "table": table, "legend": _legend_entries(section)}  # fmt: skip


def _legend_entries(section: Section) -> list[dict[str, Any]] | None:
    """List what colours stand for; None for methods, whose entries are switches."""
    if section.legend is None:
        return None
    return [{"name": name, "swatch": draw_swatch(look)} for name, look in section.legend.items()]


def _method_entry(name: str, cast: DrawnMethods) -> dict[str, Any]:
    return {"name": name, "short": cast.short[name], "swatch": draw_swatch(cast.looks[name])}


def _facts_line(facts: ReportData) -> str:
    runs = facts.runs.drop_duplicates(["name", "seed", "order"]) if len(facts.runs) else facts.runs
    if not len(runs):
        return "No runs."
    counts = [
        (len({facts.short_names[name] for name in facts.methods["name"]}), "method"),
        (len(runs), "run"),
        (runs["seed"].nunique(), "seed"),
        (runs["order"].nunique(), "order"),
        (max(1, runs["stream"].nunique()), "stream"),
    ]
    parts = [plural(count, word) for count, word in counts]
    tasks = sorted({int(t) for t in runs["tasks"]})
    parts.append(f"{tasks[0]}{f' to {tasks[-1]}' if len(tasks) > 1 else ''} tasks")
    return " · ".join(parts)


def _contents(
    sections: Sequence[Section], rows: Mapping[str, Any], inputs: ReportInput
) -> list[tuple[str, str]]:
    papers = [(name, t["title"]) for name, t in rows.items() if name.startswith("reproduction-")]
    last = [("ledger", "Data access")] if "ledger" in rows else []
    if inputs.recipes or inputs.environment:
        last.append(("recipes", "Recipes and environment"))
    return [
        ("summary", "Summary"), ("doctor", "Diagnostics"), *papers,
        *((f"{section.name}-section", section.title) for section in sections), *last,
    ]  # fmt: skip


def _recipes(inputs: ReportInput, facts: ReportData) -> list[dict[str, str]]:
    names = {}
    if len(facts.methods):
        names = dict(zip(facts.methods["recipe"], facts.methods["name"], strict=True))
    return [
        {"title": f"{names.get(key, 'Recipe')} ({key})", "text": _yaml(recipe)}
        for key, recipe in list(inputs.recipes.items())[:MOST_RECIPES]
    ]


def _yaml(value: Any) -> str:
    plain = json.loads(json.dumps(value, default=str))
    dumper = yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper  # ten times as quick
    return str(yaml.dump(plain, Dumper=dumper, allow_unicode=True, sort_keys=False, width=100))


# Markup: JSON inside a script, sortable cells, swatches.


ForgettingCell: TypeAlias = tuple[str, str, float | None, bool]


def script_json(value: Any) -> str:
    """Encode JSON for a script element, without <, > and &."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def forgetting_cells(table: Table) -> list[dict[str, ForgettingCell]]:
    """Return mean, spread, sort key and best mark per row of the summary and definition."""
    rows: list[dict[str, ForgettingCell]] = [{} for _ in range(len(table.frame))]
    for definition in DEFINITIONS if len(table.frame) else ():
        goal = "max" if definition == "cglb" else "min"
        column = Column(f"forgetting/{definition}", "", "spread", best=goal)
        best = table.best_rows(column)
        for i, value in enumerate(table.frame[column.key]):
            sort = float(value) if np.isfinite(value) else None
            rows[i][definition] = (*_parts(format_cell(table, column, i)), sort, i in best)
    return rows


def table_rows(table: Table, cast: DrawnMethods) -> dict[str, Any]:
    """Convert a table for the template: rows of cells with text, sort key and marks."""
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
            "swatch": draw_swatch(cast.looks[names[i]]) if names and names[i] in place else "",
            "cells": cells,
        })  # fmt: skip
    return {"name": table.name, "title": table.title, "columns": table.columns, "rows": rows,
            "note": table.note}  # fmt: skip


def _cell(table: Table, column: Column, row: int, best: bool) -> dict[str, Any]:
    text, spread = format_cell(table, column, row), ""
    if column.kind == "spread":
        text, spread = _parts(text)
    return {"key": column.key, "kind": column.kind, "text": text, "spread": spread, "best": best,
            "sort": _sort_key(table, column, row)}  # fmt: skip


def _parts(text: str) -> tuple[str, str]:
    """Split a cell into mean and spread, which are set in different weights."""
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


def draw_swatch(look: Style) -> Markup:
    """Draw a small sample of a method's line and marker."""
    return Markup(
        '<svg class="swatch" viewBox="0 0 30 14" aria-hidden="true" fill="{color}">'
        '<path d="M0 7h30" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>'
        "{shape}</svg>"
    ).format(color=look.color, dash=_STROKES[look.dash], shape=Markup(_SHAPES[look.symbol]))
