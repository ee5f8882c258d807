"""Results against a hyper-parameter that was varied in grids, sweeps and searches.

`response_table` finds the numbers that differ between recipes, `response_figure` plots one; a
search passes its own points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engram.records.summary import search_facts
from engram.report import figures
from engram.report.method_styles import Style, as_plot_text, assign_styles, shorten
from engram.report.report_data import ReportData
from engram.report.section_types import DrawnMethods, Panel, Section

MOST_PARAMETERS = 8
MOST_TICKS = 8  # values up to which each has a tick
LOG_AXIS_RATIO = 20.0  # ratio of largest to smallest value for a logarithmic axis
RECIPE_PARTS = (
    "method",
    "training",
    "model",
    "stream",
)  # sections of a recipe searched for numbers
COLUMNS = ["parameter", "line", "head", "x", "value", "std", "joined"]
ON_TEST = "Results are on test rows: picking a value here means selecting on the test set."
ON_VALID = "Results are on validation rows of the first tasks, so values may be picked here."
MEASURES = {"average_accuracy": "", "forgetting/max": "Forgetting"}


def flatten_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a recipe into one level, with dots in the keys.

    Examples
    --------
    >>> flatten_recipe(
    ...     {"method": {"name": "ER", "memory": {"total": 50}}, "model": "mlp", "seeds": [0]}
    ... )
    {'method.name': 'ER', 'method.memory.total': 50, 'model': 'mlp'}
    """
    return dict(pair for part in RECIPE_PARTS for pair in _flatten(part, recipe.get(part)))


