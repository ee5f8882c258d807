"""Riemannian Walk (Chaudhry et al. 2018): tables 1 to 4 and figures 2 to 6."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engram.errors import bad
from engram.reproduce import measures
from engram.reproduce.cells import Cell, cells_of
from engram.reproduce.papers import rwalk_figures as figures
from engram.reproduce.papers.base import Paper
from engram.reproduce.papers.rwalk_preset import EMBEDDED, HEAD, PAPER, SINGLE, Preset
from engram.reproduce.papers.rwalk_rows import Row, recipe, recipe_20, reference
from engram.reproduce.table import EPOCHS, OTHER_DATA, VARIANT, Entry, Measure

TITLES = {
    "1": "accuracy, forgetting, intransigence of all methods, MNIST and CIFAR-100",
    "2": "RWalk with a slim ResNet-18 on 20 tasks of CIFAR-100",
    "3": "three strengths of each penalty, with samples",
    "4": "layers of the CIFAR-100 network",
    "fig2": "accuracy of every task over time, MNIST",
    "fig3": "forgetting against intransigence, single-head",
    "fig4": "accuracy over the number of samples",
    "fig5": "accuracy by sampling strategy",
    "fig6": "accuracy of every task over time, CIFAR-100",
}
CIFAR_ALONE = ("2", "fig6")
POINTS = 3.0  # tolerance in percent, .03 for shares


def _notes(name: str, preset: Preset, embedded: bool) -> tuple[str, ...]:
    """CIFAR-100 has a stand-in on embedded data only."""
    if name not in CIFAR_ALONE or preset.cifar is not None:
        return ()
    if not embedded:
        expected = "CIFAR-100, or other colour images in its place, which it is about"
        raise bad(f"rwalk/{name}", expected, "none: cifar is null, or --on names other images")
    return (f"{preset.shown('MNIST')} in place of CIFAR-100",)


def row_of(cell: Cell) -> Row:
    """The row of a cell of table 1 or 3.

    Examples
    --------
    >>> row_of(cells_of("rwalk", "1")[-1])
    Row(dataset='CIFAR-100', setting='single-head', method='RWalk', strength=500.0, samples=True,
        per_class=0, policy='')
    """
    method = cell["method"].removesuffix("-S")
    # RWalk stands in the single-head block only among the rows with samples.
    samples = method != cell["method"] or (method == "RWalk" and cell["setting"] == SINGLE)
    return Row(
        dataset=cell["dataset"], setting=cell["setting"], method=method,
        strength=_number(cell["params"]), samples=samples or method.startswith("iCaRL"),
    )  # fmt: skip


def _number(params: str) -> float:
    name, _, value = params.partition("=")
    return float(value) if name == "lambda" else 0.0


def _trained(preset: Preset, row: Row, cell: Cell) -> Entry:
    """A cell that is measured on training runs."""
    made, head, metric = recipe(preset, row), HEAD[row.setting], cell["metric"]
    reasons = preset.reasons(row.dataset, EPOCHS, *(() if row.method == "Vanilla" else (VARIANT,)))
    tolerance = POINTS if cell.percent else POINTS / 100
    common: dict[str, Any] = {"reasons": reasons, "tolerance": tolerance}
    if metric == "A(%)":
        measure = measures.metric("average_accuracy", made, head=head, percent=True)
        return Entry(recipes=(made,), measure=measure, **common)
    joint = reference(preset, row.dataset, row.setting)
    of_row = _metric(metric.removesuffix("_delta"), joint, head)
    recipes = (made, joint) if metric.startswith("I") else (made,)
    if not metric.endswith("_delta"):
        return Entry(recipes=recipes, measure=of_row(made), **common)
    first = recipe(preset, replace(row, strength=_first_strength(row)))
    measure = measures.difference(of_row(made), of_row(first))
    return Entry(recipes=(first, *recipes), measure=measure, **common)


def _metric(name: str, joint: Any, head: str) -> Callable[[Any], Measure]:
    if name == "F":
        return lambda made: measures.metric("forgetting", made, head=head)
    return lambda made: measures.intransigence(made, joint, head=head)


def _first_strength(row: Row) -> float:
    """The first strength of a method in table 3, with which its other rows are compared."""
    same = (c for c in cells_of("rwalk", "3")
            if c["method"] == row.method and c["dataset"] == row.dataset)  # fmt: skip
    return _number(next(same)["params"])


def _table_2(preset: Preset, cell: Cell) -> Entry:
    if cell["method"] != "RWalk":
        return Entry(missing="quoted by the paper from the authors of GEM")
    made = recipe_20(preset)
    measure = measures.metric("average_accuracy", made, head="multi", percent=True)
    same = preset.cifar is not None and preset.shown("CIFAR-100") == "CIFAR-100"
    reasons = (EPOCHS, VARIANT) if same else (OTHER_DATA, EPOCHS, VARIANT)
    return Entry(recipes=(made,), measure=measure, reasons=reasons, tolerance=POINTS)


def layers() -> list[dict[str, float]]:
    """The printed layers of our network: kernel, stride, filters, dropout of each."""
    from torch import nn

    from engram.models import build as build_model
    from engram.models.layers import Dropout

    net = build_model("cnn", sample_shape=(3, 32, 32), classes=100, seed=0)
    found: list[dict[str, float]] = []
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            size, stride = module.kernel_size[0], module.stride[0]
            found.append({"kernel": size, "stride": stride, "filters": module.out_channels})
        elif isinstance(module, nn.MaxPool2d):
            step = module.stride if isinstance(module.stride, int) else module.stride[0]
            found.append({"stride": step})
        elif isinstance(module, Dropout):
            found[-1]["dropout"] = module.p
    return found


def _layer(cell: Cell) -> Entry:
    found, place = layers(), int(cell["stage"]) - 1
    kinds = ["Conv" if "kernel" in layer else "MaxPool" for layer in found]
    if place >= len(found) or kinds[place] != cell["method"]:
        return Entry(missing=f"our network has no {cell['method']} as layer {place + 1}")
    value = found[place].get(cell["metric"])
    if value is None:
        return Entry(missing=f"layer {place + 1} has no {cell['metric']}")
    return Entry(measure=measures.constant(float(value)), tolerance=0.0)


TABLES = Paper(
    name="rwalk", titles=TITLES, paper=PAPER, embedded=EMBEDDED,
    tables={
        "1": lambda preset: lambda cell: _trained(preset, row_of(cell), cell),
        "2": lambda preset: lambda cell: _table_2(preset, cell),
        "3": lambda preset: lambda cell: _trained(
            preset, replace(row_of(cell), samples=True), cell
        ),
        "4": lambda preset: _layer,
    },
    figures=lambda name, preset: (figures.build(name, preset),), notes=_notes,
    kept_cells=("2", "4"), without_data=("4",),
)  # fmt: skip
