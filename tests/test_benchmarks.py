from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import engram
from benchmarks.peers import engram_side, plain_side
from benchmarks.peers.__main__ import format_table
from benchmarks.peers.__main__ import main as run_peers
from benchmarks.peers.engram_side import make_job
from benchmarks.peers.job import Job, Network, Settings, read_answers
from benchmarks.pretrained import clinc
from benchmarks.pretrained import orders as class_orders
from benchmarks.pretrained.shared_statistics import share_statistics
from benchmarks.reproduce import (
    divergence,
    first_task,
    length,
    search,
    split_mnist,
    verdicts,
)
from benchmarks.reproduce.searches import SEARCHES, Search
from benchmarks.scaling import directories
from benchmarks.scaling.__main__ import exponents
from benchmarks.scaling.axes import AXES
from benchmarks.speed import __main__ as ratios
from benchmarks.speed import entries, seconds, study, throughput
from benchmarks.speed.entries import ENTRIES
from benchmarks.speed.seconds import Stopwatches
from benchmarks.speed.throughput import Enough, Lockstep, Stopwatch, Work
from benchmarks.sweeps import simulation
from engram import methods
from engram.cli.console import read_requests
from engram.cli.execution import build_recipes
from engram.data import load
from engram.engine import loop
from engram.engine.engine import Engine
from engram.errors import BadArgument
from engram.experiments.plan import make_plans
from engram.experiments.recorder import Recorder
from engram.methods import GDumb
from engram.models.build import build
from engram.records import import_log
from engram.reproduce import choose_cells, find_table, read_cells
from engram.reproduce.coverage import shipped_coverage
from engram.reproduce.papers import iirc_paper
from engram.reproduce.papers.rwalk_paper import EMBEDDED, PAPER
from engram.reproduce.result_tables import COLUMNS, read_lines
from engram.reproduce.shipped_results import find_shipped, shipped_findings
from tests.reproduce.invented_paper import invented_table


def small_gcn():
    return throughput.gcn(per_class=10)


# -- the stopwatch -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("chunk", "each", "marks"),
    [
        (1, 0.01, [10, 20, 170]),  # ten steps say that 150 fill the asked time
        (1, 0.5, [10, 20]),  # the trial is long enough
        (200, 0.001, [200, 400, 2000]),  # it is told of 200 steps at once
    ],
)
def test_as_many_steps_are_timed_as_fill_the_time(monkeypatch, chunk, each, marks):
    watch, done = Stopwatch("cpu", seconds=1.5), 0
    clock = SimpleNamespace(perf_counter=lambda: done * each)
    monkeypatch.setattr(throughput, "time", clock)
    with contextlib.suppress(Enough):
        while done < 10_000:
            done += chunk
            watch(done, 10_000)
    assert [steps for steps, _ in watch.marks] == marks
    assert done == marks[-1]
    steps = marks[-1] - marks[-2]
    assert watch.last == (steps, pytest.approx(steps * each))


# -- the works -----------------------------------------------------------------------------------
def test_runs_of_the_graph_network_are_those_of_a_study():
    runs = small_gcn().runs(7)
    assert len({(run.stream.order[:2], run.seed) for run in runs}) == 7
    sizes = [len(run.stream.tasks[0].train) for run in runs]
    assert sizes[0] == max(sizes)
    assert Engine(runs, device="cpu").groups() == [list(range(7))]
    first = runs[0]
    assert (first.training.loss, first.training.batch_size) == ("balanced", 0)
    assert (first.training.optimizer, first.model["name"]) == ("adam", "gcn")


def test_made_tasks_have_as_many_rows_as_the_real_ones(engram_data):
    real, made = throughput.gcn(str(engram_data)), throughput.gcn()
    sizes = [[len(run.stream.tasks[0].train) for run in work.runs(5)] for work in (real, made)]
    assert sum(sizes[0]) == pytest.approx(sum(sizes[1]), rel=0.02)
    assert real.runs(1)[0].stream.data.name == "nw_ucla"


