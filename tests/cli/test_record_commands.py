"""engram metrics, report, list, data, check and demo."""

from __future__ import annotations

import inspect
import io
import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import engram as package
from engram import methods
from engram.cli import component_help, run_commands
from engram.cli.list_command import KINDS
from engram.cli.result_display import advise_scope, make_plain_table
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.metrics import FORGETTING_DEFINITIONS
from engram.streams import NEEDED, SCENARIOS
from tests.cli.conftest import SMALL


@pytest.fixture
def ran(engram):
    words = ("-m", "Finetune", "-m", "ER", "--seeds", 2, "--evaluate-unseen", "-o", "out")
    engram("run", *SMALL, *words)
    return package.read("out")


def test_every_definition_side_by_side(engram, ran):
    shown = engram("metrics", "out").stdout
    lines = {line.split("  ")[0]: line for line in shown.splitlines()}
    for definition in FORGETTING_DEFINITIONS:
        values = ran.metric("forgetting", definition=definition)[:2]
        assert (
            f"{values.mean():.3f} ± {values.std(ddof=1):.3f}"
            in (lines[f"forgetting ({definition})"])
        )
    assert "forgetting (max)" not in engram("metrics", "out", "--definition", "cglb").stdout


def test_methods_are_compared(engram, ran):
    done = engram("metrics", "out", "--compare", "average_accuracy")
    found = ran.compare()
    mean, low = found.methods.loc["ER", ["mean", "low"]]
    assert re.search(rf"ER +2 +{mean:.3f} +{low:.3f}", done.stdout)
    line = found.pairs.iloc[0]
    assert re.search(rf"ER - Finetune +2 +{line['difference']:.3f}", done.stdout)
    assert "paired t test, p_holm is corrected for 1 comparison\n" in done.stderr
    table = engram("metrics", "out", "--compare", "forgetting", "--definition", "cglb", "--csv")
    wanted = ran.compare("forgetting", definition="cglb").pairs
    (a, b), line = wanted.index[0], wanted.iloc[0]
    assert f"{a} - {b},2,{line['difference']}," in table.stdout
    assert (
        "did you mean 'average_accuracy'"
        in engram("metrics", "out", "--compare", "accuracy", code=2).stderr
    )


def test_files_that_were_passed_over_and_labels_that_command_a_terminal(engram):
    engram("run", *SMALL, "-s", r'label="a\x1b[31mred\u202e"', "-o", "out")
    assert package.read("out").labels == ["a\x1b[31mred\u202e"]
    for told, done in (
        (r"a\x1b[31mred\u202e", engram("metrics", "out")),
        ("a[31mred", engram("metrics", "out", "--csv")),
    ):
        assert told in done.stdout
        assert not {"\x1b", "\u202e"} & set(done.output)
    first = sorted(Path("out").glob("results-*"))[0]
    content = bytearray(first.read_bytes())
    content[300] ^= 1
    first.write_bytes(content)
    assert f"could not read: {first}: is damaged" in engram("metrics", "out", code=1).stderr


def test_metrics_where_all_runs_diverged_are_dashes(engram):
    engram("run", *SMALL, "-m", "Finetune", "-s", "lr=1e10", "--seeds", 2, "-o", "out", code=1)
    lines = engram("metrics", "out", "--matrix", "--classes").stdout.splitlines()
    assert lines[0].split() == ["metric", "Finetune"]
    assert next(line for line in lines if "average_accuracy" in line).split()[1:] == ["-"]
    done = engram("metrics", "out", "--ece", "--confusion")
    assert "Finetune: 2 of 2 runs are left out of every mean: 2 diverged" in done.stderr
    assert "confusion" not in done.stdout


def test_headings_are_labels_and_no_markup():
    """In "M [b112]" the id is part of the label, not a style of the console."""
    shown = make_plain_table("metric", "M [b11234507762]", "M [952f13ddc02f]")
    console = Console(file=io.StringIO(), width=80)
    console.print(shown)
    assert console.file.getvalue().split() == [
        "metric", "M", "[b11234507762]", "M", "[952f13ddc02f]",
    ]  # fmt: skip


