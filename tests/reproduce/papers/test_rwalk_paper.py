from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from engram.errors import BadArgument
from engram.reproduce import (
    choose_cells,
    find_table,
    plan,
    read_cells,
    reproduce,
    table_names,
    table_registry,
)
from engram.reproduce.papers import rwalk_paper
from engram.reproduce.papers.paper_base import assign_settings
from engram.reproduce.papers.rwalk_paper import EMBEDDED, PAPER
from engram.reproduce.planning import choose_rows

QUICK = ("mnist.epochs=1", "seeds=1", "mnist.model={name: mlp, hidden: [8]}", "mnist.samples=[5]")


def method_of(number, expression, metric="F"):
    table = find_table(f"rwalk/{number}")
    (cell,) = choose_cells(table.cells, f"{expression},metric={metric}")
    return table.entry(cell).recipes[0]


@pytest.mark.parametrize(
    ("expression", "kind", "strength", "kept"),
    [
        ("dataset=MNIST,setting=multi-head,method=Vanilla", "Finetune", None, None),
        ("dataset=CIFAR-100,setting=multi-head,method=EWC", "EWCpp", 3e6, None),
        ("dataset=MNIST,setting=single-head,method=PI", "SI", 0.1, None),
        ("dataset=MNIST,method=Vanilla-S", "ER", None, 10),
        ("dataset=CIFAR-100,method=EWC-S", "EWCpp", 1.5e6, 25),
        ("dataset=CIFAR-100,setting=single-head,method=RWalk", "RWalk", 500, 25),
        ("dataset=MNIST,setting=multi-head,method=RWalk", "RWalk", 1000, None),
        ("dataset=MNIST,method=iCaRL-hb1", "ICaRL", None, 10),
    ],
)
def test_rows_of_table_1(expression, kind, strength, kept):
    recipe = method_of(1, expression)
    method = recipe.method
    memory = method.memory
    assert type(method).__name__ == kind
    assert getattr(method, "strength", None) == strength
    assert (memory.per_class if memory else None) == kept
    if memory:
        assert (memory.policy, memory.normalize) == ("herding", False)
    samples = kept and "multi" not in expression
    assert recipe.stream["kind"] == ("class_incremental" if samples else "task_incremental")
    assert recipe.training.scope == (PAPER.scope_samples if samples else "own")


def test_protocol_of_table_1():
    mnist = method_of(1, "dataset=MNIST,setting=multi-head,method=RWalk")
    cifar = method_of(1, "dataset=CIFAR-100,setting=multi-head,method=RWalk")
    assert (mnist.method.every, cifar.method.every) == (10, 50)
    assert (mnist.model, cifar.model) == ("mlp", "cnn")
    assert (mnist.stream["classes_per_task"], cifar.stream["classes_per_task"]) == (2, 10)
    for recipe in (mnist, cifar):
        training = recipe.training
        assert (training.optimizer, training.lr, training.batch_size) == ("adam", 1e-3, 64)
        assert len(recipe.seeds) == 5
    pi = method_of(1, "dataset=MNIST,setting=multi-head,method=PI").method
    assert (pi.xi, pi.clamp) == (1e-3, "task_term")


def test_all_cells_can_be_made_and_share_recipes():
    table = find_table("rwalk/1")
    assert all(not table.entry(cell).missing for cell in table.cells)
    assert len(table.recipes) == 20 + 4  # Vanilla, EWC and PI are one training for both heads
    apart = find_table("rwalk/1", assignments=["scope_single=seen"])
    assert len(apart.recipes) == 26 + 4
    assert len(find_table("rwalk/3").recipes) == 18 + 2


def test_references_go_straight_to_the_last_task():
    table = find_table("rwalk/1")
    (cell,) = choose_cells(table.cells, "dataset=CIFAR-100,method=PI-S,metric=I")
    joint = table.entry(cell).recipes[1]
    assert joint.stream["classes_per_task"] == [90, 10]
    assert joint.method.init == "scratch"
    assert joint.training.length(0) == (1, 0)
    assert joint.training.length(1) == (50, 0)
    every = find_table("rwalk/1", assignments=["reference=each"]).entry(cell).recipes[1]
    assert every.stream["classes_per_task"] == 10
    (cell,) = choose_cells(table.cells, "dataset=CIFAR-100,setting=multi-head,method=PI,metric=I")
    joint = table.entry(cell).recipes[1]
    assert (joint.stream["classes_per_task"], joint.method.skip) == (10, 9)
    every = find_table("rwalk/1", assignments=["reference=each"]).entry(cell).recipes[1]
    assert every.method.skip == 0


