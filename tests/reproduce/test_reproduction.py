from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from engram.engine import evaluation
from engram.engine.engine import Engine
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.experiments import Callback, build_method, checkpointing
from engram.records import read
from engram.reproduce import (
    Cell,
    CellEntry,
    PaperFigure,
    PaperTable,
    cost_estimate,
    default_out,
    measures,
    plan,
    planning,
    reproduce,
    reproduction,
)
from engram.reproduce.cost_estimate import count_steps, estimate_costs
from engram.reproduce.result_tables import COLUMNS, render_lines
from tests.engine.test_evaluation import tree
from tests.loose_files import unpack
from tests.refusals import refuses
from tests.reproduce.invented_paper import STEPS, cell, entry_of, small_recipe


class Counting(Callback):
    """Counts recorded stages, and may dawdle after each."""

    def __init__(self, pause=0.0):
        self.stages, self.pause = [], pause

    def stage(self, plan, stage, rows):
        self.stages.append((*plan.key, stage))
        time.sleep(self.pause)


# -- plans ---------------------------------------------------------------------------------------
def test_cells_share_runs(table):
    made = plan(table, measure=False)
    assert len(made.runs) == 4  # two methods, two seeds, though four cells ask for them
    assert len(made.runnable) == 4
    assert made.seconds == 0


def test_expression_limits_the_runs(table):
    made = plan(table, cells="method=ER,metric=F", measure=False)
    assert [c.name for c in made.cells] == ["Blobs single-head ER"]
    assert len(made.runs) == 2


def test_absent_data_is_said_not_raised(table, monkeypatch):
    monkeypatch.delenv("ENGRAM_DATA", raising=False)
    far = replace(table, cells=(*table.cells, cell("Far", "F")))
    made = plan(far, measure=False)
    assert "mnist is not part of the package" in made.entries[-1].missing
    assert len(made.runs) == 4


def test_absent_method_is_said_not_raised(table):
    def entry(found):
        return entry_of(found) if found["method"] != "ER" else small_recipe("NoSuchMethod")

    made = plan(replace(table, entry=entry), measure=False)
    assert "NoSuchMethod" in made.entries[2].missing


def test_cost_is_measured_and_shrinks_with_what_is_done(table, tmp_path):
    before = plan(table, out=tmp_path / "r")
    assert sum(cost.runs for cost in before.costs) == 4
    assert all(cost.seconds > 0 and cost.steps > 0 for cost in before.costs)
    reproduce(table, out=tmp_path / "r", cells="method=ER")
    after = plan(table, out=tmp_path / "r")
    assert (after.done, sum(cost.runs for cost in after.costs)) == (2, 2)


def test_rows_of_several_tasks_are_forecast_once_where_they_are_trained_on_once():
    run = Run(stream=tree(), method=build_method("IncrementalJoint"),
              training=Training(batch_size=4, epochs=1))  # fmt: skip
    taken = [stage.steps for stage in Engine([run], device="cpu").stages()]
    assert count_steps(run) == sum(taken)


@pytest.mark.parametrize("method", ["Finetune", "IncrementalJoint"])
@pytest.mark.parametrize("patience", [0, 9])
@pytest.mark.parametrize("unseen", [False, True])
def test_rows_that_are_evaluated_are_those_of_the_engine(monkeypatch, method, patience, unseen):
    """After every stage and, where something watches validation rows, after every epoch."""
    passed, real = [], evaluation._split_rows

    def counted(rows, *rest):
        passed.append(len(rows))
        return real(rows, *rest)

    monkeypatch.setattr(evaluation, "_split_rows", counted)
    run = Run(stream=tree(), method=build_method(method), unseen=unseen,
              training=Training(batch_size=4, epochs=2, patience=patience))  # fmt: skip
    counts = []
    for _ in Engine([run], device="cpu").stages():
        counts.append(sum(passed))
    found = [cost_estimate._count_scored_rows(run, k + 1) for k in range(len(run.stream))]
    assert found == counts


def test_hardly_any_rows_are_evaluated_while_steps_are_timed():
    few = cost_estimate.shrink_stream(tree(), 4)
    assert few.held_out == tree().held_out == "post_valid"
    for kind in ("test", "valid", "post_valid"):
        assert max(len(getattr(task, kind)) for task in few) == 1
        assert min(len(getattr(task, kind)) for task in tree()) > 1