def test_metrics_as_csv(engram, ran):
    text = engram("metrics", "out", "--csv", "--definition", "max", "--head", "multi").stdout
    table = pd.read_csv(io.StringIO(text)).set_index(["label", "metric"])
    wanted = ran.view(head="multi").summary()
    for label in ran.labels:
        assert table.loc[(label, "forgetting"), "mean"] == wanted.loc[label, "forgetting"]
        assert table.loc[(label, "average_accuracy"), "runs"] == 2


def test_matrix_classes_confusion_and_calibration(engram, ran):
    text = engram("metrics", "out", "--matrix", "--classes", "--confusion", "--ece").stdout
    mean = ran.select(label="ER").matrix.mean(axis=0)
    part = text.split("accuracy matrix, ER")[1].splitlines()
    assert f"{mean[1, 0]:.3f}" in part[3]
    assert "calibration_error" in text
    counts = text.split("confusion, ER")[1].splitlines()[2:12]
    assert sum(int(cell) for line in counts for cell in line.split()[1:]) == 2 * 200
    per_class = ran.class_accuracy().iloc[:2].mean()
    assert f"{per_class.iloc[0]:.3f}" in text.split("class accuracy")[1]


def test_forward_transfer_of_unseen_classes_is_a_dash_with_a_reason(engram, ran):
    def transfer(*options):
        found = engram("metrics", "out", "--definition", "max", *options)
        line = next(x for x in found.stdout.splitlines() if x.startswith("forward_transfer"))
        return line.split()[1:], found.stderr

    cells, said = transfer()
    assert set(cells) == {"-"}
    assert "forward_transfer: not defined where a task has new classes" in said
    cells, said = transfer("--head", "multi")
    assert "-" not in cells
    assert "not defined" not in said


def test_what_reads_tasks_to_come_says_how_to_score_them(engram):
    engram("run", "--data", "blobs", "-m", "Finetune", "-o", "out")
    found = engram("metrics", "out", "--head", "multi")
    assert "forgetting (max)" in found.stdout
    for absent in ("forward_transfer", "forgetting (first)", "forgetting (pyclad)"):
        assert absent not in found.stdout
        assert absent in found.stderr
    assert "engram run --evaluate-unseen" in found.stderr
    for words in (["--definition", "pyclad"], ["--compare", "forward_transfer"]):
        refused = engram("metrics", "out", "--head", "multi", *words, code=2)
        assert "evaluate_unseen=True (engram run --evaluate-unseen)" in refused.stderr
    asked = engram("run", "--data", "blobs", "-m", "Finetune", "-o", "out", "--evaluate-unseen")
    assert "tasks to come were not scored" in asked.output
    engram("run", "--data", "blobs", "-m", "Finetune", "-o", "out", "--evaluate-unseen", "--rerun")
    assert "forward_transfer" in engram("metrics", "out", "--head", "multi").stdout


def test_f1_and_top_k(engram, ran):
    text = engram("metrics", "out", "--csv", "--definition", "max", "--f1", "--top-k", 2).stdout
    table = pd.read_csv(io.StringIO(text)).set_index(["label", "metric"])
    mine = ran.select(label="ER")
    for name, options in (("f1_score", {}), ("top_k_accuracy", {"k": 2})):
        assert table.loc[("ER", name), "mean"] == mine.metric(name, **options).mean()
    done = engram("metrics", "out", "--top-k", 99)
    assert "top_k_accuracy (k=99)" in done.stdout
    assert "top_k_accuracy: not defined where k or fewer classes compete" in done.stderr


def test_metrics_say_in_which_head_view_they_are(engram, ran):
    spread = "mean ± standard deviation over runs"
    assert f"after the last task, single-head view, {spread}\n" in engram("metrics", "out").stderr
    said = engram("metrics", "out", "--head", "multi", "--stage", 1).stderr
    assert f"after task 1, multi-head view, {spread}\n" in said


