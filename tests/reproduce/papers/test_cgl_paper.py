from __future__ import annotations

import pickle
import re
import sys
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engram.errors import BadArgument, EngramError
from engram.records import Result, Rows
from engram.reproduce import (
    CellEntry,
    choose_cells,
    find_table,
    judge_cell,
    plan,
    read_cells,
    reproduce,
)
from engram.reproduce.papers import cgl_paper
from engram.reproduce.papers.cgl_paper import (
    BEST,
    BEST_NTU,
    EMBEDDED,
    GRIDS,
    METHODS,
    NTU,
    PAPER,
    TASKS,
    UCLA,
    CGLPreset,
    CGLProtocol,
    class_orders,
    make_grid,
    method_spec,
    recipe,
    task_orders,
)
from engram.reproduce.papers.paper_base import assign_settings
from tests.refusals import refuses

QUICK = (
    "epochs=1", "seeds=2", "task_orders=2", "class_orders=1", "widths=[4]", "depths=[1]",
    "stgcn_task_orders=1", "stgcn_class_orders=1", "ucla.data_options={per_class: 10, frames: 4}",
    "gcn={width: 4, hidden: 4}", "stgcn={width: 2, tk: 1}",
)  # fmt: skip


def entry_of(expression, number=2):
    table = find_table(f"cgl/{number}")
    (cell,) = choose_cells(table.cells, expression)
    return table.entry(cell)


# -- the preset ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("method", "kind", "fields"),
    [
        ("BARE", "Finetune", {}),
        ("EWC", "EWC", {"strength": 1e6, "half": False, "group": "full", "term": "objective",
                        "batch_statistics": True}),
        ("MAS", "MAS", {"strength": 100, "importance": "batch_sq", "accum": "avg_by_count",
                        "data": "own", "half": False, "batch_statistics": True}),
        ("TWP", "TWP", {"strength": 1e4, "top": 1e4, "beta": "off", "edge_softmax": True,
                        "accumulate": True, "layers": "first", "batch_statistics": True}),
        ("LwF", "LwF", {"strength": 1, "temperature": 2, "scale": False, "ce_scope": "new",
                        "blocks": "per_task"}),
        ("GEM", "GEM", {"margin": 5, "size": 0}),
        ("REPLAY", "Replay", {"fraction": 0.2}),
    ],
)  # fmt: skip
def test_methods(method, kind, fields):
    found = entry_of(f"dataset=UCLA-CIL,setting=task-order,method={method},metric=AOPD")
    made = found.recipes[0]
    assert type(made.method).__name__ == kind
    assert {name: getattr(made.method, name) for name in fields} == fields
    assert made.training.scope == ("at_time" if method == "GEM" else "seen")
    if method == "GEM":
        assert made.method.memory.fraction == 0.2


def test_protocol():
    made = recipe(PAPER, UCLA, "BARE")
    training = made.training
    assert (training.optimizer, training.lr, training.epochs) == ("adam", 1e-3, 100)
    assert (training.batch_size, training.loss, training.optim_reset) == (0, "balanced", False)
    assert made.model == {"name": "gcn", "edges": "ucla"}
    assert (made.stream["data"], made.stream["classes_per_task"]) == ("nw_ucla", 2)
    assert (made.average, made.keep, len(made.seeds)) == ("macro", "counts", 5)
    assert recipe(PAPER, NTU, "BARE").model["edges"] == "ntu"


def test_parameters_are_those_of_tables_3_and_5():
    best = {UCLA: BEST, NTU: BEST_NTU}
    for cell in read_cells("cgl", "3"):
        assert best[cell["dataset"]][cell["method"]][cell["metric"]] == cell.value
    for cell in read_cells("cgl", "5"):
        place = int(cell["stage"]) - 1
        assert GRIDS[cell["method"]][cell["metric"]][place] == cell.value
    for method, axes in GRIDS.items():
        assert all(BEST[method][name] in values for name, values in axes.items())


def test_ntu_has_its_own_parameters():
    assert recipe(PAPER, NTU, "LwF").method.strength == 0.1
    assert recipe(PAPER, NTU, "TWP").method.strength == 100