@pytest.mark.parametrize(
    ("method", "steps"),
    [
        ("Finetune", [2, 2, 2]),  # 32 rows in each task, 16 at a time
        ({"name": "ER", "mix": "union", "memory": {"per_class": 4}}, [2, 3, 3]),
        ("Joint", [2, 4, 6]),
    ],
)
def test_steps_are_those_of_the_engine(method, steps, tmp_path):
    recipe = small_recipe(method, seeds=1)
    stream = recipe.build_stream()
    run = Run(stream=stream, method=build_method(method), training=recipe.training)
    assert count_steps(run) == sum(steps)
    entry = replace(entry_of(cell("Finetune", "F")), recipes=(recipe,))
    table = PaperTable(name="t/1", cells=(cell("Finetune", "F"),), entry=lambda _: entry)
    made = reproduce(table, out=tmp_path)
    frame = pd.concat(map(pd.read_parquet, unpack(tmp_path).glob("results-*.parquet")))
    rows = frame[frame.metric == "steps"].sort_values("stage")
    assert rows.value.tolist() == steps
    assert made.open_runs == 0


@pytest.mark.parametrize(
    ("seconds", "batch", "stages"),
    [
        (0.001, 16, [1, 1, 2, 10, 2, 10]),  # a warm-up, then twice
        (0.2, 16, [1, 1, 2, 10]),
        (60.0, 16, [1, 1, 1, 2]),
        (0.001, 0, [1, 1, 2, 10, 2, 10]),
        (60.0, 0, [1, 1, 1, 2]),
    ],
)
def test_slow_steps_are_timed_in_small_numbers(monkeypatch, seconds, batch, stages):
    """Steps take time by their rows; what a stage costs besides is half a step."""
    asked, rows = [], []
    recipe = small_recipe(seeds=1, batch_size=batch)
    entry = replace(entry_of(cell("Finetune", "F")), recipes=(recipe,))
    table = PaperTable(name="t/1", cells=(cell("Finetune", "F"),), entry=lambda _: entry)

    def timed(runs, streams, steps, device, lockstep):
        asked.append(steps)
        rows.append(len(streams[0].tasks[0].train))
        share = 1.0 if batch else rows[-1] / 32
        return cost_estimate.StageSeconds(
            steps * seconds * share, 0.5 * seconds * share, seconds * share
        )

    monkeypatch.setattr(cost_estimate, "time_stage", timed)
    (found,) = plan(table, device="cpu").costs
    assert asked == stages
    assert found.step_seconds == pytest.approx(seconds)
    if seconds > 1 and not batch:
        assert rows == [4] * 4  # one row of eight
    scored = 8 + 16 + 24  # test rows of the tasks learnt so far
    evaluation = 3 * 0.5 * seconds + scored / (batch or 1000) * seconds / 3
    assert found.seconds == pytest.approx(found.steps * seconds + evaluation, rel=1e-3)


def test_the_first_stage_of_a_timing_has_one_step():
    recipe = small_recipe(seeds=1)
    for steps in (1, 2, 10):
        short = cost_estimate.shorten_training(recipe.training, steps)
        assert (short.length(0), short.length(1)) == ((0, 1), (0, steps))


def test_forecasts_tell_what_they_time(table):
    heard = []
    plan(table, device="cpu", tell=lambda *words: heard.append(words))
    assert [(place, groups) for _, place, groups in heard] == [
        (i, len(heard)) for i in range(len(heard))
    ]
    assert len(heard) >= 2


