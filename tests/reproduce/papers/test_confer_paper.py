from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from engram.errors import BadArgument
from engram.records import Result, Rows
from engram.reproduce import (
    choose_cells,
    default_out,
    find_table,
    judge_cell,
    plan,
    read_cells,
    reproduce,
    table_names,
)
from engram.reproduce.paper_table import OTHER_DATA, CellEntry
from engram.reproduce.papers import confer_paper
from engram.reproduce.papers.confer_paper import (
    EMBEDDED,
    PAPER,
    ROWS,
    ConFERBlock,
    make_tasks,
    recipe,
)
from engram.reproduce.papers.paper_base import assign_settings
from engram.reproduce.result_tables import choose_columns, format_line, to_frame
from tests.refusals import refuses

TASK, CLASS = "Task-IL", "Class-IL"
BY_TASK = {"memory.shared_by": "task"}


def block(dataset="FER-2013", setting=TASK, order="O1", augmentation="without"):
    return ConFERBlock(dataset=dataset, setting=setting, order=order, augmentation=augmentation)


def test_pages_are_those_of_the_paper():
    assert sorted(map(int, confer_paper.TABLES_BY_NUMBER)) == list(range(3, 51))
    for number, (page, metric) in confer_paper.TABLES_BY_NUMBER.items():
        cells = read_cells("confer", number)
        assert {cell["dataset"] for cell in cells} == {page.dataset}
        assert {cell["setting"] for cell in cells} == {page.setting}
        assert {cell["metric"] for cell in cells} == {metric}
        assert {cell["order"] for cell in cells} == set(page.orders.split(" and "))
        assert {cell["method"] for cell in cells} == {*ROWS}
    assert sorted(confer_paper.FIGURES_BY_NAME, key=lambda name: int(name[3:])) == [
        f"fig{n}" for n in range(3, 27)
    ]
    assert confer_paper.FIGURES_BY_NAME["fig16"] == confer_paper.TABLES_BY_NUMBER["29"][0]
    assert confer_paper.FIGURES_BY_NAME["fig26"] == confer_paper.TABLES_BY_NUMBER["49"][0]


def test_halves_of_the_tables_are_conditions_of_the_preset():
    for number, (page, _) in confer_paper.TABLES_BY_NUMBER.items():
        halves = {cell["augmentation"] for cell in read_cells("confer", number)}
        assert halves <= {*PAPER.protocol(page.dataset).conditions}
        assert halves <= {*EMBEDDED.protocol(page.dataset).conditions}


@pytest.mark.parametrize(
    ("row", "setting", "kind", "values"),
    [
        ("LB", TASK, "Finetune", {}),
        ("UB", TASK, "Joint", {"init": "continue"}),
        ("EWC", TASK, "EWC", {"strength": 5000.0, "half": True, "labels": "pred", "group": 1}),
        ("EWC-Online", TASK, "OnlineEWC", {"strength": 5000.0, "gamma": 1.0, "labels": "pred"}),
        ("SI", CLASS, "SI", {"strength": 1.0, "xi": 0.1, "clamp": "none", "grad": "task"}),
        ("LwF", CLASS, "LwF", {"strength": 1.0, "temperature": 2.0, "scale": True}),
        (
            "NR",
            TASK,
            "NaiveRehearsal",
            {**BY_TASK, "memory.total": 1500, "weighting": "mean"},
        ),
        (
            "NR",
            CLASS,
            "NaiveRehearsal",
            {**BY_TASK, "memory.total": 1000, "memory.shrink": "random"},
        ),
        ("A-GEM", CLASS, "AGEM", {"memory.total": 2000, "masks": False}),
        ("LR", TASK, "LatentReplay", {"memory.total": 1000, "root": "heldout"}),
        ("DGR", CLASS, "DGR", {"distill": False, "ratio": None}),
        ("DGR+D", CLASS, "DGR", {"distill": True, "temperature": 2.0}),
        ("LGR", TASK, "LGR", {"distill": False, "root": "heldout", "root_iterations": 1000}),
        ("LGR+D", TASK, "LGR", {"distill": True, "order": "interleaved"}),
    ],
)
def test_rows(row, setting, kind, values):
    made = recipe(PAPER, block(setting=setting), row)
    assert type(made.method).__name__ == kind
    for path, value in values.items():
        found = made.method
        for name in path.split("."):
            found = getattr(found, name)
        assert found == value, path
    latent = {"latent": 200} if row in ("LR", "LGR", "LGR+D") else {}
    assert made.model == {"name": "lenet", **latent}


