from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from engram.data import Data, load
from engram.engine.engine import Engine
from engram.errors import BadArgument
from engram.experiments import make_plans
from engram.metrics.detection import auroc
from engram.models import build as build_model
from engram.records import read
from engram.reproduce import (
    choose_cells,
    default_out,
    find_table,
    measures,
    plan,
    read_cells,
    reproduce,
)
from engram.reproduce.paper_table import OOD_SET_UNSTATED
from engram.reproduce.papers import cnd_paper
from engram.reproduce.papers.cnd_paper import (
    EMBEDDED,
    PAPER,
    TINY,
    CNDRow,
    list_rows,
    recipe,
)
from engram.reproduce.papers.paper_base import assign_settings
from engram.reproduce.reproduction import select_by_recipe
from tests.refusals import refuses

QUICK = ("seeds=2", "epochs=1", "tiny.options.per_class=20", "features=60", "few=90",
         "detectors={Softmax: {}, ODIN: {}, B1: {}, B2: {}}",
         "tiny.outside.data_options.per_class=10",
         "tuned={ODIN: {epsilon: [0.0, 0.01]}}")  # fmt: skip
BY_TASK = {"memory.shared_by": "task"}
CELLS = "method=FineTune|ER-25s,nd_method=Softmax|ODIN"


def row(method, **more):
    return CNDRow(dataset=TINY, method=method, **more)


def test_every_cell_has_a_way_or_a_reason():
    table = find_table("cnd/all")
    tiny = [table.entry(cell) for cell in table.cells if cell["dataset"] == TINY]
    eight = [table.entry(cell) for cell in table.cells if cell["dataset"] != TINY]
    assert (len(tiny), len(eight)) == (1217, 378)
    assert all(e.recipes and e.measure and e.reasons and not e.missing for e in tiny)
    assert {(r.stream["kind"], r.model["name"]) for e in eight for r in e.recipes} == {
        ("eight_task", "alexnet")
    }
    assert (
        len({r.label for e in tiny for r in e.recipes}) == len(list_rows(TINY)) - 1
    )  # the control
    of_eight = {f.name for f in table.figures if "(Eight-Task)" in f.title}
    assert of_eight == {"fig2", "fig12", "fig17", "fig22"}
    assert {f"fig{n}" for n in range(2, 35)} <= {f.name for f in table.figures}


@pytest.mark.parametrize(
    ("method", "kind", "values"),
    [
        ("FineTune", "Finetune", {}),
        ("LwF", "LwF", {"strength": 1.0, "temperature": 2.0, "scale": False}),
        ("MAS", "MAS", {"importance": "batch_abs", "half": True}),
        (
            "ER-25s",
            "ER",
            {**BY_TASK, "memory.total": 4500, "mix": "paired", "reduce": "sum"},
        ),
        (
            "SSIL-50s",
            "SSIL",
            {**BY_TASK, "memory.total": 9000, "kd_inputs": "all"},
        ),
    ],
)
def test_rows(method, kind, values):
    made = recipe(PAPER, row(method))
    assert type(made.method).__name__ == kind
    for path, value in values.items():
        found = made.method
        for name in path.split("."):
            found = getattr(found, name)
        assert found == value, path
    shared = method.startswith(("ER", "SSIL"))
    assert made.stream["kind"] == "tinyimagenet_seq"
    assert made.stream.get("shared_head", False) == shared
    assert made.training.scope == ("seen" if shared else "own")
    training = made.training
    assert (training.steps_per_epoch, training.batch_size) == (125, 64)
    assert (training.epochs, training.patience, training.plateau_patience) == (100, 20, 10)
    assert made.model["head"] == {"name": "linear", "bias": False}


def test_the_proxy_is_trained_with_both_schedules():
    """Same rows, network and methods; what differs is how patience is counted."""
    table = find_table("cnd/schedule")
    by_label = {one.label: one for one in table.recipes}
    long, short = (by_label[f"LwF (CIFAR-100, LeNet{more})"] for more in ("", ", short"))
    assert (long.stream, long.model, long.method) == (short.stream, short.model, short.method)
    assert len(long.stream["order"]) == 20
    fields = ("steps_per_epoch", "epochs", "patience", "plateau_patience")
    values = [[getattr(one.training, name) for name in fields] for one in (long, short)]
    assert values == [[31, 100, 20, 10], [0, 30, 5, 3]]
    assert by_label["ER-25s (CIFAR-100, LeNet, cosine)"].method.memory.total == 90  # 5.6 %
    assert "schedule" not in {figure.name for figure in find_table("cnd/all").figures}