def test_plain_step_of_the_graph_network_is_the_engines():
    def uneven(run):
        """Without some rows of one class, so that class weights matter."""
        first = run.stream.tasks[0]
        tasks = (replace(first, train=first.train[5:]), *run.stream.tasks[1:])
        return replace(run, stream=replace(run.stream, tasks=tasks))

    inner = small_gcn()
    work = Work("gcn", lambda count: [uneven(run) for run in inner.runs(count)], inner.plain)
    run = work.runs(1)[0]
    counts = torch.bincount(run.stream.targets[run.stream.tasks[0].train, 0])
    assert counts.tolist() == [3, 8]

    lock = Lockstep(work, 2, "cpu", throughput.WAYS[0])
    one, net = lock.learners[0], throughput.plain_network(run, "cpu")
    before, names = one.vector.clone(), list(one.networks.layout.shapes)
    own = {f"net.{name}": value for name, value in net.named_parameters()}
    assert own.keys() == set(names)
    plain = [own[name] for name in names]  # in the order of the vector
    assert torch.equal(one.networks.layout.flatten(plain), before)
    step = throughput.plain_gcn(run, "cpu", net)
    for _ in range(4):
        step()
    lock.drive(lambda done, total: None, epochs=4)  # of one step each
    after = one.networks.layout.flatten(plain).detach()
    moved, wrong = (after - before).abs().sum(), (after - one.vector).abs().sum()
    assert moved > 1
    assert wrong < 1e-4 * moved  # Adam's first steps make much of a gradient's last digits


# -- the scripts ---------------------------------------------------------------------------------
@pytest.mark.parametrize("model", ["mlp", "gcn"])
def test_throughput_writes_a_table(model, monkeypatch, tmp_path, capsys):
    work = small_gcn() if model == "gcn" else throughput.mlp(rows=320, batch=32)
    monkeypatch.setattr(throughput, model, lambda *_: work)
    out = tmp_path / "new" / "table.json"
    asked = ["--model", model, "--runs", "1", "2", "--device", "cpu", "--seconds", "0.001"]
    throughput.main([*asked, "--out", str(out)])
    table = json.loads(out.read_text())
    assert (table["model"], table["precision"]) == (model, "float32")
    assert table["rows_per_batch"] == {"mlp": 32, "gcn": 16}[model]
    assert table["torch"] == torch.__version__
    rows = table["rows"]
    assert [(r["path"], r["runs"]) for r in rows] == [("eager", 1), ("mapped", 1), ("mapped", 2)]
    for row in rows:
        base = rows[0]["steps_per_second"]
        assert row["ratio"] == pytest.approx(row["steps_per_second"] / base, abs=2e-3)
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_summed_steps_count_every_run(monkeypatch):
    """Two runs at the pace of one make twice the steps."""
    watch = Stopwatch("cpu")
    watch.marks = [(10, 0.0), (30, 2.0)]
    monkeypatch.setattr(throughput, "time_eager", lambda *_: watch)
    monkeypatch.setattr(throughput, "time_lockstep", lambda *_: watch)
    rows = list(throughput.figures(small_gcn(), [1, 2], "cpu"))
    assert [row["steps_per_second"] for row in rows] == [10, 10, 20]
    assert [row["ratio"] for row in rows] == [1, 1, 2]


def test_noise_takes_no_folder(capsys):
    with pytest.raises(SystemExit):
        throughput.main(["--model", "mlp", "--data", "somewhere"])
    assert "--data" in capsys.readouterr().err


@pytest.mark.parametrize(("count", "found"), [(1, [0]), (3, [0, 3, 6]), (20, list(range(10)))])
def test_parts_are_spread(count, found):
    assert study.spread(range(10), count) == found


def test_part_of_a_study(monkeypatch):
    made = []
    monkeypatch.setattr(study, "execute", lambda runs, **how: made.append((runs, how)))
    found = study.measure(invented_table(), part=2, cells="method=ER", device="cpu")
    ((runs, how),) = made
    assert {run.run.method.__class__.__name__ for run in runs} == {"ER"}
    assert how["device"] == "cpu"
    assert found["study"] == "fake/1"
    assert (found["whole"]["runs"], found["part"]["runs"]) == (4, 2)
    assert found["whole"]["forecast_s"] >= 0 < found["part"]["forecast_s"]


def test_study_is_run_and_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(study, "find_table", lambda *_, **__: invented_table())
    out = tmp_path / "study.json"
    study.main(["fake/1", "--part", "2", "--device", "cpu", "--out", str(out)])
    part = json.loads(out.read_text())["part"]
    assert part["runs"] == 2
    assert part["measured_s"] > 0
    assert "part:  2 runs" in capsys.readouterr().out