def test_metrics_of_two_head_views_are_told_apart(engram, ran):
    engram("run", "--data", "blobs", "--stream", "task_incremental", "--method", "EWC", "--out",
           "told")  # fmt: skip
    said = " ".join(engram("metrics", "out", "told").stderr.split())
    assert (
        "each in its own head view (single-head view: Finetune, ER; multi-head view: EWC)" in said
    )


def test_metrics_after_an_earlier_task(engram, ran):
    first = engram("metrics", "out", "--csv", "--stage", 1, "--definition", "max").stdout
    table = pd.read_csv(io.StringIO(first)).set_index(["label", "metric"])
    assert np.isclose(
        table.loc[("ER", "average_accuracy"), "mean"], ran.select(label="ER").matrix[:, 0, 0].mean()
    )
    engram("metrics", "out", "--stage", 0, code=2)
    assert (
        "--stage: expected a whole number of at most"
        in engram("metrics", "out", "--stage", 99, code=2).stderr
    )
    assert (
        "the labels form no tree; refinement"
        in engram("metrics", "out", "--refinement", code=2).stderr
    )


def test_report_page_and_tables(engram, ran):
    engram("report", "out", "-o", "page.html", "--title", "Mine", "--tables", "tables")
    page = Path("page.html").read_text(encoding="utf-8")
    assert "<title>Mine" in page
    assert "Finetune" in Path("tables/summary.csv").read_text(encoding="utf-8")
    wrong = engram("report", "out", "-o", "figure.svg", code=2)
    assert "--images DIR writes figures" in wrong.stderr
    assert not Path("figure.svg").exists()


# -- list ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_has_a_line_and_a_long_form(engram, kind):
    shown = engram("list", kind).stdout
    entries = component_help.list_entries(kind)
    assert entries
    for name, line in entries.items():
        assert f"\n{name} " in f"\n{shown}"
        assert line.strip()
        assert name in component_help.describe_component(kind, name, line)


def test_a_training_setting_is_explained_alone(engram):
    text = engram("list", "training", "momentum").stdout
    assert "momentum = 0.9" in text
    assert "momentum of SGD" in text
    assert "augment" not in text


def test_fields_and_defaults_of_a_method(engram):
    text = engram("list", "methods", "EWC").stdout
    assert package.methods.EWC.__doc__.splitlines()[0] in text
    for field in fields(package.methods.EWC):
        assert f"  {field.name} = " in text
    assert "strength = 5000.0" in text


def test_overview_names_everything(engram):
    shown = engram("list").stdout
    for name in (*package.methods.__all__, *KINDS, "digits", "mlp", "herding", "rwalk/1"):
        assert name in shown
    assert "confer/50" not in shown  # 150 tables would bury the rest; engram list recipes has them


# -- data ----------------------------------------------------------------------------------------


def test_own_arrays_from_file_to_result(engram):
    rng = np.random.default_rng(0)
    y = np.arange(80) % 4
    np.savez("mine.npz", x=rng.normal(size=(80, 6)).astype(np.float32) + y[:, None], y=y)
    engram("data", "verify", "mine", "--root", "sets", code=2)
    said = engram("data", "add", "mine.npz", "mine", "--root", "sets").stderr  # makes the folder
    assert said.splitlines()[-1] == "Use it with:  engram run --data mine --root sets"
    assert "mine" in engram("data", "list", "--root", "sets").stdout
    assert "ok" in engram("data", "verify", "mine", "--root", "sets").stdout
    assert "4 classes" in engram("data", "inspect", "mine", "--root", "sets").stdout
    engram("run", "-d", "mine", "--root", "sets", "-o", "by_name")
    engram("run", "-d", "mine.npz", "-o", "by_path")
    assert package.read("by_name").matrix.shape == (1, 2, 2)
    assert package.read("by_path").matrix.shape == (1, 2, 2)


def test_verify_fails_on_broken_data(engram):
    x = np.full((10, 2), np.nan, np.float32)
    np.savez("broken.npz", x=x, y=np.arange(10) % 2)
    assert "FAIL  files read" in engram("data", "verify", "broken.npz", code=1).stdout