def test_orders():
    tasks = task_orders(0, 0)
    assert len(set(tasks)) == 120
    assert tasks[0] == tuple(range(10))
    for order in tasks:  # pairs stay together
        assert {order[i : i + 2] for i in range(0, 10, 2)} == set(TASKS)
    drawn = class_orders(100, 0)
    assert len(set(drawn)) == 100
    assert drawn == class_orders(100, 0) != class_orders(100, 1)
    assert len({*tasks, *drawn}) == 220
    assert set(task_orders(24, 0)) < set(tasks)


def test_all_methods_share_the_orders_and_differ_in_id():
    made = {method: cgl_paper.make_study(PAPER, UCLA, method) for method in METHODS}
    ids = {method: {one.key for one in study.all} for method, study in made.items()}
    assert all(len(found) == 1 for found in ids.values())
    assert len(set.union(*ids.values())) == len(METHODS)
    orders = {tuple(one.order for one in study.all) for study in made.values()}
    assert len(orders) == 1


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("epoch=3", "did you mean 'epochs'"), ("epochs=many", "preset.epochs"),
        ("seeds=0", "seeds"), ("ewc", "key=value"), ("ucla.date=x", "did you mean 'data'"),
        ("ewc.half.x=1", "preset.ewc.half"),
    ],
)  # fmt: skip
def test_bad_choices_are_named(assignment, complaint):
    with pytest.raises(BadArgument, match=complaint):
        find_table("cgl/2", assignments=[assignment])


def test_choices_reach_the_recipes():
    preset = assign_settings(PAPER, ["ewc.batch_statistics=false", "seeds=1", "lwf.ce_scope=scope"])
    assert not recipe(preset, UCLA, "EWC").method.batch_statistics
    assert recipe(preset, UCLA, "LwF").method.ce_scope == "scope"
    assert recipe(preset, UCLA, "EWC").seeds == (0,)
    with pytest.raises(BadArgument, match="unknown name 'ER'"):
        method_spec(PAPER, "ER")


@pytest.mark.parametrize("augment", ["none", "static", "source", "epoch"])
def test_turned_skeletons_reach_data_network_and_training(augment):
    preset = assign_settings(PAPER, [f"augment={augment}", "ucla.data_options.held=together"])
    made = recipe(preset, UCLA, "BARE")
    options = {"none": {}, "static": {"augment": "train"}, "source": {"augment": "source"},
               "epoch": {"normalised": False}}  # fmt: skip
    assert made.stream["data_options"] == {"held": "together", **options[augment]}
    anew = augment == "epoch"
    assert made.training.augment == (("rotate", "frames") if anew else ())
    assert made.model.get("stretch", False) == anew
    ours = recipe(preset, NTU, "BARE")
    assert (ours.training.augment, ours.stream["data_options"]) == ((), {"persons": "apart"})


# -- table 2 ---------------------------------------------------------------------------------------
def test_cells_have_the_runs_they_need():
    task = entry_of("dataset=UCLA-CIL,setting=task-order,method=MAS,metric=MOPD")
    aggregated = entry_of("dataset=UCLA-CIL,setting=class-order-*,method=MAS,metric=AOPD")
    assert (len(task.recipes), len(aggregated.recipes)) == (120, 220)
    assert {one.key for one in task.recipes} == {one.key for one in aggregated.recipes}
    assert "variant" in task.reasons
    assert "variant" not in entry_of("dataset=UCLA-CIL,setting=task-order,method=BARE,metric=MOPD"
                                     ).reasons  # fmt: skip


def invented(made, accuracy):
    """A Result of some recipes; `accuracy(order, seed, class)` after the last of five tasks."""
    rows = Rows()
    for one in made:
        order = one.stream["order"]
        for seed in one.seeds:
            rows.bind(recipe=one.key, label=one.label, seed=seed, order=one.order)
            task = np.arange(10) // 2
            value = [accuracy(order, seed, c) for c in order]
            place = {"stage": 4, "head": "single"}
            rows.add_array("class_accuracy", value, task=task, cls=order, **place)
            rows.add_array("accuracy", np.reshape(value, (5, 2)).mean(1), task=np.arange(5),
                           **place)  # fmt: skip
    return Result(rows.frame())