def test_exemplars_may_be_the_papers_share_of_the_rows():
    preset = assign_settings(PAPER, ["tiny.share=0.2"])
    totals = [recipe(preset, row(method)).method.memory.total for method in ("ER-25s", "SSIL-50s")]
    assert totals == [900, 1800]
    with refuses("share"):
        assign_settings(PAPER, ["tiny.share=0"])


def test_a_sequence_that_is_not_here_is_named(tmp_path):
    planned = plan(find_table("cnd/1"), tmp_path, cells="dataset=Eight-Task", measure=False)
    assert len(planned.entries) == 6
    assert all("eight_task was not found" in entry.missing for entry in planned.entries)


def test_the_protocol_on_other_data():
    moved = PAPER.tiny.on(load("shapes", kinds=5, orphans=0, per_class=5), "shapes")
    assert (moved.stages, moved.classes_per_task, moved.outside) == (10, 2, None)
    made = recipe(replace(PAPER, tiny=moved), row("ER-25s"))
    assert (made.stream["kind"], made.stream["classes_per_task"]) == ("class_incremental", 2)
    assert made.model == recipe(PAPER, row("ER-25s")).model


def test_domains_stand_for_the_eight_data_sets():
    """Cells of Eight-Task are then about them, by the same sequence of domains; no others."""
    names = {"domain": ("scenes", "flowers", "letters")}
    domains = torch.arange(6).repeat(20) // 2
    data = Data.from_arrays(
        torch.zeros(120, 3, 32, 32), torch.arange(6).repeat(20), name="three",
        attribute_names=names, attributes={"domain": domains},
    )  # fmt: skip
    moved = PAPER.on(data)
    assert moved.absent == {TINY, cnd_paper.PROXY}
    assert (moved.eight.data, moved.eight.sequence, moved.eight.stages) == (
        "three",
        "eight_task",
        3,
    )
    last, *_ = choose_cells(read_cells("cnd", "1"), "dataset=Eight-Task")
    assert (last["stage"], cnd_paper.make_entries(moved)(last).tasks) == ("8", 3)
    made = recipe(moved, CNDRow(dataset="Eight-Task", method="LwF", backbone="AlexNet"))
    assert made.label == "LwF (three, AlexNet)"
    assert [task.domain for task in made.build_stream(data)] == [
        f"stand-in for {name}" for name in ("flowers", "scenes", "letters")
    ]


def test_last_layers():
    cell = next(c for c in read_cells("cnd", "3") if c["method"] == "ER-25s")
    (made,) = find_table("cnd/3").entry(cell).recipes
    assert made.model["head"]["name"] == "cosine"
    assert made.model["embedding"] == 200  # in front of normalised heads alone
    assert "embedding" not in recipe(PAPER, row("ER-25s")).model
    names = [probe.name for probe in made.probes]
    assert names[:3] == ["features", "softmax", "b1"]
    assert names[3:] == ["tuned b2 logits=cosine own=nearest over step, neighbours"]
    biased = recipe(PAPER, row("FineTune", head="biased"))
    assert biased.model["head"] == {"name": "linear"}
    names = {type(probe).__name__ for probe in biased.probes}
    assert "Softmax" in names
    assert not names & {"B1", "B2"}


def test_what_is_wanted_most_is_trained_first():
    planned = plan(find_table("cnd/all", embedded=True, assignments=["seeds=1"]), measure=False)
    short = [one.label.replace("shapes, ", "") for one in planned.runs]
    assert short[:7] == [
        f"{name} (ResNet)"
        for name in ("FineTune", "LwF", "MAS", "ER-25s", "SSIL-25s", "ER-50s", "SSIL-50s")
    ]
    assert short[7:11] == [
        "FineTune (VGG)", "LwF (VGG)", "MAS (VGG)", "FineTune (ResNet, biased)",
    ]  # fmt: skip
    assert len(short) == 15
    assert not any(entry.missing for entry in planned.entries)
    assert len(planned.cells) == 1217


def test_detectors_are_tuned_where_there_is_an_outside_set():
    names = [probe.name for probe in recipe(PAPER, row("LwF")).probes]
    assert "tuned odin over epsilon" in names
    assert any("combine=logistic" in name for name in names)
    assert recipe(PAPER, row("LwF")).outside["data"] == "cifar100"
    bare = recipe(assign_settings(PAPER, ["tiny.outside=null"]), row("LwF"))
    assert {"odin", "vae"} <= {probe.name for probe in bare.probes}
    table = find_table("cnd/4")
    cell = choose_cells(table.cells, "nd_method=ODIN,dataset=TinyImageNet")[0]
    assert OOD_SET_UNSTATED in table.entry(cell).reasons
    same = find_table("cnd/4", assignments=["tiny.outside.data=cifar10"])
    assert OOD_SET_UNSTATED not in same.entry(cell).reasons


