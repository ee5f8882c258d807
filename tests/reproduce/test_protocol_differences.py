from __future__ import annotations

import pytest

import engram
from engram.errors import BadArgument
from engram.experiments import Recipe
from engram.experiments.sweep import sweep
from engram.reproduce import compare_recipes, read_recipes
from engram.reproduce.protocol_differences import KINDS, difference_kind

BASE = {
    "stream": {"data": "digits"},
    "method": {"name": "ER", "memory": {"total": 100}},
    "training": {"epochs": 2, "lr": 0.01},
    "seeds": 3,
}


def changed(**sections):
    return {**BASE, **sections}


def fields(ours, theirs):
    return [one.field for one in compare_recipes([ours], [theirs])]


def test_most_important_first():
    other = changed(
        model={"name": "mlp", "hidden": [5]},
        seeds=1,
        training={"epochs": 3, "lr": 0.1, "scope": "all"},
        stream={"data": "blobs"},
        method={"name": "ER", "memory": {"total": 50}, "reduce": "sum"},
    )
    assert fields(BASE, other) == [
        "stream.data", "training.scope", "training.epochs", "method.memory.total",
        "method.reduce", "training.lr", "model.hidden", "seeds",
    ]  # fmt: skip


def test_every_field_of_a_recipe_has_a_kind():
    plain = Recipe.of(BASE).plain()
    for section in plain:
        assert difference_kind(section) in KINDS
    assert difference_kind("training.precision") == "other"
    assert difference_kind("method.part0.memory.total") == "memory"


def test_defaults_are_no_differences():
    assert compare_recipes([BASE], [Recipe.of(BASE).plain()]) == []
    explicit = changed(training={**BASE["training"], "scope": "seen"}, label="another name")
    assert compare_recipes([BASE], [explicit]) == []


def test_every_recipe_meets_its_nearest():
    other = [changed(method="Finetune"), changed(method="ER", training={"epochs": 2, "lr": 0.01})]
    assert fields(BASE, other[1]) == ["method.memory.total"]
    found = compare_recipes([BASE], other)
    assert [one.field for one in found] == ["method.memory.total"]
    assert found[0].words == "method.memory.total: 100 here, 500 there"


def test_other_methods_are_compared_by_name():
    found = fields(changed(method="EWC"), changed(method="SI"))
    assert found == ["method.name"]


def test_a_row_that_is_called_alike_is_nearer_than_other_methods():
    other = [changed(method="Joint"), changed(method="EWCpp", label="EWC strength=7", seeds=9)]
    found = {one.field: one for one in compare_recipes([changed(method="EWC")], other)}
    assert list(found) == ["method.name", "seeds"]
    assert found["method.name"].values == ("EWC", "EWCpp")
    assert found["seeds"].against == ("EWC strength=7",)


def test_equal_differences_of_several_recipes_are_one():
    ours = [changed(method=m, label=m) for m in ("Finetune", "EWC")]
    theirs = [changed(method=m, training={"epochs": 9, "lr": 0.01}) for m in ("Finetune", "EWC")]
    (one,) = compare_recipes(ours, theirs)
    assert (one.field, one.ours, one.theirs, one.recipes) == (
        "training.epochs", 2, 9, ("Finetune", "EWC"),
    )  # fmt: skip
    assert one.why == KINDS["length"]


def test_run_directories_of_both_doors(tmp_path):
    recipe = changed(seeds=1, training={"epochs": 1}, stream={"data": "blobs"})
    sweep([recipe], out=tmp_path / "cli")
    stream = engram.class_incremental(engram.load("blobs"))
    engram.run(stream, method="ER", epochs=1, out=tmp_path / "python")
    found = compare_recipes(read_recipes(tmp_path / "cli"), read_recipes(tmp_path / "python"))
    assert "method.memory.total" in [one.field for one in found]
    assert compare_recipes(read_recipes(tmp_path / "cli"), read_recipes(tmp_path / "cli")) == []
    against = compare_recipes(read_recipes(tmp_path / "cli"), read_recipes("rwalk/1"))
    assert against[0].kind == "data"


@pytest.mark.parametrize(
    "name", ["", "nowhere", "rwalk/99", "nopaper/1", "a/b/c", "runs/<b>\"x'", "\x00/1", "rwalk"]
)
def test_hostile_names(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadArgument):
        read_recipes(name)


def test_empty_directories_are_refused(tmp_path):
    with pytest.raises(BadArgument, match="recipes"):
        read_recipes(tmp_path)