def test_disparity_of_tasks_and_classes():
    preset = replace(PAPER, class_orders=3, task_orders=4, seeds=2)
    table = cgl_paper.SensitivityEntries(preset)
    made = cgl_paper.make_study(preset, UCLA, "BARE")

    def last_two(order, seed, c):  # the newest class is known, its partner half in run 1
        place = order.index(c)
        return float(place == 9) if seed == 0 else float(place == 9) + 0.5 * (place == 8)

    result = invented(made.all, last_two)
    cells = [c for c in read_cells("cgl", "2") if c["dataset"] == UCLA and c["method"] == "BARE"]
    values = {(c["setting"], c["metric"]): table.entry(c).measure(result) for c in cells}
    ends = {one.stream["order"][-2] // 2 for one in made.tasks}
    share = len(ends) / 5  # tasks that come last in some order and first in another
    expected = [50 * share, 75 * share]
    assert values["task-order", "AOPD"] == pytest.approx(expected)
    assert values["task-order", "MOPD"] == pytest.approx([50, 75])
    last = {one.stream["order"][-1] for one in made.all}
    assert values["class-order-aggregated", "AOPD"][0] == pytest.approx(10.0 * len(last))
    assert values["class-order-aggregated", "MOPD"].tolist() == [100, 100]


def test_a_range_over_fewer_orders_is_not_compared():
    """A disparity over some of the paper's orders can only be smaller than over all."""
    cells = [c for c in read_cells("cgl", "2") if c["dataset"] == UCLA and c["method"] == "BARE"]

    def verdicts(**orders):
        table = cgl_paper.SensitivityEntries(replace(PAPER, **orders))
        found = [judge_cell(c, table.entry(c), np.array([c.value])) for c in cells]
        return {c["setting"]: line.verdict for c, line in zip(cells, found, strict=True)}

    tasks, classes = "task-order", "class-order-aggregated"
    assert verdicts() == {tasks: "agrees", classes: "agrees"}
    assert verdicts(class_orders=24) == {tasks: "agrees", classes: "not comparable"}
    assert set(verdicts(task_orders=24).values()) == {"not comparable"}


def test_one_unfinished_order_leaves_its_repetition_out():
    preset = replace(PAPER, class_orders=0, task_orders=3, seeds=2)
    made = cgl_paper.make_study(preset, UCLA, "BARE")
    some = [made.tasks[0], made.tasks[1], replace(made.tasks[2], seeds=(1,))]
    result = invented(some, lambda order, seed, c: 0.5)
    cell = next(c for c in read_cells("cgl", "2") if c["method"] == "BARE")
    values = cgl_paper.SensitivityEntries(preset).entry(cell).measure(result)
    assert values == pytest.approx([np.nan, 0.0], nan_ok=True)


def test_embedded_table_is_marked_and_goes_on(tmp_path):
    table = find_table("cgl/2", embedded=True, assignments=QUICK)
    assert {cell["dataset"] for cell in table.cells} == {UCLA}
    cells = "method=BARE|REPLAY"
    first = reproduce(table, out=tmp_path, cells=cells, budget=1e-6)
    assert first.open_runs == len(first.plan.runs) == 2 * 3 * 2
    made = reproduce(table, out=tmp_path, cells=cells)
    assert made.counts() == {"not comparable": 8}
    assert made.open_runs == 0
    assert all(len(line.values) == 2 and 0 <= line.ours <= 100 for line in made.lines)
    again = plan(table, out=tmp_path, cells=cells, measure=False)
    assert again.done == len(again.runs)
    assert not list(tmp_path.glob("items-*"))  # counts need none


def test_spread_is_shown_beside_the_printed_one(tmp_path):
    from engram.reproduce.result_tables import format_line

    cell = read_cells("cgl", "2")[0]
    line = judge_cell(cell, CellEntry(), np.array([90.0, 92.0]))
    assert line.spread == pytest.approx(1.0)  # over these repetitions, ddof 0
    assert format_line(line)["ours"] == "91.0 ± 1.00"
    assert format_line(replace(line, cell=replace(cell, std=float("nan"))))["ours"] == "91.0"
    assert format_line(judge_cell(cell, CellEntry(), np.array([90.0])))["ours"] == "90.0"


# -- the other tables ------------------------------------------------------------------------------
def test_table_1_is_counted_on_the_data(engram_data):
    made = plan(find_table("cgl/1"), engram_data, measure=False)
    ours = {
        cell["metric"]: entry.measure(None)[0]
        for cell, entry in zip(made.cells, made.entries, strict=True)
        if not entry.missing and cell["dataset"] == UCLA
    }
    printed = {c["metric"]: c.value for c in made.cells if c["dataset"] == UCLA}
    assert ours == printed


def test_table_1_without_data_says_why(tmp_path, monkeypatch):
    monkeypatch.delenv("ENGRAM_DATA", raising=False)
    made = reproduce(find_table("cgl/1"), out=tmp_path)
    assert made.counts() == {"not run": 12}
    assert all("nw_ucla" in one.reason or "ntu60" in one.reason for one in made.lines)


def test_embedded_table_1(tmp_path):
    made = reproduce(find_table("cgl/1", embedded=True), out=tmp_path)
    ours = {line.cell["metric"]: line.ours for line in made.lines}
    assert (ours["n_joints"], ours["n_tasks"], ours["n_action_sequences"]) == (20, 5, 200)


def test_tables_4_and_5_are_our_models_and_grids(tmp_path):
    assert reproduce("cgl/4", out=tmp_path).counts() == {"agrees": 10}
    assert reproduce("cgl/5", out=tmp_path).counts() == {"agrees": 29}
    wrong = find_table("cgl/4", assignments=["widths=[32, 63]"])
    assert reproduce(wrong, out=tmp_path, cells="metric=width").counts() == {
        "agrees": 1, "differs": 1, "not run": 3,
    }  # fmt: skip


def test_grid_is_tested_on_validation_rows():
    points = make_grid(EMBEDDED, UCLA, "LwF")
    assert len(points) == 9
    assert points[10, 0.2].method.temperature == 0.2
    tuning = points[10, 0.2].build_stream()
    usual = recipe(EMBEDDED, UCLA, "LwF").build_stream()
    assert all(t.test.equal(u.valid) and t.train.equal(u.train)
               for t, u in zip(tuning, usual, strict=True))  # fmt: skip
    shown = {int(row) for task in tuning for row in (*task.train, *task.valid, *task.test)}
    assert not shown & {int(row) for task in usual for row in task.test}
    assert len(make_grid(PAPER, UCLA, "TWP")) == 4
    acting = assign_settings(PAPER, ["twp.beta=double_backward"])
    assert len(make_grid(acting, UCLA, "TWP")) == 8


def test_best_value_is_that_of_the_best_point():
    points = make_grid(replace(PAPER, grid_seeds=2), UCLA, "GEM")
    rows = Rows()
    for (margin, share), made in points.items():
        for seed in made.seeds:
            rows.bind(recipe=made.key, label="x", seed=seed)
            value = 0.5 + 0.1 * (share == 0.1) + 0.01 * margin * (1 if seed else -1.01)
            rows.add_array("accuracy", [[value]], stage=[[0]], task=[0], head="single")
    result = Result(rows.frame())
    # over both seeds smaller margins are better by a hair
    assert cgl_paper.best_value(points, 0)(result).tolist() == [0.05]
    assert cgl_paper.best_value(points, 1)(result).tolist() == [0.1]
    unfinished = result.select(recipe=[m.key for m in list(points.values())[1:]])
    assert np.isnan(cgl_paper.best_value(points, 0)(unfinished)).all()


def test_beta_is_not_searched_while_it_does_nothing():
    table = find_table("cgl/3")
    (cell,) = choose_cells(table.cells, "dataset=UCLA-CIL,method=TWP,metric=beta")
    assert "off" in table.entry(cell).missing
    assert not find_table("cgl/3", assignments=["twp.beta=double_backward"]).entry(cell).missing


# -- figures ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["fig1", "fig4", "fig5", "fig6", "fig8"])
def test_figures(name, tmp_path):
    table = find_table(f"cgl/{name}", embedded=True, assignments=QUICK)
    (figure,) = table.figures
    # Two methods are enough to see how a figure copes with what is not there yet.
    some = tuple(r for r in figure.recipes if r.label.startswith(("BARE", "REPLAY")))
    made = reproduce(replace(table, figures=(replace(figure, recipes=some),)), out=tmp_path)
    assert [p.suffix for p in made.figures] == [".csv", ".html"]
    assert set(pd.read_csv(made.figures[0])["method"]) == {"BARE", "REPLAY"}
    page = made.figures[1].read_text("utf-8")
    assert figure.title in page
    assert '"name":"REPLAY"' in page


def test_figures_of_orders_need_the_runs_of_table_2():
    table = find_table("cgl/2")
    runs = {(r.key, r.order, r.seeds) for r in table.recipes}
    for name in ("fig1", "fig3", "fig5"):
        figure = find_table(f"cgl/{name}").figures[0]
        assert {(r.key, r.order, r.seeds) for r in figure.recipes} <= runs


def test_numbers_are_kept_where_drawing_is_not_possible(tmp_path, monkeypatch):
    table = find_table("cgl/fig3", embedded=True, assignments=QUICK)
    (figure,) = table.figures
    some = tuple(r for r in figure.recipes if r.label.startswith("BARE"))
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(EngramError, match=r"plotly.*fig3-skeletons\.csv"):
        reproduce(replace(table, figures=(replace(figure, recipes=some),)), out=tmp_path)
    assert (tmp_path / "figures" / "fig3-skeletons.csv").exists()


def test_points_average_over_repetitions():
    preset = replace(PAPER, class_orders=0, task_orders=2, seeds=2)
    made = cgl_paper.make_study(preset, UCLA, "BARE")
    rows = Rows()
    matrix = np.tril(np.ones((5, 5)))
    for one in made.tasks:
        for seed in one.seeds:
            rows.bind(recipe=one.key, label="x", seed=seed, order=one.order)
            matrix[-1] = [0, 0, 0, 0, 0.5 + 0.5 * seed]
            rows.add_array("accuracy", matrix, stage=np.arange(5)[:, None], task=np.arange(5),
                           head="single")  # fmt: skip
    found = cgl_paper.order_points(Result(rows.frame()), made.tasks, {"method": "BARE"})
    assert len(found) == 2
    assert found[0]["repetitions"] == 2
    assert found[0]["average_accuracy"] == pytest.approx(0.15)
    assert found[0]["forgetting"] == pytest.approx(1.0)
    assert found[0]["bound"] == pytest.approx(1.0)


def test_stgcn_studies_are_smaller():
    (fourth,) = find_table("cgl/fig4").figures
    assert len(fourth.recipes) == 7 * 24
    for figure in find_table("cgl/fig6").figures:
        assert {r.label.split()[0] for r in figure.recipes} == set(METHODS)
        assert len(figure.recipes) == 7 * 48
        assert {len(r.seeds) for r in figure.recipes} == {1}
        assert {r.model["name"] for r in figure.recipes} == {"stgcn"}


def test_the_panel_of_ntu_is_made_from_the_official_arrays(tmp_path):
    """100 sequences in the form of the prepared cross-subject part, two bodies, 300 frames."""
    rng, folder = np.random.default_rng(0), tmp_path / "ntu60"
    folder.mkdir()
    rows = np.lib.format.open_memmap(
        folder / "train_data.npy", mode="w+", dtype=np.float32, shape=(100, 3, 300, 25, 2)
    )
    label = np.arange(100) % 10
    rows[:, :, :12] = rng.normal(size=(100, 3, 12, 25, 2)) + label[:, None, None, None, None]
    rows.flush()
    names = [f"S001C001P001R{i:03d}A{one + 1:03d}" for i, one in enumerate(label)]
    (folder / "train_label.pkl").write_bytes(pickle.dumps((names, label.tolist())))
    table = find_table("cgl/fig6", assignments=[
        "epochs=2", "stgcn_task_orders=1", "stgcn_class_orders=1", "ntu.data_options.frames=6",
        "stgcn={width: 2, tk: 1}",
    ])  # fmt: skip
    reproduce(table, data=tmp_path, cells="dataset=NTU-CIL,method=BARE|TWP", out=tmp_path / "out",
              device="cpu")  # fmt: skip
    points = pd.read_csv(tmp_path / "out" / "figures" / "fig6-ntu.csv")
    assert points.groupby(["method", "orders"]).size().to_dict() == {
        (method, kind): 1 for method in ("BARE", "TWP") for kind in ("class", "task")
    }
    assert (points["tasks"] == 5).all()
    assert (points["forgetting"] <= points["bound"]).all()


def test_widths_and_depths():
    (wide,), (deep,) = (find_table(f"cgl/{name}").figures for name in ("fig7", "fig8"))
    assert {r.model.get("width") for r in wide.recipes} == {32, 64, 128, 256, 512}
    assert {r.model.get("depth") for r in deep.recipes} == {1, 2, 4, 8, 16}
    assert len(wide.recipes) == 5 * 8  # JOINT among them
    assert all(not r.order for r in wide.recipes)


# -- the page --------------------------------------------------------------------------------------
def test_page_names_every_choice_and_erratum():
    text = (Path(__file__).parents[3] / "docs" / "protocols" / "cgl.md").read_text("utf-8")
    words = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    said = {part for word in words for part in re.split(r"[\s.=]", word)}
    fields = {f.name for kind in (CGLPreset, CGLProtocol) for f in dataclass_fields(kind)}
    assert not fields - said
    assert re.findall(r"^\| G(\d+) \|", text, re.M) == [str(n) for n in range(1, 18)]
    printed = {
        c["method"] + c["setting"] + c["metric"]: f"{c.value:g}"
        for c in read_cells("cgl", "2") if c["dataset"] == UCLA
    }  # fmt: skip
    for method in METHODS:
        for setting in ("task-order", "class-order-aggregated"):
            pair = " / ".join(printed[method + setting + metric] for metric in ("AOPD", "MOPD"))
            assert re.search(rf"^\| {method} (\|.*)?\| {re.escape(pair)} \|", text, re.M)


def test_the_loss_of_replay_alone():
    table = find_table("cgl/2", assignments=["replay_loss=ce", "replay.mix=paired"])
    losses = {}
    for method in ("REPLAY", "BARE"):
        cell = choose_cells(table.cells, f"dataset=UCLA-CIL,method={method}")[0]
        losses[method] = table.entry(cell).recipes[0].training.loss
    assert losses == {"REPLAY": "ce", "BARE": "balanced"}
    with refuses("loss", near="ce"):
        find_table("cgl/2", assignments=["replay_loss=cee"])


# -- findings --------------------------------------------------------------------------------------
def test_findings_are_held_against_print():
    """All that the text says of table 2 is so in the table, but for one number of MAS (G1)."""
    (figure,) = find_table("cgl/findings", assignments=["ntu=null"]).figures
    rows = figure.rows
    assert {row["backbone"] for row in rows if row.get("backbone")} == {"GCN", "ST-GCN"}
    empty = Result(Rows().frame())
    claims = cgl_paper.CellFindings(
        "cgl", PAPER, cgl_paper.DATA["findings"], {"2": cgl_paper.SensitivityEntries(PAPER).entry}
    )
    made = [
        *claims.claims,
        *cgl_paper._claim_extremes(PAPER, claims),
        *cgl_paper._claim_easier_set(PAPER, claims),
    ]
    tried = pd.DataFrame([one.tried(empty) for one in made])
    assert len(tried) == 79
    against = tried[tried["printed_holds"] != "yes"]
    assert against[["first", "row"]].values.tolist() == [["MAS", "UCLA-CIL task-order MOPD"]]
    assert set(tried["holds"]) == {"not run"}


def test_findings_over_orders_compare_repetitions():
    """Two orders, two repetitions: accuracy, its deviation and its relation to forgetting."""
    preset = replace(PAPER, task_orders=2, class_orders=0, seeds=2, ntu=None)
    studies = cgl_paper.StudyMeasures(preset)
    place = (UCLA, "GCN", "BARE", "task")
    mean = studies.orders(("average_accuracy",), place, cgl_paper.average)[1]
    spread = studies.orders(("average_accuracy",), place, cgl_paper.spread)[1]
    metrics = ("average_accuracy", "forgetting")
    related = studies.orders(metrics, place, cgl_paper.correlate)[1]
    bounded = studies.orders(("forgetting", "forgetting_bound"), place, cgl_paper.share_within)[1]
    made = [one for one, _ in studies.rows]
    assert len(made) == 2  # asked for once, whatever is measured
    rows = Rows()
    for number, one in enumerate(made):
        for seed in one.seeds:
            rows.bind(recipe=one.key, label="x", seed=seed, order=one.order)
            matrix = np.tril(np.ones((5, 5)))
            matrix[-1, :4] = 0.2 * (number + seed)
            rows.add_array("accuracy", matrix, stage=np.arange(5)[:, None], task=np.arange(5),
                           head="single")  # fmt: skip
    result = Result(rows.frame())
    # after the last task one task is at 1, four at 0.2 x (order + repetition)
    assert mean(result) == pytest.approx([28, 44])
    assert spread(result) == pytest.approx([8, 8])
    assert related(result) == pytest.approx([-1, -1])
    assert bounded(result) == pytest.approx([1, 1])
