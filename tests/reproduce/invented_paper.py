"""A small invented paper on blobs, so that nothing takes long and every number is known."""

from __future__ import annotations

from engram.experiments import Recipe
from engram.reproduce import Cell, CellEntry, PaperTable, measures

STEPS = 3  # tasks of the stream: six classes, two at a time


def small_recipe(method="Finetune", *, seeds=2, data="blobs", **training):
    return Recipe.of(
        {
            "stream": {"data": data, "data_options": {"classes": 6, "per_class": 20}},
            "model": {"name": "mlp", "hidden": [8]},
            "method": method,
            "training": {"epochs": 1, "batch_size": 16, **training},
            "seeds": seeds,
            "keep": "labels",
        }
    )


def cell(method, metric, value=0.5, **more):
    names = {"std": float("nan"), "doubt": ""} | {k: more.pop(k) for k in list(more)
                                                 if k in ("std", "doubt")}  # fmt: skip
    key = {"dataset": "Blobs", "setting": "single-head", "method": method, "metric": metric, **more}
    return Cell("fake", "1", key, value, **names)


def entry_of(found):
    if found["method"] == "Quoted":
        return CellEntry(missing="quoted from elsewhere")
    data = "mnist" if found["method"] == "Far" else "blobs"
    recipe = small_recipe("ER" if found["method"] == "ER" else "Finetune", data=data)
    if data == "mnist":
        recipe = recipe.change(stream={"kind": "class_incremental", "data": "mnist"})
    name = {"A(%)": "average_accuracy", "F": "forgetting"}[found["metric"]]
    measure = measures.metric(name, recipe, head="single", percent=found.percent)
    return CellEntry(recipes=(recipe,), measure=measure, tolerance=3.0 if found.percent else 0.03)


def invented_table():
    cells = (
        cell("Finetune", "A(%)", 33.0), cell("Finetune", "F"), cell("ER", "A(%)", 99.0),
        cell("ER", "F", float("nan")), cell("Quoted", "F"),
    )  # fmt: skip
    return PaperTable(name="fake/1", title="invented", cells=cells, entry=entry_of)