@pytest.mark.parametrize(
    ("limit", "stages"),
    [
        (60.0, {"ER": [2, 1, 2, 10], "Finetune": [2, 1, 2, 10]}),  # each once, then more closely
        (1.0, {"ER": [2], "Finetune": [2]}),
        (0.0, {"ER": [2]}),  # the one of the network that seems the costliest in any case
    ],
)
def test_a_limit_is_spent_on_every_kind_first(table, monkeypatch, limit, stages):
    """A step of ER takes .3 s and one of Finetune .1, and the clock goes on by that."""
    now, asked = [0.0], {}
    monkeypatch.setattr(cost_estimate.torch_startup.time, "perf_counter", lambda: now[0])

    def timed(runs, streams, steps, device, lockstep):
        name = type(runs[0].method).__name__
        asked.setdefault(name, []).append(steps)
        step = 0.3 if name == "ER" else 0.1
        now[0] += steps * step
        return cost_estimate.StageSeconds(steps * step, 0.0, step)

    monkeypatch.setattr(cost_estimate, "time_stage", timed)
    made = plan(table, device="cpu", limit=limit)
    assert asked == stages
    for one in made.costs:
        assert one.timed is (one.label in asked)
        guessed = 0.15  # it makes one pass over a batch where ER makes two
        step = (0.3 if one.label == "ER" else 0.1) if one.timed else guessed
        assert one.step_seconds == pytest.approx(step)