def test_protocol():
    made = recipe(PAPER, block(), "LB")
    training = made.training
    assert (training.iterations, training.batch_size, training.lr) == (500, 128, 2.5e-4)
    assert (training.optimizer, training.betas) == ("adam", (0.9, 0.999))
    assert not training.optim_reset
    assert made.seeds == (0, 1, 2)
    assert made.stream["data_options"] == {"size": 100}
    assert recipe(PAPER, block("CK+"), "LB").training.batch_size == 32
    assert (made.stream["kind"], training.scope) == ("task_incremental", "own")
    single = recipe(PAPER, block(setting=CLASS), "LB")
    assert (single.stream["kind"], single.training.scope) == ("class_incremental", "seen")
    assert single.stream["classes_per_task"] == [1] * 7


@pytest.mark.parametrize("order", ["O1", "O2", "O3"])
def test_orders_without_contempt_are_paired_anew(order):
    whole = make_tasks(PAPER, "CK+", TASK, order)
    assert [len(task) for task in whole] == [2, 2, 2, 2]
    few = make_tasks(PAPER, "RAF-DB", TASK, order)
    assert [len(task) for task in few] == [2, 2, 2, 1]
    single = make_tasks(PAPER, "RAF-DB", CLASS, order)
    names = [name for task in whole for name in task if name != "Contempt"]
    assert [[name] for name in names] == single
    assert [name for task in few for name in task] == names
    literal = make_tasks(assign_settings(PAPER, ["drop=in_place"]), "RAF-DB", TASK, order)
    assert [len(task) for task in literal].index(1) == {"O1": 1, "O2": 3, "O3": 0}[order]


def test_second_halves_have_copies_or_fewer_rows():
    plain, more = (recipe(PAPER, block(augmentation=a), "LB") for a in ("without", "with"))
    assert "balance" not in plain.stream
    assert more.stream["balance"] == {"flip": 0.5, "rotate": 0.5, "degrees": 30.0}
    assert plain.key != more.key
    fewer = recipe(PAPER, block("AffectNet", augmentation="downsampled"), "LB")
    assert fewer.stream["data_options"] == {"size": 100, "per_class": 15000}
    with refuses("augmentation", near="with"):
        recipe(PAPER, block(augmentation="wiht"), "LB")


def test_memories_of_equal_bytes():
    preset = assign_settings(PAPER, ["memory_bytes=884800"])
    where = block(setting=CLASS)
    kept = {row: recipe(preset, where, row).method.memory for row in ("NR", "A-GEM", "LR")}
    assert (kept["NR"].total, kept["A-GEM"].total, kept["LR"].total) == (29, 29, 1106)
    assert recipe(preset, where, "LGR").method == recipe(PAPER, where, "LGR").method


def test_borders_may_be_blurred_in_class_il():
    preset = assign_settings(PAPER, ["blur=0.2"])
    stream = recipe(preset, block(setting=CLASS), "NR").stream
    assert (stream["kind"], stream["tasks"], stream["mix"]) == ("blurry", 7, 0.2)
    assert stream["order"][:2] == ["Neutral", "Anger"]
    with pytest.raises(BadArgument, match="blur: expected 0 in Task-IL: only steps of Class-IL"):
        recipe(preset, block(), "NR")  # it would be as without, under another name


def test_fisher_information_of_the_true_labels():
    preset = assign_settings(
        PAPER, ["ewc.labels=true"]
    )  # as the page has it; YAML reads no word there
    assert recipe(preset, block(), "EWC").method.labels == "true"


def test_tables_and_figures_of_a_set_share_runs_and_directory():
    accuracy, forgetting, drawn = (find_table(f"confer/{n}") for n in ("27", "28", "fig15"))
    keys = [{(r.key, r.order) for r in table.recipes} for table in (accuracy, forgetting, drawn)]
    assert keys[0] == keys[1] == keys[2]
    assert len(keys[0]) == 26
    assert len({default_out(t) for t in (accuracy, forgetting, drawn)}) == 1
    assert default_out(find_table("confer/34")) == default_out(accuracy)
    assert default_out(find_table("confer/3")) != default_out(accuracy)
    assert default_out(accuracy, embedded=True) != default_out(accuracy)