def test_deltas_are_against_the_first_strength():
    table = find_table("rwalk/3")
    (cell,) = choose_cells(
        table.cells, "dataset=MNIST,method=EWC,params=lambda=75000,metric=F_delta"
    )
    first, own = table.entry(cell).recipes
    assert (first.method.strength, own.method.strength) == (75, 75000)
    assert own.method.memory.per_class == 10


def test_rows_of_table_2():
    """RWalk as elsewhere; quoted rows as in GEM's public code, on the same tasks and network."""
    table = find_table("rwalk/2")
    entries = {cell["method"]: table.entry(cell) for cell in table.cells}
    recipes = {name: entry.recipes[0] for name, entry in entries.items()}
    assert list(recipes) == ["iCaRL", "GEM", "RWalk"]
    for recipe in recipes.values():
        assert recipe.stream["classes_per_task"] == 5
        assert recipe.stream["kind"] == "task_incremental"
        assert recipe.model == {"name": "resnet18_slim", "nf": 20}
        assert recipe.training.scope == "own"
    assert recipes["RWalk"].method.memory.per_class * 100 == 5000
    assert recipes["RWalk"].training.optimizer == "adam"
    assert recipes["GEM"].method.memory.per_task * 20 == 5120
    assert recipes["GEM"].method.margin == 0.5
    assert recipes["iCaRL"].method.memory.total == 5120
    for name in ("GEM", "iCaRL"):
        training = recipes[name].training
        assert (training.optimizer, training.lr) == ("sgd", 0.1)
        assert (training.epochs, training.batch_size) == (1, 10)
    fewer = find_table("rwalk/2", assignments=["gem.size=32", "training_20.lr=0.3"])
    (cell,) = choose_cells(fewer.cells, "method=GEM")
    changed = fewer.entry(cell).recipes[0]
    assert (changed.method.size, changed.training.lr) == (32, 0.3)


def test_embedded_table_2_is_small_and_marked(tmp_path):
    table = find_table("rwalk/2", embedded=True, assignments=("seeds=1", "epochs_20=1"))
    made = reproduce(table, out=tmp_path)
    assert made.counts() == {"not comparable": 3}
    assert [type(recipe.method).__name__ for recipe in table.recipes] == ["ICaRL", "GEM", "RWalk"]
    for recipe, line in zip(table.recipes, made.lines, strict=True):
        assert line.reason.startswith("other data")
        assert 20 < line.ours <= 100  # task ids known: better than chance among all classes
        assert (recipe.stream["data"], recipe.training.epochs) == ("digits", 1)
        assert recipe.method.memory is not None


def test_other_data_is_called_by_its_name():
    for name, shown in (("fig2", "digits"), ("fig6", "digits, in place of CIFAR-100")):
        (figure,) = find_table(f"rwalk/{name}", embedded=True).figures
        assert figure.title.endswith(f", {shown}")
        assert all("digits" in r.label and "MNIST" not in r.label for r in figure.recipes)
    (figure,) = find_table("rwalk/fig2").figures
    assert figure.title.endswith(", MNIST")
    cell = read_cells("rwalk", "1")[0]
    fashion = find_table("rwalk/1", assignments=["mnist.data=fashion_mnist"]).entry(cell)
    assert fashion.reasons[0] == "other data"
    assert "other data" not in find_table("rwalk/1").entry(cell).reasons


def test_table_4_is_our_network(monkeypatch, tmp_path):
    made = reproduce("rwalk/4", out=tmp_path)
    assert made.counts() == {"agrees": 16}
    wrong = rwalk_paper.list_layers()
    wrong[0]["filters"] = 33
    monkeypatch.setattr(rwalk_paper, "list_layers", lambda: wrong[:-1])
    assert reproduce("rwalk/4", out=tmp_path).counts() == {
        "differs": 1, "agrees": 13, "not run": 2,
    }  # fmt: skip


def test_preset_is_changed_in_one_place():
    preset = assign_settings(PAPER, ["mnist.epochs=3", "rwalk.eps=0.01", "seeds=2"])
    assert (preset.mnist.epochs, preset.cifar) == (3, PAPER.cifar)
    table = find_table("rwalk/1", assignments=["rwalk.eps=0.01", "seeds=2"])
    (cell,) = choose_cells(table.cells, "dataset=MNIST,setting=multi-head,method=RWalk,metric=F")
    recipe = table.entry(cell).recipes[0]
    assert (recipe.method.eps, recipe.seeds) == (0.01, (0, 1))