def test_list_all_shows_what_is_missing(engram):
    assert "mnist" not in engram("data", "list").stdout
    assert "not found" in engram("data", "list", "--all").stdout


# -- check and demo ------------------------------------------------------------------------------


def test_check_passes_and_fails(engram, monkeypatch):
    checks = pytest.importorskip("engram.checks")
    good = checks.CheckReport("Good", [checks.CheckFinding("form", True)])
    bad = checks.CheckReport("Bad", [checks.CheckFinding("form", False, "why")])
    asked = lambda target, **options: {"ER": good, "EWC": bad}[target]  # noqa: E731
    monkeypatch.setattr(checks, "check", asked)
    assert "all 1 checks passed" in engram("check", "ER").stdout
    assert "why" in engram("check", "EWC", code=1).stdout


def test_check_takes_fields_of_a_method(engram, monkeypatch):
    checks = pytest.importorskip("engram.checks")
    asked = []

    def check(target, **options):
        asked.append(target)
        return checks.CheckReport("tried", [checks.CheckFinding("form", True)])

    monkeypatch.setattr(checks, "check", check)
    engram("check", "LUCIR", "--set", "variant=distil", "-s", "LUCIR.memory.per_class=3")
    assert (asked[0].variant, asked[0].memory.per_class) == ("distil", 3)
    for wrong, words in (
        ("varint=distil", "did you mean 'variant'"), ("epochs=3", "epochs"),
        ("training.epochs=3", "unknown name 'training'"),
        ("variant=all", "variant: unknown name 'all'"), ("variant", "expected key=value"),
    ):  # fmt: skip
        assert words in engram("check", "LUCIR", "--set", wrong, code=2).stderr
    assert "--data: expected the data" in engram("check", "herding", "-s", "k=1", code=2).stderr
    assert len(asked) == 1


def test_demo_in_small(engram, monkeypatch):
    monkeypatch.setattr(run_commands, "DATA", "blobs")
    monkeypatch.setattr(run_commands, "TRAINING", {"epochs": 1})
    monkeypatch.setattr(run_commands, "SEEDS", 1)
    done = engram("demo", "--out", "out")
    result = package.read("out")
    assert len(result) == len(run_commands.METHODS)
    assert result.matrix.shape[1:] == (5, 5)
    assert "Joint *" in done.stdout
    lost = result.summary().loc["Finetune", "forgetting"]
    assert f"(Finetune) loses {100 * lost:.0f} points" in done.stdout
    assert "<title>Engram demo" in Path("out/report.html").read_text(encoding="utf-8")
    assert "already finished: 6 of 6 runs" in engram("demo", "--out", "out").stderr


def test_every_definition_and_the_definition_all(engram):
    engram("run", *SMALL, "-o", "out")
    alone = engram("metrics", "out", "--definition", "all").stdout
    assert re.findall(r"forgetting \((\w+)\)", alone) == ["all"]
    every = engram("metrics", "out", "--definition", "every").stdout
    names = [name for name in FORGETTING_DEFINITIONS if name != "pyclad"]  # reads tasks to come
    assert re.findall(r"forgetting \((\w+)\)", every) == names
    assert engram("metrics", "out").stdout == every


def test_classes_are_shown_by_name(engram):
    x = np.random.default_rng(0).random((60, 4), np.float32)
    np.savez("pets.npz", x=x, label=np.arange(60) % 4, names=["cat", "dog", "eel", "fox"])
    done = engram("run", "--data", "pets.npz", "-s", "lr=0.1", "-o", "out")
    assert re.search(r"never predicted .*: .*\bcat\b", done.stderr)
    header = engram("metrics", "out", "--classes").stdout.split("class accuracy")[1].split("\n")[1]
    assert header.split() == ["label", "cat", "dog", "eel", "fox"]
    assert "label,cat,dog,eel,fox" in engram("metrics", "out", "--classes", "--csv").stdout
    page = Path("report.html")
    engram("report", "out", "-o", page)
    assert re.search(r"never predicted .*\bcat\b", page.read_text())