def test_all_tables_of_a_set_can_be_made_by_one_call():
    table = find_table("confer/fer-2013")
    assert {cell.table for cell in table.cells} == {str(n) for n in range(27, 35)}
    assert default_out(table) == default_out(find_table("confer/27"))
    few = choose_cells(table.cells, "order=O1,augmentation=without")
    assert {cell.table for cell in few} == {"27", "28", "31", "32"}
    made = {(r.key, r.order) for cell in few for r in table.entry(cell).recipes}
    assert len(made) == 26  # 78 runs
    for short in confer_paper.DATA_SETS:
        assert f"confer/{short}" in table_names()


def invented(made, accuracy):
    """A Result with the accuracies [stage, task] of one repetition."""
    rows = Rows()
    rows.bind(recipe=made.key, label=made.label, seed=0, order=made.order)
    matrix = np.array(accuracy)
    head = "multi" if made.stream["kind"] == "task_incremental" else "single"
    rows.add_array("accuracy", matrix, stage=np.arange(len(matrix))[:, None],
                   task=np.arange(matrix.shape[1]), head=head)  # fmt: skip
    return Result(rows.frame())


@pytest.mark.parametrize(("number", "dataset"), [("27", "FER-2013"), ("31", "FER-2013")])
def test_numbers_are_those_of_their_step(number, dataset):
    table = find_table(f"confer/{number}", assignments=["seeds=1"])
    other = find_table(f"confer/{int(number) + 1}", assignments=["seeds=1"])
    entries = {
        (cell["metric"], cell["stage"]): one.entry(cell)
        for one in (table, other)
        for cell in choose_cells(one.cells, "method=LwF,augmentation=without")
    }
    stages = max(int(stage) for _, stage in entries)
    (made,) = entries["Acc", "1"].recipes
    matrix = np.tril(np.full((stages, stages), 0.8) - 0.1 * np.eye(stages))
    matrix[2, 0] = 0.2
    result = invented(made, matrix[:3])  # the run has got through three stages
    assert entries["Acc", "1"].measure(result) == pytest.approx([0.7])
    assert entries["Acc", "3"].measure(result) == pytest.approx([(0.2 + 0.8 + 0.7) / 3])
    assert entries["CF", "2"].measure(result) == pytest.approx([-0.1])
    assert entries["CF", "3"].measure(result) == pytest.approx([(0.5 - 0.1) / 2])
    assert np.isnan(entries["Acc", str(stages)].measure(result)).all()
    assert ("CF", "1") not in entries


def test_reasons():
    def reasons(number, expression):
        table = find_table(f"confer/{number}")
        return table.entry(choose_cells(table.cells, expression)[0]).reasons

    assert reasons("27", "method=UB,augmentation=without") == ()
    assert reasons("27", "method=SI,augmentation=with") == ("copies unstated", "variant")
    assert reasons("3", "method=LB,augmentation=without") == ("split unstated",)
    table = find_table("confer/27", embedded=True)
    assert table.entry(table.cells[0]).reasons[0] == OTHER_DATA


def test_orders_in_doubt_are_said_so():
    doubts = {cell.doubt for cell in read_cells("confer", "29")}
    assert doubts == {"order in doubt"}
    assert {cell.doubt for cell in read_cells("confer", "15")} == {""}


QUICK = ("iterations=2", "ck.options={samples: 200}", "dgr={width: 16}", "lr_items=20",
         "lr.root_iterations=2")  # fmt: skip


def test_embedded_steps_are_lines_of_their_own(tmp_path):
    table = find_table("confer/3", embedded=True, assignments=QUICK)
    cells = "augmentation=without,method=LB|LR|DGR+D"
    made = reproduce(table, out=tmp_path, cells=cells, device="cpu")
    assert made.counts() == {"not comparable": 12}
    assert all(0 <= line.ours <= 1 for line in made.lines)
    frame = pd.read_csv(tmp_path / "reproduction.csv")
    assert frame["cell"].nunique() == 3
    assert frame["stage"].tolist() == [1, 2, 3, 4] * 3
    other = find_table("confer/4", embedded=True, assignments=QUICK)
    planned = plan(other, cells=cells, out=tmp_path, measure=False)
    assert (planned.done, len(planned.runs)) == (3, 3)  # the same runs
    again = reproduce(other, out=tmp_path, cells=cells, device="cpu", planned=planned)
    assert {line.cell["stage"] for line in again.lines} == {"2", "3", "4"}
    assert len(pd.read_csv(tmp_path / "reproduction.csv")) == 12 + 9