def _flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(f"{path}.{key}", inner)
    elif value is not None:
        yield path, value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def find_varied_numbers(recipes: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Find numbers that differ between recipes of one method: parameter, recipe, x, line, joined.

    Recipes that differ in the parameter only form a line; `line` names the method and what
    else was set. If no two recipes do, as in a random search, a method's recipes form one cloud.

    Examples
    --------
    >>> made = {str(i): {"method": {"name": "EWC", "strength": s}} for i, s in enumerate((1, 10))}
    >>> find_varied_numbers(made)[["parameter", "x", "line"]].to_dict("records")
    [{'parameter': 'strength', 'x': 1.0, 'line': 'EWC'},
     {'parameter': 'strength', 'x': 10.0, 'line': 'EWC'}]
    """
    flat = {key: flatten_recipe(recipe) for key, recipe in recipes.items()}
    groups: dict[str, list[str]] = {}
    for key, values in flat.items():
        method = values.get("method.name", values.get("method", ""))
        groups.setdefault(str(method), []).append(key)
    rows = []
    for method, members in groups.items():
        paths = dict.fromkeys(path for key in members for path in flat[key])
        differ = [p for p in paths if len({repr(flat[key].get(p)) for key in members}) > 1]
        for path in differ:
            inside = [key for key in members if _is_number(flat[key].get(path))]
            if len({float(flat[key][path]) for key in inside}) > 1:
                rest = [other for other in differ if other != path]
                rows += _split_into_lines(method, path, rest, {key: flat[key] for key in inside})
    return pd.DataFrame(rows, columns=["parameter", "recipe", "x", "line", "joined"])


def _split_into_lines(
    method: str, path: str, rest: list[str], flat: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, str, float, str, bool]]:
    """Assign the recipes that vary a number to lines."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for key, values in flat.items():
        lines.setdefault(tuple(repr(values.get(p)) for p in rest), []).append(key)
    name = path.split(".", 1)[1] if "." in path else path
    found = []
    for members in lines.values():
        if len({float(flat[key][path]) for key in members}) > 1:
            told = [f"{p.split('.', 1)[-1]}={flat[members[0]].get(p)}" for p in rest]
            line = " ".join([method, *told])
            found += [(name, key, float(flat[key][path]), line, True) for key in members]
    if found:
        return found
    return [(name, key, float(values[path]), method, False) for key, values in flat.items()]


def response_table(digest: ReportData, measure: str = "average_accuracy") -> pd.DataFrame:
    """Tabulate the measure at each value: parameter, line, head, x, value, std, joined."""
    found = find_varied_numbers(digest.recipes)
    known = digest.methods
    if not len(found) or not len(known):
        return pd.DataFrame(columns=COLUMNS)
    known = known[["recipe", "head", measure, f"{measure}_std"]].dropna(subset=[measure])
    joined = found.merge(known, on="recipe")
    return joined.rename(columns={measure: "value", f"{measure}_std": "std"})[COLUMNS]


def response_figure(
    table: pd.DataFrame, *, parameter: str, y: str, looks: Mapping[str, Style] | None = None
) -> go.Figure:
    """Draw a line, or a cloud of points, for each `line` of a table like `response_table`'s.

    Parameters
    ----------
    table
        Columns line, head, x, value and perhaps std; rows whose `joined` is false are not
        connected.
    looks
        The style of each line; None assigns them.

    Examples
    --------
    >>> points = pd.DataFrame({"line": "EWC", "head": "", "x": [1, 100], "value": [0.5, 0.7]})
    >>> response_figure(points, parameter="strength", y="validation accuracy").layout.xaxis.type
    'log'
    """
    lines = list(dict.fromkeys(table["line"].astype(str)))
    looks = looks or assign_styles(lines)
    figure = figures.empty_figure(as_plot_text(parameter), y, height=320)
    values = table["x"].to_numpy(np.float64)
    log = bool(len(values) and values.min() > 0 and values.max() / values.min() >= LOG_AXIS_RATIO)
    for (line, head), rows in table.sort_values("x").groupby(["line", "head"], sort=False):
        look, joined = looks[str(line)], bool(rows.get("joined", pd.Series([True])).all())
        x = rows["x"].to_numpy(np.float64)
        if "std" in rows and table["std"].notna().any():
            place = lines.index(str(line)), len(lines)
            x = 10 ** figures.dodge(np.log10(x), *place, np.log10(values)) if log \
                else figures.dodge(x, *place, values)  # fmt: skip
        figure.add_trace(
            go.Scatter(
                x=x, y=rows["value"].to_numpy(), customdata=rows["x"].to_numpy(),
                name=as_plot_text(shorten(str(line), 40)), meta={"label": None, "head": head},
                mode="lines+markers" if joined else "markers",
                line={"color": look.color, "dash": look.dash, "width": 2},
                marker={"symbol": look.symbol, "size": 7, "color": look.color},
                error_y=figures.error_bars(rows["std"], look.color, len(lines))
                if "std" in rows else None,
                hovertemplate=figures.hover_text(str(line), f"{as_plot_text(parameter)} "
                                                 "%{customdata:.4~g}", f"{y} %{{y:.4~g}}"),
            )
        )  # fmt: skip
    if log:
        figure.update_xaxes(type="log", exponentformat="power", dtick=1)
    if len(ticks := np.unique(values)) <= MOST_TICKS:
        figure.update_xaxes(tickvals=ticks, ticktext=[f"{tick:.4g}" for tick in ticks])
    return figure


def response_section(digest: ReportData, cast: DrawnMethods) -> Section | None:
    """Plot a pair of figures for each varied number; None if there is none."""
    panels = []
    found = find_varied_numbers(digest.recipes)
    judged = {search_facts(digest.recipes[key]) for key in found["recipe"]}
    on_valid = bool(judged) and all(one is not None and one[0] == "valid" for one in judged)
    tables = {name: response_table(digest, name) for name in MEASURES}
    parameters = list(dict.fromkeys(tables["average_accuracy"]["parameter"]))[:MOST_PARAMETERS]
    every = pd.concat(tables.values())
    looks = assign_styles(list(dict.fromkeys(every[every["parameter"].isin(parameters)]["line"])))
    for number, parameter in enumerate(parameters):
        for kind, (measure, word) in enumerate(MEASURES.items()):
            rows = tables[measure][tables[measure]["parameter"] == parameter]
            if not len(rows):
                continue
            words = word or (digest.average[0].upper() + digest.average[1:])
            words += " on validation rows" * on_valid
            figure = response_figure(rows, parameter=parameter, y=words.lower(), looks=looks)
            name = f"response-{number + 1}{'-forgetting' if kind else ''}"
            panels.append(Panel(name, f"{words} against {parameter}", figure))
    if not panels:
        return None
    text = (
        "Recipes that differ in a single hyper-parameter are joined by a line. A flat line means "
        "that the hyper-parameter hardly matters; a line still rising at its end means that the "
        "range was too narrow. Isolated points differ in several hyper-parameters at once. "
        + (ON_VALID if on_valid else ON_TEST)
        + " Error bars: one standard deviation over runs."
    )
    title = "Effect of hyper-parameters"
    return Section("response", title, text, tuple(panels), legend=looks)