def test_exemplars_may_join_every_batch():
    preset = assign_settings(PAPER, ["mix=paired"])
    rows = {
        c["method"]: rwalk_paper.find_row(c)
        for c in read_cells("rwalk", "1")
        if c["method"][-2:] == "-S"
    }
    vanilla = rwalk_paper.method_spec(preset, preset.mnist, rows["Vanilla-S"])
    assert (vanilla["name"], vanilla["mix"]) == ("ER", "paired")
    joined = rwalk_paper.method_spec(preset, preset.mnist, rows["EWC-S"])
    assert [part["name"] for part in joined["parts"]] == ["ER", "EWCpp"]
    assert [("memory" in part) for part in joined["parts"]] == [True, False]


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("mnist.epoch=3", "did you mean 'epochs'"),
        ("mnist.epochs=many", "preset.mnist.epochs"),
        ("scope", "key=value"),
        ("mix=both", "mix"),
        ("rwalk.a.b=1", "a field of the method"),
    ],
)
def test_bad_choices_are_named(assignment, complaint):
    with pytest.raises(BadArgument, match=complaint):
        find_table("rwalk/1", assignments=[assignment])


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("rwalk", "rwalk/TABLE with one of 1, 2"),
        ("rwalk/7", "unknown name '7'"),
        ("rwolk/1", "did you mean 'rwalk'"),
        ("cnd/77", "unknown name '77'"),
        ("../etc/passwd", "paper"),
        ("", "paper"),
    ],
)
def test_bad_names(name, complaint):
    with pytest.raises(BadArgument, match=complaint):
        find_table(name)


def test_a_paper_whose_numbers_are_kept_may_have_no_preset(monkeypatch):
    written = tuple(name for name in table_registry.PAPER_NAMES if name != "cnd")
    monkeypatch.setattr(table_registry, "PAPER_NAMES", written)
    with pytest.raises(BadArgument, match="no preset"):
        find_table("cnd/1")


def test_every_name_builds():
    for name in table_names():
        assert find_table(name).name == name


def test_embedded_table_is_marked(tmp_path):
    table = find_table("rwalk/1", embedded=True, assignments=QUICK)
    assert {cell["dataset"] for cell in table.cells} == {"MNIST"}
    made = reproduce(table, out=tmp_path, cells="setting=single-head,method=Vanilla|EWC-S")
    assert made.counts() == {"not comparable": 6}
    assert all(line.reason.startswith("other data") for line in made.lines)
    assert all(len(line.values) == 1 for line in made.lines)


def numbered(rows, shape, classes):
    """Pictures that hold their own numbers, and labels."""
    x = np.zeros((rows, np.prod(shape)), np.uint8)
    x[:, :4] = np.arange(rows, dtype=np.uint32)[:, None].view(np.uint8)
    return x.reshape(rows, *shape), (np.arange(rows) % classes).astype(np.uint8)


def write_set(path, train, test, shape, classes):
    x, y = numbered(train + test, shape, classes)
    np.savez(path, train_x=x[:train], train_y=y[:train], test_x=x[train:], test_y=y[train:])


@pytest.mark.parametrize("cifar_rows", [(500, 200), (50_000, 10_000)], ids=["part", "whole"])
def test_subset_of_the_data_is_noted(tmp_path, cifar_rows):
    write_set(tmp_path / "mnist.npz", 60_000, 10_000, (28, 28), 10)
    write_set(tmp_path / "cifar100.npz", *cifar_rows, (32, 32, 3), 100)
    made = plan(find_table("rwalk/1"), tmp_path, cells="metric=F,method=Vanilla", measure=False)
    noted = {cell["dataset"]: "data subset" in entry.reasons
             for cell, entry in zip(made.cells, made.entries, strict=True)}  # fmt: skip
    assert noted == {"MNIST": False, "CIFAR-100": cifar_rows[0] < 50_000}


def test_mnist_leaves_5000_rows_out(engram_data):
    made = plan(find_table("rwalk/1"), engram_data, cells="dataset=MNIST,method=Vanilla-S",
                measure=False)  # fmt: skip
    stream = made.runs[0].run.stream
    assert sum(len(task.train) for task in stream) == pytest.approx(55_000, abs=10)


@pytest.mark.parametrize("name", ["fig2", "fig3", "fig4", "fig5", "fig6"])
def test_figures(name, tmp_path):
    table = find_table(f"rwalk/{name}", embedded=True, assignments=QUICK)
    (figure,) = table.figures
    # Two recipes are enough to see how a figure copes with what is not there yet.
    reference = figure.recipes[1] if name == "fig3" else figure.recipes[0]
    some = (figure.recipes[0], reference, figure.recipes[-2 if name == "fig3" else -1])
    made = reproduce(replace(table, figures=(replace(figure, recipes=some),)), out=tmp_path)
    assert [p.suffix for p in made.figures] == [".csv", ".html"]
    methods = set(pd.read_csv(made.figures[0])["method"])
    assert methods == {"Vanilla", "RWalk"}
    page = made.figures[1].read_text("utf-8")
    assert figure.title in page
    assert all(f'"name":"{method}"' in page for method in methods)