def test_study_without_runs():
    with pytest.raises(BadArgument, match="can be made here"):
        study.measure("cgl/5", part=1, device="cpu")


# -- methods side by side ------------------------------------------------------------------------
def test_methods_side_by_side_on_small_digits(monkeypatch):
    brief = {type(one): one for one in split_mnist.METHODS} | {GDumb: GDumb(epochs=10)}
    pairs = zip(brief.values(), split_mnist.METHODS.values(), strict=True)
    monkeypatch.setattr(split_mnist, "METHODS", dict(pairs))
    table = split_mnist.side_by_side(load("digits"), seeds=2, epochs=3)
    assert list(table["method"]) == ["DERpp", "ERACE", "GDumb", "SLDA", "ER", "LUCIR", "BiC"]
    each = table[["seed 0", "seed 1"]].to_numpy()
    assert table["accuracy"].to_numpy() == pytest.approx(each.mean(1), abs=1e-4)
    assert (each > 0.5).all()


def test_the_kept_table_reaches_what_it_should():
    kept = pd.read_csv(Path(split_mnist.__file__).with_suffix(".csv"))
    assert list(kept["method"]) == [type(one).__name__ for one in split_mnist.METHODS]
    assert (kept["accuracy"] >= kept["at least"]).all()


# -- searches ------------------------------------------------------------------------------------
def test_readings_side_by_side(tmp_path, monkeypatch, capsys):
    """Trials share runs; a budget of nothing shows what is there; only settings differ."""
    table = find_table("rwalk/1", embedded=True, assignments=["seeds=1", "mnist.epochs=1"])
    cells = "method=Vanilla-S,metric=A(%)|F"
    asked = []

    def find(name, assignments):
        asked.append(assignments)
        return table

    monkeypatch.setattr(search, "find_table", find)
    one = Search("rwalk/1", cells, {"plain": (), "same": ("mix=union",)}, common=("seeds=1",))
    given = ["one", "--out", str(tmp_path / "runs"), "--device", "cpu", "--set", "batch_size=32"]
    search.main([*given, "--budget", "0s"], {"one": one})
    assert "nothing is recorded" in capsys.readouterr().out
    search.main([*given, "--save", str(tmp_path / "new" / "found.csv")], {"one": one})
    assert asked[:2] == [["seeds=1", "batch_size=32"], ["seeds=1", "mix=union", "batch_size=32"]]
    found = pd.read_csv(tmp_path / "new" / "found.csv")
    assert list(found.columns) == list(search.COLUMNS)
    assert found["trial"].tolist() == ["plain", "plain", "same", "same"]
    assert found["ours"][:2].tolist() == found["ours"][2:].tolist()
    assert found["repetitions"].tolist() == [1] * 4
    said = capsys.readouterr().out
    assert "2 trials" in said
    count = (found["verdict"][:2] == "agrees").sum()
    assert (
        f"in none of 2 finished trials do all 2 numbers agree; most: {count} in plain, same" in said
    )
    with pytest.raises(BadArgument, match="trial: unknown name 'plane'"):
        search.plans_of(one, None, only=["plane"])


@pytest.mark.parametrize("name", list(SEARCHES))
def test_trials_are_presets(name):
    """Every assignment of a search is one that the preset takes."""
    asked = SEARCHES[name]
    for trial in asked.trials.values():
        table = find_table(asked.table, assignments=[*asked.common, *trial])
        chosen = choose_cells(table.cells, asked.cells)
        assert all(not table.entry(cell).missing for cell in chosen)