@pytest.mark.parametrize("backbone", ["ResNet", "VGG"])
def test_layers_that_mahalanobis_reads_are_there(backbone):
    made = recipe(assign_settings(EMBEDDED, ["seeds=1"]), row("FineTune", backbone=backbone))
    (one,) = make_plans([made])
    learner = Engine([one.run], device="cpu").learner(one.run)
    for probe in one.probes.values():
        probe.check(learner)
    layers = PAPER.tiny.layers[backbone]
    net = build_model(PAPER.tiny.models[backbone], sample_shape=(3, 56, 56), classes=2, seed=0)
    assert {*layers} <= {name for name, _ in net.backbone.named_modules()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("cnd")
    table = find_table("cnd/4", embedded=True, assignments=QUICK)
    return reproduce(table, out=out, cells=CELLS, device="cpu")


def test_numbers_are_those_of_the_records(made):
    table = read(made.out).novelty()
    table = table.replace({"detector": {"tuned odin over epsilon": "odin"}})
    known = table.set_index(["label", "detector", "metric", "stage"])["mean"]
    metrics = {"DER_F_vs_N": "inside_forgotten", "DER_F_vs_O": "forgotten_outside"}
    for line in made.lines:
        cell = line.cell
        place = (f"{cell['method']} (shapes, ResNet)", cell["nd_method"].lower(),
                 f"{metrics[cell['metric']]}_detection_error", int(cell["stage"]) - 1)  # fmt: skip
        assert line.ours == pytest.approx(100 * known[place], nan_ok=True)
        assert line.verdict == ("not comparable" if line.ours == line.ours else "not run")
    assert len(made.lines) == 2 * 2 * 17
    assert sum(line.ours == line.ours for line in made.lines) > 20


def test_other_tables_train_nothing(made):
    third = find_table("cnd/3", embedded=True, assignments=QUICK)
    assert default_out(third) == default_out(find_table("cnd/fig3", embedded=True))
    cells = "method=FineTune,nd_method=B2,metric=m.*|mAUC"
    planned = plan(third, out=made.out, cells=cells, measure=False)
    assert (planned.done, len(planned.runs)) == (2, 2)
    again = reproduce(third, out=made.out, cells=cells, planned=planned, device="cpu")
    table = read(made.out).novelty()
    mine = table[table["label"].str.startswith("FineTune") & (table["detector"] == "b2")]
    means = mine.groupby("metric")["mean"].mean()  # over stages
    names = {"m.P.AUC": "previous_auroc", "m.R.AUC": "recent_auroc", "mAUC": "mean_auroc"}
    assert {line.cell["metric"] for line in again.lines} == {*names}
    for line in again.lines:
        assert line.ours == pytest.approx(100 * means[names[line.cell["metric"]]])
        assert len(line.values) == 2


def test_the_first_stage_counts_as_0_in_means_of_what_is_forgotten(monkeypatch):
    """As in the released code; elsewhere a stage without a number is left out."""
    names = ("inside_forgotten_detection_error", "forgotten_outside_detection_error")
    numbers = [math.nan, math.nan, *[0.3] * 8]  # one later stage has none either
    found = {("softmax", stage): dict.fromkeys(names, x) for stage, x in enumerate(numbers)}
    monkeypatch.setattr(measures, "detector_comparisons", lambda result, made: {0: found})
    for way, shares in (("zero", (24 / 9, 21 / 8)), ("left_out", (3.0, 3.0))):
        table = find_table("cnd/3", assignments=[f"first_stage={way}"])
        cells = choose_cells(table.cells, "method=FineTune,nd_method=Softmax,metric=F/*")
        ours = {cell["metric"]: table.entry(cell).measure(None).tolist() for cell in cells}
        assert ours == {
            "F/IN": pytest.approx([10 * shares[0]]), "F/Out": pytest.approx([10 * shares[1]]),
        }  # fmt: skip
    with refuses("first_stage"):
        find_table("cnd/3", assignments=["first_stage=one"])


@pytest.fixture(scope="module")
def seen(made):
    """The result by key, and the recipes of two rows."""
    preset = made.plan.table.preset
    rows = {one: recipe(preset, one) for one in (row("FineTune"), row("ER-25s"))}
    return select_by_recipe(read(made.out), made.plan.ids, made.plan.orders).ends(), rows


def test_figures_show_what_was_recorded(made, seen):
    result, rows = seen
    table = cnd_paper.detection_by_stage(result, rows, ("previous_auroc",))
    known = read(made.out).novelty().set_index(["label", "detector", "metric", "stage"])["mean"]
    for one in table[table["line"] == "Softmax"].itertuples():
        place = (f"{one.row} (shapes, ResNet)", one.line.lower(), "previous_auroc", one.x - 1)
        assert one.value == pytest.approx(100 * known[place])
    run = next(r for r in result.runs if r.recipe == rows[row("FineTune")].key)
    sets = result.sets(run, 8)
    scores = result.arrays("softmax", run, stage=8)["familiarity"]
    expected = auroc(scores[2][sets.inside[2]], scores[2][sets.outside[0]])
    own = {row("FineTune"): rows[row("FineTune")].change(seeds=(run.seed,))}
    last = cnd_paper.auc_against_last(result.select(seed=run.seed), own)
    found = last[(last["line"] == "Softmax") & (last["x"] == 3)]["value"].item()
    assert found == pytest.approx(100 * expected)
    for name in ("fig3", "fig7", "fig23", "fig26", "fig6"):
        drawing = cnd_paper.DRAWINGS[name]
        data = drawing.data(result, own if name == "fig6" else rows)  # maps take seconds
        assert len(data)
        assert drawing.draw(data).data, name


def test_norms_are_means_over_the_items_of_a_set(seen):
    result, rows = seen
    one = {row("ER-25s"): rows[row("ER-25s")]}
    table = cnd_paper.feature_statistic("norm")(result, one).set_index(["line", "x"])["value"]
    values = []
    for run in (r for r in result.runs if r.recipe == rows[row("ER-25s")].key):
        norms = result.arrays("features items=60", run, stage=4)["norm"]
        places = np.concatenate(result.sets(run, 4).outside)
        values.append(norms[places].mean())
    assert table["outside", 5] == pytest.approx(np.mean(values), rel=1e-5)


def test_findings_can_fail(seen):
    result, _ = seen
    (figure,) = find_table("cnd/findings", embedded=True, assignments=QUICK).figures
    table = figure.data(result)
    assert set(table["holds"]) <= {"yes", "no", "not run"}
    for finding, most in (("ODIN below Softmax in Forg/Out DER", 6), ("In/Forg DER rises", 4)):
        tried = table[table["finding"].str.startswith(finding) & (table["holds"] != "not run")]
        assert 0 < len(tried) <= most, finding  # after some stage nothing may be forgotten
        for one in tried.itertuples():
            wanted = one.difference < 0 if "below" in finding else one.difference > 0
            assert one.holds == ("yes" if wanted else "no")
    falls = table[table["finding"].str.startswith("P.AUC falls") & (table["row"] == "FineTune")]
    known = cnd_paper.detection_by_stage(result, seen[1], ("previous_auroc",))
    known = known[(known["row"] == "FineTune") & (known["line"] == "Softmax")]
    mine = known.set_index("x")["value"]
    (line,) = falls[falls["first"].str.startswith("Softmax")].to_dict("records")
    assert line["first_value"] == pytest.approx(mine[2])
    assert line["second_value"] == pytest.approx(mine[9])
    assert line["holds"] == ("yes" if np.polyfit(mine.index, mine, 1)[0] < 0 else "no")
    norms = table[table["finding"].str.startswith("norm of Forg")].set_index("row")
    stored = cnd_paper.feature_statistic("norm")(result, seen[1])
    assert (
        set(stored["row"])
        == {"FineTune", "ER-25s"}
        == {row for row in norms.index if norms["holds"][row] != "not run"}
    )
    first = table[table["finding"].str.startswith("norm of In's") & (table["row"] == "ER-25s")]
    own = stored[(stored["row"] == "ER-25s") & (stored["x"] == 1)].set_index("line")["value"]
    # after stage 1 the first task is all
    assert first["second_value"].item() == pytest.approx(own["outside"])
    assert first["first_value"].item() == pytest.approx(own["first inside"], rel=1e-6)
    without = table[(table["second"] == "VAE") & (table["row"] == "FineTune")]
    assert set(without["holds"]) == {"not run"}  # no such detector was asked


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("seeds=0", "seeds: expected"),
        ("forgetting=diag", "forgetting: unknown name"),
        ("tiny.batch_size=0", "batch_size: expected"),
        ("nothing=1", "unknown name 'nothing'"),
    ],
)
def test_bad_choices_are_named(assignment, complaint):
    with pytest.raises(BadArgument, match=complaint):
        find_table("cnd/1", assignments=[assignment])


def test_a_detector_that_is_none_is_named_before_anything_runs():
    table = find_table("cnd/1", embedded=True, assignments=["detectors={Sofmax: {}}"])
    with pytest.raises(BadArgument, match=r"'Sofmax', did you mean 'Softmax'"):
        plan(table, measure=False)
    assert EMBEDDED.absent == {"Eight-Task"}
    chosen = choose_cells(find_table("cnd/1").cells, "method=LwF,backbone=VGG,metric=Acc")
    assert [cell.value for cell in chosen] == [61.7]