def test_rows_of_one_data_set_need_its_reference_alone():
    """The joint reference of CIFAR-100 would train for hours beside a row of MNIST."""
    (figure,) = choose_rows(find_table("rwalk/fig3"), "dataset=MNIST,method=Vanilla")
    found = [(one.stream["data"], type(one.method).__name__) for one in figure.recipes]
    assert found == [("mnist", "Finetune"), ("mnist", "Joint")]
    (both,) = choose_rows(find_table("rwalk/fig3"), "method=Vanilla")
    assert [one.stream["data"] for one in both.recipes] == ["mnist"] * 2 + ["cifar100"] * 2


def test_strengths_of_figures_are_those_of_the_table():
    found = find_table("rwalk/fig4").figures[0].recipes
    rwalks = {r.method.strength for r in found if type(r.method).__name__ == "RWalk"}
    assert rwalks == {1000, 500}
    assert {r.method.memory.policy for r in found} == {"random"}


def test_embedded_preset_is_small():
    assert EMBEDDED.cifar is None
    assert EMBEDDED.mnist.data == "digits"
    assert len(read_cells("rwalk", "1")) == 78


# -- how samples are trained -----------------------------------------------------------------------
def of_row(method, *assignments):
    table = find_table("rwalk/1", assignments=assignments)
    cells = choose_cells(table.cells, f"dataset=MNIST,setting=single-head,method={method},metric=F")
    return table.entry(cells[0]).recipes[0]


def test_settings_of_samples_touch_rows_with_samples_only():
    given = ("sample_epochs=2", "mix=paired", "sample_rows=10", "sample_reduce=sum")
    plain, kept, joined = (of_row(one, *given) for one in ("Vanilla", "Vanilla-S", "PI-S"))
    assert plain.key == of_row("Vanilla").key
    assert (kept.training.epochs, plain.training.epochs) == (2, 10)
    assert (kept.method.mix, kept.method.size, kept.method.reduce) == ("paired", 10, "sum")
    assert joined.method.parts[0] == kept.method
    assert not of_row("Vanilla", "optim_reset=false").training.optim_reset
    assert of_row("Vanilla", "mnist.precision=tf32").training.precision == "tf32"


@pytest.mark.parametrize("text", ["sample_rows=10", "sample_reduce=sum"])
def test_settings_of_paired_batches_need_them(text):
    with pytest.raises(BadArgument, match="unless mix is 'paired'"):
        of_row("Vanilla-S", text)


# -- findings --------------------------------------------------------------------------------------
def test_findings_share_runs_with_the_tables():
    names = ("rwalk/1", "rwalk/3", "rwalk/fig4", "rwalk/findings")
    tables = [find_table(name, assignments=["cifar=null"]) for name in names]
    keys = [{recipe.key for recipe in table.recipes} for table in tables]
    assert keys[0] | keys[1] <= keys[3]
    assert len(keys[3]) == 40
    assert {table.folder for table in tables} == {"rwalk"}
    only = choose_rows(tables[3], "method=EWC of 2017")
    assert len({recipe.key for figure in only for recipe in figure.recipes}) == 1


def test_findings_are_tried_on_runs(tmp_path):
    """With some rows: their comparisons alone are tried."""
    table = find_table("rwalk/findings", embedded=True, assignments=QUICK)
    chosen = "setting=multi-head,method=Vanilla|EWC"
    made = reproduce(table, cells=chosen, out=tmp_path, device="cpu")
    found = pd.read_csv(made.figures[0], keep_default_na=False)
    tried = found[found["holds"] != "not run"]
    assert tried["finding"].unique().tolist()[:2] == [
        "multi-head, penalties are above plain training",
        "multi-head, penalties forget less than plain training",
    ]
    assert set(tried[tried["row"].str.contains("multi-head")]["first"]) == {"EWC"}


def test_print_is_a_preset():
    table = find_table("rwalk/1", preset="printed")
    methods = {recipe.label: recipe for recipe in table.recipes}
    made = methods["EWC-S strength=75000 (MNIST, single-head)"]
    assert (made.method.alpha_on, made.method.normalize) == ("batch", False)
    assert not made.training.class_weights