# -- where the seconds go ------------------------------------------------------------------------
def test_parts_count_without_what_they_call(monkeypatch):
    now = iter([0.0, 1.0, 4.0, 4.0, 10.0, 10.0])  # outer 0 to 10, inner 1 to 4
    monkeypatch.setattr(seconds, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    watches = Stopwatches()
    with watches.part("outer"), watches.part("inner"):
        pass
    assert [(r["part"], r["host_s"]) for r in watches.table()] == [("outer", 7.0), ("inner", 3.0)]


def test_seconds_of_a_reproduction(tmp_path, capsys):
    plain = loop.evaluate
    asked = ["rwalk/1", "--embedded", "--cells", "setting=single-head,method=Vanilla,metric=F",
             "--set", "mnist.epochs=1", "seeds=1", "--device", "cpu"]  # fmt: skip
    out, csv = tmp_path / "new" / "found.json", tmp_path / "lines.csv"
    seconds.main([*asked, "--out", str(tmp_path / "runs"), "--save", str(out), "--csv", str(csv)])
    found = json.loads(out.read_text())
    parts = {row["part"]: row for row in found["parts"]}
    assert parts.keys() == seconds.PARTS.keys() | {seconds.REST}
    assert parts["evaluation"]["calls"] == 5  # tasks
    assert parts["verdicts"]["calls"] == 1
    total = sum(row["host_s"] + row["kernels_s"] for row in found["parts"])
    assert total == pytest.approx(found["wall_s"], abs=0.2)
    assert (found["runs"], len(pd.read_csv(csv))) == (1, 1)
    assert "in all, 1 runs" in capsys.readouterr().out
    assert loop.evaluate is plain  # the stopwatches are gone


# -- verdicts ------------------------------------------------------------------------------------
def test_counts_on_the_page_are_those_of_the_tables():
    page = Path(__file__).parents[1] / "docs" / "papers.md"
    text = page.read_text()
    assert verdicts.renewed(text) == text, "python -m benchmarks.reproduce.verdicts --write PAGE"
    assert "| rwalk/4 | constants | 16 | 16 | 0 | 0 | 0 | 0 | 0 |" in text
    with pytest.raises(BadArgument, match="page: expected one with"):
        verdicts.renewed("no comments")


def test_the_package_has_todays_results():
    files = {file.name: file.read_text() for file in verdicts.SHIPPED.glob("*.csv")}
    assert files == verdicts.shipped(), "verdicts --ship"
    found = shipped_coverage("confer")
    assert found["confer/28"].made == found["confer/28"].cells == 78
    assert "confer/3" not in found
    assert set(shipped_findings("cnd")["finding"]) == set(recorded_findings("cnd"))
    first = read_lines(verdicts.HERE / "confer-fer-2013.csv").query("table == '28'").iloc[0]
    (own,) = [
        c for c in read_cells("confer", "28") if (c.name, c["stage"]) == (first.cell, first.stage)
    ]
    assert find_shipped(own)[1:] == (first.verdict, first.settings)
    assert float(find_shipped(own)[0]) == pytest.approx(float(first.ours), rel=1e-3)


def recorded_findings(paper):
    return pd.read_csv(verdicts.HERE / f"{paper}-findings.csv")["finding"]


def test_divergence_along_runs(tmp_path, monkeypatch):
    """For a small share of the change the form of the whole Fisher is exact."""
    monkeypatch.setattr(divergence, "SCALES", (0.01,))
    preset = replace(EMBEDDED, mnist=replace(EMBEDDED.mnist, epochs=1), seeds=1)
    table = divergence.measure_ratios(preset, None, tmp_path, ("Vanilla",))
    assert table["stage"].tolist() == [2, 3, 4, 5]
    assert table["full"].tolist() == pytest.approx([1] * 4, abs=0.1)
    recorded = pd.read_csv(verdicts.HERE / "rwalk-divergence.csv")
    assert list(recorded) == list(table)


@pytest.mark.parametrize("paper", ["rwalk", "cgl"])
def test_every_cell_has_a_verdict(paper):
    """Those that were not run say why, as do those that differ."""
    for cells in (
        read_cells(paper, str(number)) for number in range(1, 6 if paper == "cgl" else 5)
    ):
        lines = read_lines(verdicts.HERE / f"{paper}-{cells[0].table}.csv")
        kept = lines.drop_duplicates(["cell", "stage", "metric"])
        assert len(kept) == len(cells)
        printed = sorted(kept["printed"].astype(float))
        assert printed == pytest.approx(sorted(cell.value for cell in cells))
        unlike = lines[lines["verdict"] != "agrees"]
        assert (unlike["reason"] != "").all()


def test_counts_follow_the_files(tmp_path):
    assert len(verdicts.markdown(tmp_path).splitlines()) == 14  # heads alone
    head = ",".join(COLUMNS)
    row = "rwalk,1,MNIST EWC,,F,1,,,2,1,,,differs,variant; data subset,"
    (tmp_path / "rwalk-1.csv").write_text(f"{head}\n{row}\n")
    text = verdicts.markdown(tmp_path)
    assert "| rwalk/1 | trained | 78 | 0 | 1 | 0 | 0 | 77 | 0 |" in text
    assert "| variant | 1 |" in text
    assert "| data subset | 1 |" in text


def test_reasons_of_recorded_lines_follow_the_code():
    lines = read_lines(verdicts.HERE / "rwalk-1.csv").query("cell.str.contains('EWC-S')").head(2)
    old = ["epochs unstated; variant; 2 of 5 runs", "epochs unstated"]
    found = verdicts.renewed_reasons(lines.assign(reason=old, verdict=["differs", "not run"]))
    first, second = found["reason"]
    assert first.endswith("; 2 of 5 runs")
    assert "epochs unstated" not in first
    assert second == old[1]  # why a cell was not run is no reason of the paper's
    assert found.drop(columns=["reason", "verdict"]).equals(
        lines.drop(columns=["reason", "verdict"])
    )


# -- scaling -------------------------------------------------------------------------------------
def test_what_is_published_of_scaling_is_what_would_be_measured():
    file = Path(__file__).parents[1] / "benchmarks/scaling/cpu.json"
    found = json.loads(file.read_text())
    assert {axis: tuple(p["size"] for p in one["points"]) for axis, one in found.items()} == {
        axis: one.sizes for axis, one in AXES.items()
    }
    for one in found.values():
        assert one["exponents"] == exponents(one["points"])


def test_an_axis_of_scaling_does_its_work():
    parts = []
    timer = lambda part: contextlib.nullcontext(parts.append(part))  # noqa: E731
    AXES["runs"].work(2, timer)
    assert parts == ["run", "read", "report"]


# -- directories of many runs --------------------------------------------------------------------
@pytest.mark.parametrize("kind", list(directories.KINDS))
def test_generated_directory_is_one_of_a_finished_sweep(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(directories, "GROUP", 4)
    seeds = 3 if kind == "seeds" else 1
    out = tmp_path / "run"
    directories.fill(out, 30, seeds)
    result = engram.read(out)
    assert len(result) == 30
    assert not result.problems
    assert len(result.recipes) == 30 // seeds
    assert not np.isnan(result.metric("average_accuracy")).any()
    assert len(set(result.metric("average_accuracy"))) > 5  # runs differ
    (request,) = read_requests(out)
    plans = make_plans(build_recipes(request.recipes))
    assert not Recorder(plans, out, device="cpu").open  # nothing is left to train
    files = directories.count_files(out)
    assert files["recipes/"] == files["items"] == 30 // seeds
    assert files["all"] == sum(files.values()) - files["all"]


def test_commands_are_measured(tmp_path):
    directories.fill(tmp_path / "run", 5, 1)
    found = directories.read(["metrics", str(tmp_path / "run")])
    assert found["cpu"] > 0
    assert 50 < found["MiB"] < 5000
    with pytest.raises(RuntimeError, match="engram metrics"):
        directories.read(["metrics", str(tmp_path / "absent")])


def test_growth_of_readers():
    points = [
        {"size": 10, "metrics": {"cpu": 1.0, "MiB": 100}},
        {"size": 100, "metrics": {"cpu": 10.0, "MiB": 100}},
    ]
    assert directories.fit(points) == {"metrics cpu": 1.0, "metrics MiB": 0.0}
    assert directories.fit(points[:1]) == {}


def test_what_is_published_of_directories_names_the_readers():
    found = json.loads(Path(directories.__file__).with_suffix(".json").read_text())
    for kind in directories.KINDS:
        assert found[kind]["exponents"] == directories.fit(found[kind]["points"])


# -- simulated pools -----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def planned():
    return simulation.plan(120)


def simulated(planned, kind, trouble, minutes=5.0):
    groups = planned.divide(kind, 6)
    costs = simulation.measure_driver(groups, planned.contents)
    return simulation.simulate(groups, 6, minutes, trouble, costs, planning=1.0)


@pytest.mark.parametrize("kind", ["alike", "alone"])
def test_simulated_sweep_meets_its_bound(planned, kind):
    usual = simulated(planned, kind, simulation.Trouble())
    assert usual["deaths"] == usual["repeated"] == usual["given_up"] == 0
    assert usual["attempts"] == usual["groups"] == len(planned.divide(kind, 6))
    assert 1.0 <= usual["ratio"] < 3.0
    slow = simulated(planned, kind, simulation.Trouble(stragglers=0.5))
    assert slow["hours"] > 1.3 * usual["hours"]
    disks = simulated(planned, kind, simulation.Trouble(slow_disks=1.0, disk_factor=2000.0))
    assert disks["hours"] > usual["hours"]


def test_simulated_deaths_cost_what_was_not_saved(planned):
    found = simulated(planned, "alone", simulation.Trouble(hours_to_death=0.2))
    assert found["deaths"] > 10
    assert 0 < found["repeated"] < 0.2
    assert found["attempts"] == found["groups"] + found["deaths"] - found["given_up"]
    # a shorter life: the retries of the planner give runs up that lose too many workers
    worse = simulated(planned, "alone", simulation.Trouble(hours_to_death=0.02))
    assert worse["given_up"] > found["given_up"]


def test_what_is_published_of_the_simulation_is_what_would_be_simulated():
    found = json.loads(Path(simulation.__file__).with_suffix(".json").read_text())
    assert [(row["kind"], row["trouble"]) for row in found["rows"]] == [
        (kind, trouble) for kind in simulation.KINDS for trouble in simulation.TROUBLES
    ]


# -- ratios against what is recorded -------------------------------------------------------------
@pytest.fixture
def bench(monkeypatch, tmp_path):
    """The command with two entries, whose work says how long it takes."""
    spent = {"quick": 1.0, "steady": 1.0}
    monkeypatch.setattr(ratios, "measure_cpu", lambda work: work())
    monkeypatch.setattr(ratios, "images", lambda: SimpleNamespace(name="mnist"))
    entries = {
        name: ratios.Entry(lambda name=name: (lambda: spent[name], lambda: 1.0)) for name in spent
    }
    file = tmp_path / "recorded.json"
    run = lambda *words: ratios.main(["--recorded", str(file), *words], entries)  # noqa: E731
    return run, spent, file


def test_what_became_slower_is_named(bench, capsys):
    run, spent, file = bench
    assert run("--record") == 0
    assert json.loads(file.read_text())["mnist"]["quick"]["band"] == ratios.LEAST_BAND
    assert run() == 0
    spent["quick"] = 1.0 + ratios.LEAST_BAND + 0.01
    assert run() == 1
    said = capsys.readouterr().out
    assert "slower than recorded: quick\n" in said
    assert run("--entries", "steady") == 0
    assert run("--record") == 0  # it is accepted as it is now
    assert run() == 0
    lines = pd.read_csv(file.with_name(ratios.HISTORY))
    assert lines["ratio"].tolist() == [1.0, 1.0, 1.06, 1.0]
    assert tuple(lines) == ratios.COLUMNS
    spent["quick"] = 0.5
    assert run() == 0
    assert "faster" in capsys.readouterr().out


def test_recorded_entries_exist():
    lines = pd.read_csv(ratios.RECORDED.with_name(ratios.HISTORY))
    assert tuple(lines) == ratios.COLUMNS
    last = lines.drop_duplicates(["data", "entry"], keep="last").set_index(["data", "entry"])
    for data, known in json.loads(ratios.RECORDED.read_text()).items():
        assert data in ("mnist", "digits")
        own = known.keys() - {"torch", "machine"}
        assert own <= ENTRIES.keys()
        assert {name: last.loc[(data, name), "ratio"] for name in own} == {
            name: known[name]["ratio"] for name in own
        }


@pytest.mark.parametrize("method", [name for name, one in ENTRIES.items() if one.usual])
def test_hand_written_loops_learn_what_engram_learns(method, monkeypatch):
    monkeypatch.setattr(entries, "epochs", lambda: 5)
    monkeypatch.setattr(entries, "images", lambda: load("digits"))
    entries.split_stream.cache_clear()
    ours, theirs = ENTRIES[method].pair()
    result, found = ours(), theirs()
    entries.split_stream.cache_clear()
    expected = pytest.approx(result.metric("average_accuracy")[0], abs=0.12)
    if isinstance(found, engram.Result):  # the same run, not recorded
        assert found.metric("average_accuracy")[0] == expected
        return
    tasks = result.matrix.shape[-1]
    assert len(found) == tasks * (tasks + 1) / 2
    assert sum(found[-tasks:]) / tasks == expected


# -- how long a task is trained ------------------------------------------------------------------
def test_the_length_of_a_task_by_the_rule(tmp_path, capsys):
    """Lengths in turn until one gains too little; the last line says which."""
    given = ["MNIST", "--seeds", "1", "--device", "cpu", "--out", str(tmp_path / "runs")]
    save = tmp_path / "new" / "length.csv"
    length.main([*given, "--lengths", "1", "2", "3", "--save", str(save)], EMBEDDED)
    found = pd.read_csv(save)
    values = length.means(found)
    chosen = length.decide(values)
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith(f"{chosen or 3} epochs: the {'next' if chosen else 'longest'}")
    assert chosen is None or list(values)[-2:][0] == chosen  # it stopped there
    assert found["accuracy"].between(50, 100).all()
    assert length.recipe_of(EMBEDDED, "MNIST", 2).stream["valid"] == length.VALID
    slim = length.recipe_of(PAPER, length.TABLE_2, 7)
    assert (slim.model["name"], slim.training.epochs) == ("resnet18_slim", 7)
    assert slim.stream["classes_per_task"] == 5
    assert length.decide({1: 70.0, 2: 70.2, 5: 70.25, 10: 75.0}) == 2
    with pytest.raises(BadArgument, match="lengths: expected numbers of epochs that grow"):
        length.main([*given, "--lengths", "2", "1"], EMBEDDED)


def test_the_first_task_under_a_schedule(capsys):
    """Drawn shapes and a network of two layers in place of CIFAR-100 and half a ResNet."""
    first_task.main(["--set", "cifar.model=mlp"], iirc_paper.EMBEDDED)
    said = capsys.readouterr().out
    assert re.fullmatch(r"order 0: 0\.\d{3} after \d+ epochs\n", said)
    whole = iirc_paper.IIRCPreset(cifar=replace(iirc_paper.DRAWN, model="mlp"), cuts=0)
    assert first_task.first_task(whole, 0)[1] == 20  # no cut ends it
    made = iirc_paper.recipe(first_task.small(iirc_paper.PAPER), "IIRC-CIFAR", "ER")
    assert made.stream["data_options"]["resize"] == 16
    net = first_task.half((3, 16, 16))
    assert sum(p.numel() for p in net.parameters()) < 130_000


# -- other libraries -----------------------------------------------------------------------------
@pytest.fixture
def peer_job():
    settings = Settings(
        methods=("Finetune", "ER"), seeds=2, epochs=6, memory=40, hidden=(16,), lr=0.3
    )
    return make_job("digits", settings)


def test_a_job_gives_every_library_the_same_start(peer_job, tmp_path):
    peer_job.write(tmp_path)
    again = Job.read(tmp_path)
    assert again.settings == peer_job.settings
    data = load("digits")
    for seed in range(2):
        order, labels = again.arrays["order"][seed], again.labels(seed)
        rows = again.rows(seed, 1, "train")
        assert set(data.labels[rows].tolist()) == set(order[2:4].tolist())
        assert set(labels[rows].tolist()) == {2, 3}
        made = build({"name": "mlp", "hidden": [16]}, sample_shape=(64,), classes=10, seed=seed)
        x = again.x[:5]
        assert torch.equal(Network(again.layers(seed))(x), made(x).logits)


def test_engram_and_a_plain_loop_learn_the_same_job(peer_job):
    for train in (engram_side.train, plain_side.train):
        matrix = train(peer_job, "ER", 0)
        assert [len(row) for row in matrix] == [1, 2, 3, 4, 5]
        assert min(row[-1] for row in matrix) > 0.7, "each task when it was learnt"


def test_peers_print_a_table_and_a_file_that_is_imported(tmp_path, capsys):
    path = tmp_path / "peers.csv"
    words = ["--seeds", "2", "--epochs", "1", "--methods", "Finetune", "--out", str(path)]
    answers = run_peers(words)
    told = capsys.readouterr().out
    assert "| Finetune | Avalanche | not run: no --avalanche |" in told
    assert "| Finetune | Mammoth | not run: no --mammoth and --mammoth-source |" in told
    ours = [one for one in answers if one.library == "Engram"]
    result = import_log("csv", path)
    assert result.labels == ["Finetune (Engram)", "Finetune (plain loop)"]
    values = result.select(label="Finetune (Engram)").metric("average_accuracy")
    assert values.tolist() == pytest.approx([one.average for one in ours], abs=1e-5)


def test_an_answer_among_other_prints_is_found():
    line = '{"library": "A", "method": "ER", "seed": 1, "matrix": [[0.5]], "seconds": 2.0}'
    (found,) = read_answers(f"epoch 1\n\npeer-answer {line}\nend")
    assert (found.method, found.average) == ("ER", 0.5)
    broken = replace(found, matrix=[], error="ValueError: no")
    assert "ValueError: no" in format_table([broken])
    assert "diverged" in format_table([replace(found, matrix=[[float("nan")]])])
    assert "0.500 ± 0.000 (1 failed: ValueError: no)" in format_table([found, broken])


def test_novelty_of_texts_by_stage(tmp_path, monkeypatch):
    monkeypatch.setattr(clinc, "TASKS", 2)
    data, other = engram.load("requests", per_class=10), engram.load("chatter", rows=50)
    outside = replace(other, valid=other.test, test=other.train[:1])
    model = {"name": "transformer", "width": 16, "depth": 1, "freeze": True}
    whole, some = (clinc.choose_rows(data, rows, tested=rows) for rows in (0, 3))
    assert len(some.train) == 3 * data.n_classes
    assert len(some.test) == 2 * data.n_classes  # all that there are
    late = [clinc.OutOfScope(1)]
    lines = clinc.measure(some, outside, 0, [methods.NCM()], model=model, probes=late)
    assert lines["rows"].tolist() == [3, 3]
    assert lines["auroc"].isna().tolist() == [True, False]
    for order in (0, 1, 1):
        lines = clinc.measure(whole, outside, order, [methods.NCM()], model=model)
        clinc.save(lines, tmp_path / "lines.csv")
    found = pd.read_csv(tmp_path / "lines.csv")
    assert found[["order", "tasks"]].to_numpy().tolist() == [[0, 1], [0, 2], [1, 1], [1, 2]]
    assert found["accuracy"].between(0.1, 1).all()
    assert found["forgetting"].between(-1, 1).all()
    assert found[["auroc", "softmax_auroc"]].stack().between(0, 1).all()
    assert "NCM" in clinc.summarise(found)


def test_orders_of_classes_go_on_where_they_ended(tmp_path, capsys):
    out = tmp_path / "orders.csv"
    some = ["--methods", "NCM,SLDA", "--tasks", "5", "--out", str(out)]
    class_orders.main([*some, "--orders", "1"])
    first = out.read_text(encoding="utf-8")
    class_orders.main([*some, "--orders", "2", "--check", "1"])
    assert out.read_text(encoding="utf-8").startswith(first)
    found = pd.read_csv(out)
    assert list(found["method"]) == ["NCM", "SLDA"] * 2
    assert list(found["order"]) == [0, 0, 1, 1]
    assert found["final"].between(0.5, 1).all()
    assert found["stages"].str.split().str.len().eq(5).all()
    said = capsys.readouterr().out
    assert "SLDA: 2 orders" in said
    assert "SLDA: 1 orders differ from runs by 0" in said


@pytest.mark.parametrize(
    "method",
    [methods.SLDA(relative=True, shrinkage=0.1), methods.RanPAC(width=40),
     methods.RanPAC(width=40, ridge=10.0)],
)  # fmt: skip
def test_shared_statistics_answer_as_runs(method):
    data = class_orders.make_features("digits", {"name": "mlp", "hidden": [30]})
    shared = share_statistics(data, method)
    assert class_orders.check_statistics(shared, data, method, orders=2, per_task=2) < 1e-9
    with pytest.raises(SystemExit, match="differ from runs"):
        class_orders.check_statistics(
            share_statistics(replace(data, y=data.y.roll(1, 0)), method), data, method, 1, 2
        )
    assert share_statistics(data, methods.NCM()) is None