def test_reading_all_past_data_is_shown_as_memory(engram):
    done = engram("run", *SMALL, "-m", "Finetune", "-m", "Joint", "-o", "out")
    shown = {line.split()[0]: line for line in done.stdout.splitlines()[1:]}
    assert "all past: 400 items, 25.0 KiB" in shown["Joint"]  # of 800, in two tasks
    assert "past" not in shown["Finetune"]
    cost = package.read("out").cost()
    assert cost.loc["Joint", "past_items"] == 400
    assert cost.loc["Joint", "past_bytes"] == 400 * 16 * 4
    engram("report", "out", "--tables", "tables")
    kept = pd.read_csv("tables/costs.csv").set_index("Method")["Items kept"]
    assert kept["Joint"] == 400
    assert kept["Finetune"] == 0


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_streams_say_what_they_need(engram, name):
    shown = " ".join(engram("list", "streams").stdout.split())
    option, value = next(iter(NEEDED[name].items()))
    assert f"Needs {option}, such as --set '{option}={value}'" in shown
    assert f"{option} = (required)" in engram("list", "streams", name).stdout
    data = ["--data", "digits"]
    if name == "domain_incremental":  # by view
        few = "stream.data_options={per_class: 30, frames: 4}"
        data = ["--data", "skeletons", "-s", few]
    said = engram("run", *data, "--stream", name, code=2).stderr
    assert f"--set '{option}={value}'" in said
    engram("run", *data, "--stream", name, "-s", f"{option}={value}", "-s", "iterations=1",
           "--keep", "counts")  # fmt: skip


def test_all_streams_with_a_required_option_are_listed():
    required = {
        name
        for name, scenario in SCENARIOS.items()
        for option in list(inspect.signature(scenario).parameters.values())[1:]
        if option.default is option.empty
    }
    assert required == set(NEEDED)


HIERARCHY = "hierarchy={low: ['0', '1'], high: ['2', '3']}"
TREE = ("--data", "blobs", "-s", "kind=hierarchical", "-s", HIERARCHY,
        "-s", "tasks=[[low, high], ['0', '2'], ['1', '3']]", "-s", "valid=0.1")  # fmt: skip


def test_label_sets_from_run_to_metrics_and_report(engram):
    said = engram("run", *TREE, "--method", "ER", "--out", "out").stdout
    assert "pw-Jaccard" in said
    assert "accuracy" not in said
    text = engram("metrics", "out", "--matrix", "--classes", "--confusion", "--ece").stdout
    for words in ("precision_weighted_jaccard", "exact_match", "forgetting (max)", "class recall",
                  "precision weighted jaccard matrix", "calibration_error"):  # fmt: skip
        assert words in text
    assert "accuracy" not in text
    assert "forgetting (first)" not in text
    text = engram("metrics", "out", "--curves", "--refinement", "--confusion").stdout
    for words in ("current_task", "after 3", "superclass_score", "hierarchical_f1", "low > 0",
                  "subclass_spread", "the truth, ER", "post_valid_score"):  # fmt: skip
        assert words in text
    refused = engram("metrics", "out", "--definition", "first", code=2)
    assert "uses no task before it is learnt" in refused.output
    engram("report", "out", "-o", "report.html", "--tables", "tables")
    page = Path("report.html").read_text()
    assert "Label sets over stages" in page
    assert "The task just learnt (R_jj)" in page
    summary = next(Path("tables").glob("summary*.csv")).read_text()
    assert "Precision-weighted Jaccard" in summary
    assert "ccuracy" not in summary


def test_what_does_not_fit_label_sets_is_one_line(engram):
    for options in (("--method", "LwF"), ("--method", "ER", "-s", "loss=ce")):
        refused = engram("run", *TREE, *options, "--out", "out", code=2)
        assert "sets of labels" in refused.output
        assert "Traceback" not in refused.output