def test_fer_is_ready_to_run(engram_data):
    """All pictures, but smaller than in the paper, which takes less time."""
    assert recipe(PAPER, block("FER-2013"), "LB").stream["data_options"] == {"size": 100}
    table = find_table("confer/fer-2013", assignments=["fer.size=32"])
    chosen = "order=O1,augmentation=without,stage=1"
    planned = plan(table, engram_data, cells=chosen, measure=False)
    assert len(planned.runs) == 78
    assert {entry.missing for entry in planned.entries} == {""}
    streams = {run.run.stream.head: run.run.stream for run in planned.runs}
    assert streams["multi"].data.sample_shape == (3, 32, 32)
    assert streams["multi"].data is streams["single"].data
    assert [len(task.train) for task in streams["single"]] == [
        4965, 3995, 436, 4097, 7215, 4830, 3171,
    ]  # fmt: skip
    assert [len(task.shown) for task in streams["multi"]] == [2, 2, 2, 1]


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("seeds=0", "seeds: expected"),
        ("drop=inplace", "did you mean 'in_place'"),
        ("forgetting=diag", "forgetting: unknown name"),
        ("fer.batch_size=0", "batch_size: expected"),
        ("lr_items=-1", "lr_items: expected"),
        ("nothing=1", "unknown name 'nothing'"),
    ],
)
def test_bad_choices_are_named(assignment, complaint):
    with pytest.raises(BadArgument, match=complaint):
        find_table("confer/27", assignments=[assignment])


def test_printed_and_corrected_numbers_are_two():
    """.09, .16 and .04 are printed in columns 2 to 4, and belong to stages 3, 4 and 2."""

    def row(**options):
        return [c for c in read_cells("confer", "28", **options) if c["method"] == "LB"][:3]

    for cells, judged in (
        (row(), [0.04, 0.045, 0.32 / 3]),
        (row(as_printed=True), [0.09, 0.16, 0.04]),
    ):
        assert [c["stage"] for c in cells] == ["2", "3", "4"]
        assert [c.printed for c in cells] == [0.09, 0.16, 0.04]
        assert [c.corrected for c in cells] == pytest.approx([0.04, 0.045, 0.32 / 3])
        assert [c.value for c in cells] == pytest.approx(judged)
        assert [c.correction for c in cells] == [
            "column 4", "column 2; divided by i - 1", "column 3; divided by i - 1",
        ]  # fmt: skip
    unlike = [c for c in read_cells("confer", "28") if abs(c.printed - c.corrected) > 1e-9]
    assert len(unlike) == 67
    (accuracy, *_) = read_cells("confer", "27")
    assert (accuracy.correction, accuracy.printed) == ("", accuracy.value)


def test_a_setting_says_which_one_is_judged():
    found = {
        judged: find_table("confer/28", assignments=[f"judged={judged}"])
        for judged in ("printed", "corrected")
    }
    assert found["printed"].cells[0].value == 0.09
    assert found["corrected"].cells[0].value == 0.04
    assert found["printed"].settings == {"judged": "printed"}
    assert [r.key for r in found["printed"].recipes] == [r.key for r in found["corrected"].recipes]
    with refuses("judged"):
        find_table("confer/28", assignments=["judged=nearest"])


def test_lines_show_both_numbers():
    cell = read_cells("confer", "28")[2]
    line = judge_cell(cell, CellEntry(), np.array([0.1]))
    shown = format_line(line)
    assert (shown["printed"], shown["corrected"], shown["difference"]) == (
        "0.04",
        "0.107",
        "-0.00667",
    )
    assert {"printed", "corrected", "correction"} <= set(choose_columns([line]))
    plain = judge_cell(read_cells("confer", "27")[0], CellEntry(), np.array([0.7]))
    assert "corrected" not in choose_columns([plain])
    assert to_frame([plain])["corrected"].isna().all()
