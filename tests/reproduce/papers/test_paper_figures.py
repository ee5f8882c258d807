"""Numbers and drawings of the papers' figures, from results that were made up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engram.data.skeletons import nw_ucla
from engram.records import Result, Rows
from engram.report.method_styles import PALETTE
from engram.reproduce import choose_cells, find_table, read_cells, table_names
from engram.reproduce.papers import cgl_paper, confer_paper
from engram.reproduce.papers.rwalk_paper import METHODS as OF_RWALK
from engram.reproduce.planning import choose_rows

pytest.importorskip("plotly")

SMALL = {
    "rwalk": ("seeds=2", "mnist.samples=[5, 10]", "cifar.samples=[5]"),
    "cgl": ("seeds=2", "task_orders=3", "class_orders=2", "widths=[4, 8]", "depths=[1, 2]",
            "wide_seeds=2", "stgcn_task_orders=2", "stgcn_class_orders=1"),
    "confer": ("seeds=2",),
}  # fmt: skip
OF_CONFER = ("confer/fig3", "confer/fig18")  # of 24 that are made alike
FIGURES = [
    name for name in table_names()
    if "/fig" in name and name.partition("/")[0] in SMALL
    and (name in OF_CONFER or not name.startswith("confer/"))
]  # fmt: skip
OVER_TIME = ("rwalk/fig2", "rwalk/fig6", *OF_CONFER)  # which show what is unfinished as well


def figures_of(name, **options):
    return find_table(name, assignments=SMALL[name.partition("/")[0]], **options).figures


def tasks_of(recipe):
    sizes, data = recipe.stream["classes_per_task"], recipe.stream["data"]
    return len(sizes) if isinstance(sizes, list) else (100 if data == "cifar100" else 10) // sizes


def learnt(recipe, seed, tasks, start=0.9, loss=0.1):
    """[stage, task] accuracies that begin at `start` and lose `loss` with every further task.

    The second repetition is better by .02.
    """
    stage, task = np.mgrid[:tasks, :tasks]
    table = start - loss * (stage - task) + 0.02 * seed
    return np.where(stage >= task, table, 0.0)


def invented(recipes, accuracy=learnt, stages=None):
    """A Result in which every run of the recipes is finished, or has got through some stages."""
    rows = Rows()
    for one in {(r.key, r.order): r for r in recipes}.values():
        tasks = tasks_of(one)
        reached = min(stages or tasks, tasks)
        for seed in one.seeds:
            matrix = accuracy(one, seed, tasks)[:reached]
            rows.bind(recipe=one.key, label=one.label, seed=seed, order=one.order)
            for head, more in (("single", 0.0), ("multi", 0.05)):
                rows.add_array("accuracy", matrix + more, stage=np.arange(reached)[:, None],
                               task=np.arange(tasks), head=head)  # fmt: skip
            if one.stream["data"] in ("nw_ucla", "ntu60", "skeletons"):
                order = one.stream.get("order") or range(10)
                rows.add_array("class_accuracy", np.repeat(matrix[-1], 2), stage=reached - 1,
                               task=np.arange(10) // 2, cls=list(order), head="single")  # fmt: skip
    return Result(rows.frame())


def data_of(figure, accuracy=learnt):
    return figure.data(invented(figure.recipes, accuracy))


def drawn(figure):
    return figure.draw(data_of(figure))


def in_legend(drawing):
    return [trace.name for trace in drawing.data if trace.showlegend is not False]


def method_traces(drawing, methods):
    return [trace for trace in drawing.data if trace.name in methods]


def titles(drawing):
    return [note.text for note in drawing.layout.annotations]


# -- all figures -----------------------------------------------------------------------------------
@pytest.mark.parametrize("name", FIGURES)
def test_every_method_stands_in_the_legend_once(name):
    for figure in figures_of(name):
        data = data_of(figure)
        shown = in_legend(figure.draw(data))
        assert len(shown) == len(set(shown))
        assert set(data["method"]) <= set(shown)
        assert {t.name for t in figure.draw(data).data} == set(shown)


@pytest.mark.parametrize("name", ["rwalk/fig4", "cgl/fig1", "cgl/fig5", "cgl/fig8"])
def test_methods_that_are_not_in_the_first_plot_have_an_entry_as_well(name):
    figure = figures_of(name)[0]
    data = data_of(figure)
    plots = next(key for key in ("dataset", "orders", "metric") if key in data)
    first = data[plots].iloc[0]
    few = data[(data[plots] != first) | (data["method"] != "EWC")]
    assert in_legend(figure.draw(few)).count("EWC") == 1


@pytest.mark.parametrize("name", FIGURES)
def test_one_method_alone_is_drawn(name):
    table = find_table(name, assignments=SMALL[name.partition("/")[0]])
    few = choose_rows(table, "method=EWC*" if "rwalk" in name else "method=EWC")
    assert [one.name for one in few] == [one.name for one in table.figures]
    for figure in few:
        assert {r.label.split()[0] for r in figure.recipes} <= {"EWC", "EWC-S", "Joint"}
        data = figure.data(invented(figure.recipes))
        assert {str(m).removesuffix("-S") for m in data["method"]} == {"EWC"}
        assert len(figure.draw(data).data)


@pytest.mark.parametrize("name", ["iirc/fig4.2", "iirc/fig4.4", "iirc/findings", "cnd/fig4"])
def test_rows_of_other_figures_have_names(name):
    chosen = {"iirc": "method=ER", "cnd": "method=ER-25s"}[name.partition("/")[0]]
    for figure in choose_rows(find_table(name, embedded=True), chosen):
        assert {recipe.method.__class__.__name__ for recipe in figure.recipes} == {"ER"}


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in OVER_TIME])
def test_unfinished_runs_are_left_out(name):
    for figure in figures_of(name):
        assert len(figure.data(invented(figure.recipes))) > 0
        assert len(figure.data(invented(figure.recipes, stages=1))) == 0


@pytest.mark.parametrize("paper", ["rwalk", "cgl", "confer"])
def test_a_method_looks_the_same_in_all_figures(paper):
    methods = {
        "rwalk": (*OF_RWALK, "Vanilla-S", "EWC-S", "PI-S"), "cgl": (*cgl_paper.METHODS, "JOINT"),
        "confer": tuple(confer_paper.ROWS),
    }[paper]  # fmt: skip
    found = {}
    for name in FIGURES:
        for figure in figures_of(name) if name.startswith(f"{paper}/") else ():
            for trace in method_traces(drawn(figure), methods):
                symbol = trace.marker.symbol and trace.marker.symbol.removesuffix("-open")
                found.setdefault(trace.name, set()).add((trace.marker.color, symbol))
    assert set(found) == set(methods)
    for looks in found.values():  # boxes have no symbol
        assert len({color for color, _ in looks}) == 1
        assert len({symbol for _, symbol in looks} - {None}) == 1
    full = [(color, symbol) for looks in found.values() for color, symbol in looks if symbol]
    assert len(set(full)) == len(methods)
    colours = {name: next(iter(looks))[0] for name, looks in found.items()}
    plain = {name: colour for name, colour in colours.items() if not name.endswith("-S")}
    assert len(set(plain.values())) == min(len(plain), len(PALETTE))
    assert all(colours[name] == colours[name.removesuffix("-S")] for name in colours)


# -- ConFER ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "panels", "tasks"),
    [("fig3", ["without", "with"], 4), ("fig18", ["O2", "O3"], 7)],
)
def test_steps_of_both_halves(name, panels, tasks):
    (figure,) = figures_of(f"confer/{name}")
    data = data_of(figure)
    assert list(dict.fromkeys(data["panel"])) == panels
    assert data["stage"].max() == data["task"].max() == tasks
    shown = [title for title in titles(figure.draw(data)) if title.endswith(": mean")]
    assert shown == [f"{panel}: mean" for panel in panels]
    one = data.query(f"panel == '{panels[1]}' and method == 'LGR+D' and task == 1")
    multi = 0.05 if name == "fig3" else 0.0  # the head that the stream is judged by
    expected = 0.91 + multi - 0.1 * np.arange(tasks)
    assert one["accuracy"].tolist() == pytest.approx(expected.tolist())


# -- RWalk -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "tasks"), [("fig2", 5), ("fig6", 10)])
def test_curves_are_means_over_repetitions(name, tasks):
    (figure,) = figures_of(f"rwalk/{name}")
    data = data_of(figure)
    assert list(dict.fromkeys(data["panel"])) == [
        "multi-head", "single-head", "single-head, samples",
    ]  # fmt: skip
    one = data.query("panel == 'single-head' and method == 'iCaRL'")
    assert len(one) == tasks * (tasks + 1) / 2 + tasks  # tasks seen so far, and their mean
    for row in one.to_dict("records"):
        stage, task = row["stage"], row["task"]
        ages = [stage - task] if task else [stage - t for t in range(1, stage + 1)]
        assert row["accuracy"] == pytest.approx(0.91 - 0.1 * np.mean(ages))
        assert row["std"] == pytest.approx(0.02 / math.sqrt(2))


def test_every_panel_has_its_own_head():
    (figure,) = figures_of("rwalk/fig2")
    last = data_of(figure).query("method == 'EWC' and task == 0 and stage == 5")
    assert last.set_index("panel")["accuracy"].to_dict() == pytest.approx(
        {"multi-head": 0.76, "single-head": 0.71, "single-head, samples": 0.71}
    )


def test_stages_that_no_run_has_reached_are_left_out():
    (figure,) = figures_of("rwalk/fig2")
    data = figure.data(invented(figure.recipes[:1], stages=1))  # which both heads share
    assert data[["task", "stage"]].to_numpy().tolist() == [[0, 1], [1, 1]] * 2
    assert data["panel"].tolist() == ["multi-head"] * 2 + ["single-head"] * 2


@pytest.mark.parametrize(("name", "tasks"), [("fig2", 5), ("fig6", 10)])
def test_tasks_share_their_axes(name, tasks):
    (figure,) = figures_of(f"rwalk/{name}")
    drawing = drawn(figure)
    ranges = {axis.range for axis in drawing.select_xaxes()}
    assert ranges == {(0.6, tasks + 0.4)}
    assert {axis.range for axis in drawing.select_yaxes()} == {(0, 1.02)}
    assert [title for title in titles(drawing) if title] == [
        f"{panel}: {place}"
        for panel in ("multi-head", "single-head", "single-head, samples")
        for place in (*(f"task {t}" for t in range(1, tasks + 1)), "mean")
    ]
    assert len(drawing.data) == (4 + 5 + 4) * (tasks + 1)
    late = [t for t in drawing.data if t.xaxis == f"x{tasks}" and t.name == "EWC"]
    assert [list(trace.x) for trace in late] == [[tasks]]  # the last task, learnt last


def test_plane_shows_our_points_beside_the_papers():
    (figure,) = figures_of("rwalk/fig3")

    def accuracy(recipe, seed, tasks):
        joint = recipe.label.startswith("Joint")
        return learnt(recipe, seed, tasks, start=0.95 if joint else 0.9)

    data = data_of(figure, accuracy)
    assert set(data["dataset"]) == {"MNIST", "CIFAR-100"}
    assert len(data) == 2 * 2 * 9
    ours = data.query("source == 'ours'")
    for dataset, tasks in (("MNIST", 5), ("CIFAR-100", 10)):
        some = ours[ours["dataset"] == dataset]
        assert some["forgetting"].tolist() == pytest.approx([0.1 * tasks / 2] * 9)
        # repetitions are compared with the reference of the same seed
        assert some["intransigence"].tolist() == pytest.approx([0.05] * 9)
        assert some["intransigence_std"].tolist() == pytest.approx([0] * 9, abs=1e-9)
    printed = data.query("source == 'paper' and dataset == 'MNIST' and method == 'EWC-S'")
    found = printed[["forgetting", "intransigence"]].to_numpy().tolist()
    cells = choose_cells(read_cells("rwalk", "1"), "dataset=MNIST,method=EWC-S,metric=F|I")
    assert found == [[cell.value for cell in cells]]
    drawing = figure.draw(data)
    assert titles(drawing)[:2] == ["MNIST", "CIFAR-100"]
    hollow = [t for t in drawing.data if t.marker.symbol.endswith("-open")]
    assert len(hollow) == 2 * 9 + 1
    assert {"ours", "the paper"} <= set(in_legend(drawing))


def test_points_of_the_paper_are_not_mixed_with_other_data():
    (figure,) = find_table("rwalk/fig3", embedded=True).figures
    data = data_of(figure)
    assert set(data["source"]) == {"ours"}
    assert set(data["dataset"]) == {"digits"}
    drawing = figure.draw(data)
    assert titles(drawing)[0] == "digits"
    assert "the paper" not in in_legend(drawing)


def test_sizes_and_strategies():
    (sizes,), (strategies,) = figures_of("rwalk/fig4"), figures_of("rwalk/fig5")

    def accuracy(recipe, seed, tasks):
        return learnt(recipe, seed, tasks, start=0.5 + recipe.method.memory.per_class / 100)

    data = data_of(sizes, accuracy)
    mnist = data.query("dataset == 'MNIST' and method == 'PI'")
    assert mnist["samples"].tolist() == [5, 10]
    # at the end the five tasks are 4, 3, ... 0 tasks old
    assert mnist["accuracy"].tolist() == pytest.approx([0.55 - 0.2 + 0.01, 0.6 - 0.2 + 0.01])
    assert mnist["std"].tolist() == pytest.approx([0.02 / math.sqrt(2)] * 2)
    drawing = sizes.draw(data)
    assert titles(drawing) == ["MNIST", "CIFAR-100"]
    assert list(next(t for t in drawing.data if t.name == "PI").x) == [5, 10]
    assert {axis.title.text for axis in drawing.select_xaxes()} == {"samples per class"}

    data = data_of(strategies)
    assert len(data) == 2 * 4 * 4
    drawing = strategies.draw(data)
    axis = next(drawing.select_xaxes())
    assert axis.ticktext == ("uniform", "plane distance", "entropy", "mean of features")
    at_first = sorted(t.x[0] for t in drawing.data if t.xaxis == "x")
    assert at_first == pytest.approx([-0.12, -0.04, 0.04, 0.12])  # beside each other


# -- CGL -------------------------------------------------------------------------------------------
def test_classes_are_averaged_over_repetitions():
    (figure,) = figures_of("cgl/fig1")
    data = data_of(figure)
    assert len(data) == 7 * (3 + 2) * 10
    first = data.query("method == 'TWP' and orders == 'class'")
    order = first["order"].iloc[0]
    row = first[first["order"] == order].set_index("class")["accuracy"]
    by_place = [row[nw_ucla.CLASSES[int(c)]] for c in order.split("-")]
    assert by_place == pytest.approx(np.repeat([0.51, 0.61, 0.71, 0.81, 0.91], 2))
    drawing = figure.draw(data)
    assert titles(drawing) == ["task orders", "class orders"]
    assert len(drawing.data) == 2 * 7
    assert {len(trace.y) for trace in drawing.data} == {30, 20}
    assert {axis.range for axis in drawing.select_yaxes()} == {(-0.02, 1.02)}


@pytest.mark.parametrize(
    ("name", "net", "shown", "kinds"),
    [
        ("fig3", "GCN", ["UCLA-CIL", "NTU-CIL"], {"task orders": 3}),
        ("fig4", "ST-GCN", ["UCLA-CIL"], {"task orders": 2}),
        ("fig5", "GCN", ["UCLA-CIL", "NTU-CIL"], {"task orders": 3, "class orders": 2}),
        ("fig6", "ST-GCN", ["UCLA-CIL", "NTU-CIL"], {"task orders": 2, "class orders": 1}),
    ],
)
def test_scatters(name, net, shown, kinds):
    figures = figures_of(f"cgl/{name}")
    assert [figure.title for figure in figures] == [
        f"Accuracy against forgetting, {dataset}, {net}" for dataset in shown
    ]
    for figure in figures:
        data = data_of(figure)
        assert len(data) == sum(kinds.values()) * len(cgl_paper.METHODS)
        assert data["average_accuracy"].to_numpy() == pytest.approx(
            0.9 - 0.2 + 0.01 * (data["repetitions"] == 2)
        )
        assert data["forgetting"].to_numpy() == pytest.approx(0.25)
        drawing = figure.draw(data)
        assert titles(drawing) == list(kinds)
        places = {"x": 0, "x2": 1}
        for trace in method_traces(drawing, cgl_paper.METHODS):
            assert len(trace.x) == list(kinds.values())[places[trace.xaxis]]
            assert list(trace.y) == pytest.approx([0.25] * len(trace.x))
        bounds = [trace for trace in drawing.data if trace.name == "upper bound"]
        assert len(bounds) == len(kinds)
        assert (bounds[0].x[0], bounds[0].y[0]) == pytest.approx((0.2, 1.0))


@pytest.mark.parametrize(("name", "axis", "values"), [("fig7", "width", (4, 8)),
                                                      ("fig8", "depth", (1, 2))])  # fmt: skip
def test_evolution(name, axis, values):
    (figure,) = figures_of(f"cgl/{name}")
    assert figure.title.endswith(f"over the {axis} of the GCN, UCLA-CIL")

    def accuracy(recipe, seed, tasks):
        return learnt(recipe, seed, tasks, loss=0.01 * recipe.model[axis])

    data = data_of(figure, accuracy)
    some = data[data["method"] == "GEM"].set_index([axis, "metric"])
    for value in values:
        assert some.loc[(value, "average_accuracy"), "value"] == pytest.approx(
            0.91 - 2 * 0.01 * value
        )
        assert some.loc[(value, "average_accuracy"), "std"] == pytest.approx(0.01)
        assert some.loc[(value, "forgetting"), "value"] == pytest.approx(0.025 * value)
    drawing = figure.draw(data)
    assert titles(drawing) == ["average accuracy", "average forgetting"]
    assert len(drawing.data) == 2 * 8
    assert {tuple(trace.x) for trace in drawing.data} == {values}
    assert {(x.type, x.title.text) for x in drawing.select_xaxes()} == {("log", axis)}


def test_figures_on_other_data_say_so():
    for name in FIGURES:
        for figure in find_table(name, embedded=True).figures:
            words = figure.title + figure.name
            assert not {"UCLA", "ucla", "NTU", "MNIST"} & set(words.replace("-", " ").split())
            data = figure.data(invented(figure.recipes[:1]))
            assert "dataset" not in data or set(data["dataset"]) <= {"digits"}