def test_late_steps_count_and_the_opening_of_a_stage_does_not(monkeypatch):
    """Two phases, of which one takes twice as long a step; the first two are slow, as on CUDA."""
    now = [0.0]
    monkeypatch.setattr(cost_estimate.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(cost_estimate.torch_startup, "warm_up_seconds", lambda: 0.0)
    watch = cost_estimate._StageWatch(torch.device("cpu"), prologue=False)
    watch.entered([0], 1)
    for step in (0.1, 0.2):
        now[0] += 5.0
        for number in range(10):
            now[0] += step * (10 if number < 2 else 1)
            assert not watch.due()
    assert watch.late_step(10, now[0]) == pytest.approx(0.3)
    assert watch.late_step(7, 14.0) == 2.0  # phases of other lengths: the mean


def test_processes_share_a_forecast(table, monkeypatch):
    costs = plan(table, device="cpu", limit=0.0).costs
    total, alone = sum(one.seconds for one in costs), max(one.seconds for one in costs)
    monkeypatch.setattr(planning.os, "cpu_count", lambda: 2)
    for workers, seconds in ((1, total), (2, max(total / 2, alone)), (9, max(total / 2, alone))):
        assert planning.estimate_seconds(costs, workers, "cpu") == pytest.approx(seconds)


def test_a_quick_look_tells_the_prologue_apart():
    """All three from the one stage that is timed, for real."""
    stream = small_recipe(seeds=1).build_stream()
    method = build_method({"name": "LatentReplay", "root_iterations": 50})
    run = Run(stream=stream, method=method, model={"name": "mlp", "hidden": [8, 8]},
              training=Training(batch_size=4, epochs=1))  # fmt: skip
    found = cost_estimate.time_stage(
        [run], [cost_estimate.shrink_stream(stream, 4)], 2, torch.device("cpu"), False
    )
    assert min(found) > 0


def test_nothing_costs_nothing():
    assert estimate_costs([]) == []


# -- runs ----------------------------------------------------------------------------------------
def test_lines(table, tmp_path):
    made = reproduce(table, out=tmp_path)
    verdicts = [line.verdict for line in made.lines]
    assert verdicts[3:] == ["not comparable", "not run"]
    assert made.lines[4].reason == "quoted from elsewhere"
    assert len(made.lines[0].values) == 2
    assert 0 <= made.lines[0].ours <= 100
    assert sum(made.counts().values()) == 5


def test_budget_stops_between_stages_and_the_next_call_goes_on(table, tmp_path):
    whole = reproduce(table, out=tmp_path / "whole")
    first, second = Counting(pause=2.0), Counting()
    stopped = reproduce(table, out=tmp_path / "r", budget=2.0, callback=first)
    assert 0 < stopped.open_runs <= 4
    assert 0 < len(first.stages) < 4 * STEPS
    assert {line.verdict for line in stopped.lines} >= {"not run"}
    done = reproduce(table, out=tmp_path / "r", callback=second)
    assert done.open_runs == 0
    assert len(first.stages) + len(second.stages) == 4 * STEPS
    assert not set(first.stages) & set(second.stages)
    for one, other in zip(whole.lines, done.lines, strict=True):
        np.testing.assert_array_equal(one.values, other.values)
    third = Counting()
    reproduce(table, out=tmp_path / "r", callback=third)
    assert third.stages == []


def test_much_work_without_lockstep_is_spread_over_processes(table, tmp_path, monkeypatch):
    handed = []

    def pool(work):
        handed.append((work.workers, len(work.recipes)))
        return work.run_here(together=False)

    monkeypatch.setattr(reproduction, "find_pool", lambda name: {"processes": pool}[name])
    monkeypatch.setattr(planning.os, "cpu_count", lambda: 3)
    reproduce(table, out=tmp_path / "little", device="cpu")
    monkeypatch.setattr(planning, "MUCH_WORK", 0)
    reproduce(table, out=tmp_path / "lockstep", device="cpu")
    monkeypatch.setattr(Engine, "maps", lambda *_: False)
    reproduce(table, out=tmp_path / "alone", device="cpu", workers=1)
    reproduce(table, out=tmp_path / "one", device="cpu", cells="method=ER")
    assert not handed
    made = reproduce(table, out=tmp_path / "much", device="cpu")
    assert handed == [(3, 2)]
    assert made.open_runs == 0
    with refuses("workers"):
        reproduce(table, out=tmp_path / "wrong", workers=-1)


def test_no_budget_at_all_runs_nothing(table, tmp_path):
    made = reproduce(table, out=tmp_path, budget=0.0)
    assert made.open_runs == 4
    assert {line.verdict for line in made.lines} == {"not run"}
    assert made.lines[0].reason == "no finished run"


def test_orders_may_be_spelt_with_names_of_classes(tmp_path):
    made = small_recipe(seeds=1)
    names = made.data().classes
    order = [names[k] for k in (5, 4, 3, 2, 1, 0)]
    named = made.change(stream={**made.stream, "order": order})
    entries = {
        "forward": CellEntry(recipes=(made,),
                         measure=measures.metric("average_accuracy", made, head="single")),
        "back": CellEntry(recipes=(named,),
                      measure=measures.metric("average_accuracy", named, head="single")),
    }  # fmt: skip
    cells = tuple(Cell("fake", "1", {"method": name, "metric": "A"}, 0.5) for name in entries)
    table = PaperTable(name="fake/1", cells=cells, entry=lambda cell: entries[cell["method"]])
    lines = reproduce(table, out=tmp_path).lines
    assert [len(line.values) for line in lines] == [1, 1]
    assert lines[0].ours != lines[1].ours
    frame = read(tmp_path).frame()
    assert {*frame["order"].astype(str)} == {"", "5-4-3-2-1-0"}


def test_a_metric_after_every_stage(tmp_path):
    made = small_recipe(seeds=2)
    after = measures.metric_at_stages("forgetting", made, head="single", definition="diagonal")
    entries = {str(k): CellEntry(recipes=(made,), measure=after(k)) for k in range(STEPS + 1)}
    cells = tuple(Cell("fake", "1", {"stage": k, "metric": "F"}, 0.5) for k in entries)
    table = PaperTable(name="fake/1", cells=cells, entry=lambda cell: entries[cell["stage"]])
    lines = reproduce(table, out=tmp_path).lines
    expected = read(tmp_path).view(head="single").curve("forgetting", definition="diagonal")
    for k in range(1, STEPS):
        np.testing.assert_array_equal(lines[k].values, expected[:, k])
    assert [len(line.values) for line in lines] == [0, 2, 2, 0]  # no first, no fourth


def test_csv_keeps_other_cells(table, tmp_path):
    reproduce(table, out=tmp_path, cells="method=Finetune")
    reproduce(table, out=tmp_path, cells="method=ER|Quoted")
    frame = pd.read_csv(tmp_path / "reproduction.csv")
    assert tuple(frame.columns) == COLUMNS
    assert len(frame) == 5
    reproduce(table, out=tmp_path)
    assert len(pd.read_csv(tmp_path / "reproduction.csv")) == 5


def test_lines_of_other_settings_stay(table, tmp_path):
    path = tmp_path / "reproduction.csv"
    reproduce(table, out=tmp_path, cells="method=Quoted|ER,metric=F")
    other = replace(table, settings={"epochs": "2", "far.lr": "0.1"}, parts={"far": "Elsewhere"})
    made = reproduce(other, out=tmp_path, cells="method=Quoted")
    assert [line.settings for line in made.lines] == ["epochs=2"]
    frame = pd.read_csv(path, keep_default_na=False)
    assert frame[["cell", "settings"]].to_numpy().tolist() == [
        ["Blobs single-head ER", ""],
        ["Blobs single-head Quoted", ""],
        ["Blobs single-head Quoted", "epochs=2"],
    ]
    reproduce(other, out=tmp_path, cells="method=Quoted")  # replaced, in its place
    assert pd.read_csv(path, keep_default_na=False).equals(frame)


def test_settings_are_printed_where_there_are_any(table, tmp_path):
    made = reproduce(table, out=tmp_path, cells="method=Quoted")
    assert "Settings" not in render_lines(made.lines, "markdown")
    other = replace(table, settings={"epochs": "2"})
    made = reproduce(other, out=tmp_path, cells="method=Quoted")
    head, _, line = render_lines(made.lines, "markdown").splitlines()
    assert "Settings" in head
    assert "epochs=2" in line


def make_staged_table():
    """Accuracy after each stage, of two methods."""
    made = {name: small_recipe(name) for name in ("Finetune", "ER")}
    after = {
        name: measures.metric_at_stages("average_accuracy", recipe, head="single")
        for name, recipe in made.items()
    }

    def entry(found):
        name, stage = found["method"], int(found["stage"])
        return CellEntry(recipes=(made[name],), measure=after[name](stage - 1), tasks=stage)

    cells = tuple(cell(name, "Acc", stage=str(k)) for name in made for k in range(1, STEPS + 1))
    return PaperTable(name="fake/1", cells=cells, entry=entry)


def test_runs_end_after_the_last_stage_that_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointing, "ALWAYS_WRITTEN_BYTES", 0)  # as for a large network
    monkeypatch.setattr(checkpointing, "MOST_WRITING_SHARE", 0)
    staged, seen = make_staged_table(), Counting()
    asked = "stage=1", "stage=2|1,method=ER", ""
    for cells, ends in zip(asked, ((1, 1), (1, 2), (STEPS, STEPS)), strict=True):
        made = reproduce(staged, out=tmp_path, cells=cells, callback=seen)
        assert made.open_runs == 0
        assert all(line.values.size == 2 for line in made.lines)
        stages = dict(zip(("Finetune", "ER"), ends, strict=True))
        labels = {one.recipe: one.label.split()[0] for one in plan(staged, measure=False).runs}
        known = [(labels[recipe], stage) for recipe, _, _, stage in seen.stages]
        for label, end in stages.items():
            assert sorted(k for name, k in known if name == label) == sorted([*range(end)] * 2)
    whole = reproduce(staged, out=tmp_path / "whole")
    assert [line.ours for line in made.lines] == [line.ours for line in whole.lines]
    assert not plan(staged, out=tmp_path, measure=False).costs
    assert plan(staged, out=tmp_path, measure=False).done == 4