def test_intransigence_is_against_a_named_reference(engram):
    engram("run", *SMALL, "-m", "Finetune", "-m", "Joint", "--seeds", 2, "-o", "out")
    engram("run", *SMALL, "-m", "Joint", "--seeds", 2, "-o", "joint")
    result = package.read("out")
    wanted = result.select(label="Finetune").metric(
        "intransigence", reference=result.select(label="Joint")
    )
    for name in ("Joint", "joint"):
        lines = engram("metrics", "out", "--reference", name, "--csv").stdout.splitlines()
        cells = dict(line.split(",", 2)[::2] for line in lines if ",intransigence," in line)
        assert float(cells["Finetune"].split(",")[1]) == pytest.approx(wanted.mean(), abs=1e-6)
    assert "--reference: unknown name 'Joit'" in engram("metrics", "out", "--reference", "Joit",
                                                        code=2).stderr  # fmt: skip


def test_the_list_of_metrics_has_metrics_only(engram):
    names = {line.split()[0] for line in engram("list", "metrics").stdout.splitlines() if line}
    assert {"forgetting", "average_accuracy", "auroc", "jaccard", "mistake_depth"} <= names
    assert not names & {"human_bytes", "mean", "std", "holm", "t_interval", "threshold",
                        "ancestors", "sign_flip_test", "total_cost"}  # fmt: skip


@pytest.fixture
def two_streams(engram):
    for data in ("blobs", "digits"):
        words = ("run", "--data", data, "-m", "Finetune", "-m", "EWC", "--seeds", 2, "-s")
        engram(*words, "iterations=2", "-o", data)


def test_metrics_have_streams_apart(engram, two_streams):
    words = ("--definition", "max", "--compare", "average_accuracy")
    alone = engram("metrics", "digits", *words).stdout
    both = engram("metrics", "blobs", "digits", *words).stdout
    blobs, name, digits = both.partition("\ndigits\n")
    assert name
    assert blobs.startswith("\nblobs\n")
    # an unrelated stream changes no number and no p value
    assert digits.split("\nafter the last task")[0].strip() == (
        alone.split("\nafter the last task")[0].strip()
    )
    table = engram("metrics", "blobs", "digits", "--columns", "forgetting", "--csv").stdout
    lines = [line.split(",")[:3] for line in table.splitlines()]
    assert lines[0] == ["stream", "label", "metric"]
    found = {tuple(line[:2]) for line in lines[1:] if line[2:] == ["forgetting"]}
    assert found == {
        (stream, label) for stream in ("blobs", "digits") for label in ("Finetune", "EWC")
    }  # fmt: skip


def test_ranks_of_two_streams_are_shown_without_a_test(engram, two_streams):
    said = engram("metrics", "blobs", "digits", "--ranks", "average_accuracy")
    lines = said.stdout.split("average_accuracy, ranks")[1].splitlines()
    assert lines[1].split() == ["method", "blobs", "digits", "mean", "rank", "best_on"]
    assert {line.split()[0] for line in lines[2:4]} == {"Finetune", "EWC"}
    assert "it takes 5 streams" in said.output
    assert "ranks: expected" in engram("metrics", "blobs", "--ranks", "forgetting", code=2).output


def test_other_names_columns_and_decimals(engram, ran):
    shown = engram("metrics", "out", "--rename", "ER=Replay", "--decimals", 1, "--columns",
                   "average_incremental_accuracy,forgetting").stdout  # fmt: skip
    lines = shown.splitlines()
    assert lines[0].split() == ["metric", "Finetune", "Replay"]
    value = ran.metric("average_incremental_accuracy")
    assert lines[1].split()[:4] == [
        "average_incremental_accuracy", f"{value[:2].mean():.1f}", "±",
        f"{value[:2].std(ddof=1):.1f}",
    ]  # fmt: skip
    assert lines[2].startswith("forgetting")
    engram("report", "out", "-o", "r.html", "--tables", "t", "--rename", "ER=Replay", "--head",
           "single", "--columns", "average_accuracy", "--decimals", 2)  # fmt: skip
    table = Path("t/summary.md").read_text().splitlines()
    assert table[0] == "| Rank | Method | Average accuracy |"
    assert len(table) == 4
    assert "Replay" in Path("r.html").read_text()
    assert package.read("out").labels == ["Finetune", "ER"]  # the records are as they were
    assert "--rename: expected OLD=NEW" in engram("metrics", "out", "--rename", "ER", code=2).output
    assert "did you mean 'ER'" in engram("metrics", "out", "--rename", "ERR=x", code=2).output
    said = engram("metrics", "out", "--columns", "forgeting", code=2).output
    assert "did you mean 'forgetting'" in said