def test_workers_end_runs_after_the_last_stage_that_is_asked_for(tmp_path):
    seen = Counting()
    reproduce(make_staged_table(), out=tmp_path, cells="stage=1", callback=seen, workers=2)
    assert [stage for *_, stage in seen.stages] == [0] * 4


def test_the_cost_is_that_of_the_stages_that_are_asked_for():
    staged = make_staged_table()
    plans = [plan(staged, cells=cells, measure=False).runs for cells in ("stage=1", "")]
    counts = [sum(count_steps(one.run, one.stages) for one in runs) for runs in plans]
    assert counts[0] * STEPS == counts[1]


def test_stages_of_a_row_are_lines_of_their_own(table, tmp_path):
    path = tmp_path / "reproduction.csv"
    cells = tuple(replace(table.cells[-1], key={**table.cells[-1].key, "stage": str(k)})
                  for k in (1, 2, 3))  # fmt: skip
    staged = replace(table, cells=cells)
    made = reproduce(staged, out=tmp_path)
    assert pd.read_csv(path)["stage"].tolist() == [1, 2, 3]
    head = render_lines(made.lines, "markdown").splitlines()[0]
    assert head.index("Cell") < head.index("Stage") < head.index("Metric")
    whole = path.read_text()
    changed = tuple(replace(cell, value=0.75) for cell in cells)
    reproduce(replace(staged, cells=changed), out=tmp_path, cells="stage=2")
    assert pd.read_csv(path)["printed"].tolist() == [0.5, 0.75, 0.5]
    reproduce(staged, out=tmp_path, cells="stage=2")
    assert path.read_text() == whole


def test_a_file_of_something_else_is_not_overwritten(table, tmp_path):
    path = tmp_path / "reproduction.csv"
    path.write_text("name,price\nx,1\n")
    with pytest.raises(BadArgument, match="name,price"):
        reproduce(table, out=tmp_path, cells="method=Quoted")
    assert path.read_text() == "name,price\nx,1\n"


def test_a_second_call_replaces_the_lines_of_the_first(tmp_path):
    reproduce("rwalk/4", out=tmp_path)  # the layers of a network
    first = (tmp_path / "reproduction.csv").read_text()
    reproduce("rwalk/4", out=tmp_path)
    assert sorted((tmp_path / "reproduction.csv").read_text().splitlines()) == sorted(
        first.splitlines()
    )


def test_tables_may_share_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = (PaperTable(name=f"fake/{n}", folder="fake-all") for n in "12")
    assert default_out(first) == default_out(second) == Path("runs/reproduce/fake-all")
    assert default_out(replace(first, folder="")) == Path("runs/reproduce/fake-1")


def test_figures_are_written(tmp_path):
    recipe, titles = small_recipe(), []
    figure = PaperFigure(
        name="fig1", title="x", recipes=(recipe,),
        data=lambda result: pd.DataFrame({"runs": [len(result)]}), draw=lambda data: Drawn(),
    )  # fmt: skip

    class Drawn:
        def update_layout(self, title):
            titles.append(title["text"])

        def to_html(self, **options):
            return "<html><head></head><body><p>drawn</p></body></html>"

        def select_xaxes(self):
            return ()

    made = reproduce(PaperTable(name="fake/fig1", figures=(figure,)), out=tmp_path)
    assert [p.name for p in made.figures] == ["fig1.csv", "fig1.html"]
    assert "plotly.js v" in (tmp_path / "figures" / "plotly.min.js").read_text()[:1000]
    assert pd.read_csv(made.figures[0])["runs"].tolist() == [2]
    assert 'name="viewport" content="width=device-width' in made.figures[1].read_text()
    assert "settings" not in pd.read_csv(made.figures[0])
    assert made.lines == ()
    other = replace(recipe, seeds=(5,))
    more = replace(figure, recipes=(recipe, other), rows=({"method": "A"}, {"method": "B"}))
    made = reproduce(PaperTable(name="fake/fig1", figures=(more,)), out=tmp_path, cells="method=B")
    assert [run.key[1] for run in made.plan.runs] == [5]
    assert pd.read_csv(made.figures[0])["runs"].tolist() == [3]  # those of before are drawn, too
    changed = PaperTable(name="fake/fig1", figures=(figure,), settings={"epochs": "2"})
    made = reproduce(changed, out=tmp_path)
    assert pd.read_csv(made.figures[0])["settings"].tolist() == ["epochs=2"]
    assert titles == ["x", "x", "x (epochs=2)"]


def test_hostile_names_survive_every_format(table, tmp_path):
    odd = 'a|b & <i>"x", 50%_{}\\\n[red]'
    cells = (replace(table.cells[0], key={**table.cells[0].key, "setting": odd}),)
    lines = reproduce(replace(table, cells=cells), out=tmp_path).lines
    assert r"50\%\_\{\}" in render_lines(lines, "latex")
    markdown = render_lines(lines, "markdown").splitlines()
    assert len(markdown) == 3
    assert r"a\|b" in markdown[2]
    back = pd.read_csv(tmp_path / "reproduction.csv")
    assert odd in back["cell"][0]


def test_a_prologue_is_forecast_from_a_few_steps():
    seconds = {}
    for steps in (10, 100_000):  # so many would take minutes
        recipe = small_recipe({"name": "LatentReplay", "root_iterations": steps}, seeds=1)
        made = plan(one_cell(recipe), device="cpu")
        seconds[steps] = made.seconds
    assert seconds[100_000] > 10 * seconds[10]


def one_cell(recipe):
    entry = CellEntry(recipes=(recipe,), measure=measures.constant(0.0))
    cells = (Cell("fake", "1", {"method": "LR", "metric": "A"}, 0.5),)
    return PaperTable(name="fake/1", cells=cells, entry=lambda cell: entry)