def test_verify_names_each_finding_on_a_line(engram, tmp_path):
    engram("run", *SMALL, "-m", "ER", "-o", "out", "-s", "epochs=1")
    assert "nothing is wrong" in engram("verify", "out").stdout
    recipe = next(tmp_path.glob("out/recipes/*.yaml"))
    recipe.write_text(recipe.read_text().replace("lr: 0.001", "lr: 0.5"))
    lines = engram("verify", "out", code=1).stdout.splitlines()
    assert lines[0].startswith("recipes: recipes/")
    assert "was edited" in lines[0] + lines[1]
    found = json.loads(engram("verify", "out", "--json", code=1).stdout)
    assert not found["ok"]
    assert {one["check"] for one in found["findings"]} == {"recipes"}
    assert engram("verify", "nowhere", code=2).stdout == ""


def test_verify_finds_scores_that_depend_on_their_batch(engram, tmp_path):
    (tmp_path / "mixing.py").write_text(
        "from torch import nn\n"
        "class Mixing(nn.Module):\n"
        "    def __init__(self, sample_shape):\n"
        "        super().__init__()\n"
        "        self.features, self.first = 8, nn.Linear(sample_shape[0], 8)\n"
        "    def forward(self, x):\n"
        "        h = self.first(x).relu()\n"
        "        return h - h.mean(0, keepdim=True)\n"
    )
    words = ("--data", "blobs", "-m", "ER", "-s", "epochs=1")
    engram("run", *words, "--model", "mixing.py:Mixing", "-o", "mixed")
    lines = engram("verify", "mixed", "--trust", code=1).stdout.splitlines()
    assert lines[0].startswith("batches: ER: ")
    assert "scores differ by up to" in lines[0]
    engram("run", *words, "-o", "plain")
    assert "1 models in other batches" in engram("verify", "plain").stdout


def test_metrics_fail_where_records_are_missing(engram, tmp_path):
    engram("run", *SMALL, "-m", "ER", "-o", "out", "-s", "epochs=1")
    engram("run", *SMALL, "-m", "EWC", "-o", "out", "-s", "epochs=1")
    max(tmp_path.glob("out/results-*.tar")).unlink()
    done = engram("metrics", "out", code=1)
    assert "is missing" in done.stderr
    assert "average_accuracy" in done.stdout


def test_exported_labels_are_no_formulas(engram, tmp_path):
    label = '=HYPERLINK("x")'
    engram("run", *SMALL, "-m", "ER", "-o", "out", "-s", "epochs=1", "-s", f"label={label}")
    assert "\n\"'=HYPERLINK" in engram("metrics", "out", "--csv").stdout
    assert "\n=HYPERLINK" not in engram("metrics", "out", "--csv", "--classes").stdout


@pytest.mark.parametrize(
    ("method", "frozen", "options", "advised"),
    [
        (methods.Finetune(), True, {}, True),
        (methods.LwF(), True, {}, True),
        (methods.Finetune(), False, {}, False),
        (methods.Finetune(), True, {"scope": "own"}, False),
        (methods.ER(), True, {}, False),
        (methods.NCM(), True, {}, False),
        (methods.Joint(), True, {}, False),
    ],
)
def test_a_scope_is_advised_where_a_head_would_forget(method, frozen, options, advised):
    stream = package.class_incremental(package.load("digits"), classes_per_task=5)
    model = {"name": "mlp", "freeze": frozen}
    run = Run(stream=stream, method=method, model=model, training=Training(**options))
    assert ("scope=own" in advise_scope(run)) is advised
