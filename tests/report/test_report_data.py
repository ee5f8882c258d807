from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from engram.errors import BadArgument
from engram.report.plot_tables import order_disparities, progress_curves, sample_rows, stage_curves
from engram.report.report_data import build_report_data
from engram.report.report_inputs import ReportInput

GOLDEN = [[0.9, 0.1, 0.1], [0.95, 0.8, 0.1], [0.7, 0.5, 0.96]]  # [T-M2]; above: zero-shot


def matrix_rows(matrix, *, label="EWC", recipe="00", seed=0, order="", head="single"):
    return pd.DataFrame([
        {"recipe": recipe, "label": label, "seed": seed, "order": order, "stage": i, "step": -1,
         "task": j, "cls": -1, "head": head, "metric": "accuracy", "value": value}
        for i, row in enumerate(matrix) for j, value in enumerate(row)
    ])  # fmt: skip


def one(table, **where):
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


def test_golden_summary():
    row = one(build_report_data(ReportInput(matrix_rows(GOLDEN))).methods)
    expected = {
        "average_accuracy": 0.72, "forgetting/max": 0.275, "forgetting/diagonal": 0.25,
        "forgetting/all": 0.15, "forgetting/mean_T": 0.166667, "backward_transfer": -0.25,
        "learning_accuracy": 0.886667, "bound": 0.40,
    }  # fmt: skip
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, abs=1e-5), name
    assert np.isnan(row["intransigence"])


def test_same_label_of_two_recipes_is_not_mixed():
    frame = pd.concat(
        [matrix_rows([[0.2]], recipe="a" * 12), matrix_rows([[0.8]], recipe="b" * 12)]
    )
    methods = build_report_data(ReportInput(frame)).methods
    assert sorted(methods["name"]) == ["EWC (1)", "EWC (2)"]
    assert sorted(methods["average_accuracy"]) == [0.2, 0.8]


def test_diverged_and_unfinished_runs_are_counted_not_averaged():
    cut = matrix_rows(GOLDEN, seed=1)
    lost = matrix_rows([[0.0] * 3] * 3, seed=2)
    mark = lost.head(1).assign(metric="diverged", value=1.0, task=-1)
    frame = pd.concat([matrix_rows(GOLDEN), cut[cut["stage"] < 2], lost, mark])
    row = one(build_report_data(ReportInput(frame)).methods)
    assert row["average_accuracy"] == pytest.approx(0.72)
    assert [row[c] for c in ("runs", "finished", "diverged", "unfinished")] == [3, 1, 1, 1]


def test_rank_within_stream_and_view_without_references():
    frame = pd.concat([
        matrix_rows([[0.5]], label="A", recipe="a"), matrix_rows([[0.7]], label="B", recipe="b"),
        matrix_rows([[0.9]], label="Joint", recipe="c"),
        matrix_rows([[0.1]], label="D", recipe="d"),
    ])  # fmt: skip
    kinds = [("a", "A", "x"), ("b", "B", "x"), ("c", "Joint", "x"), ("d", "D", "y")]
    recipes = {k: {"method": {"name": n}, "stream": s} for k, n, s in kinds}
    methods = build_report_data(ReportInput(frame, recipes)).methods.set_index("name")
    assert methods.loc[["A", "B", "D"], "rank"].tolist() == [2, 1, 1]
    assert np.isnan(methods.loc["Joint", "rank"])


def test_ledger_makes_a_reference():
    recipe = "0a1b2c3d4e5f"
    ledger = {"p": {f"{recipe}-0-": {"1": {"train": 5, "past": 3}}}}
    frame = matrix_rows([[0.5]], recipe=recipe)
    assert one(build_report_data(ReportInput(frame, ledger=ledger)).methods)["reads_past"]
    assert not one(build_report_data(ReportInput(frame)).methods)["reads_past"]


def test_ranks_of_means_equal_up_to_rounding_are_equal():
    rows = {"A": [0.1, 0.2, 0.3], "B": [0.3, 0.2, 0.1], "C": [0.1, 0.1, 0.1]}
    frame = pd.concat([
        matrix_rows([[0.5, 0, 0], [0.5, 0.5, 0], row], label=name, recipe=name)
        for name, row in rows.items()
    ])  # fmt: skip
    methods = build_report_data(ReportInput(frame)).methods.set_index("name")
    assert methods.loc["A", "average_accuracy"] != methods.loc["B", "average_accuracy"]
    assert methods.loc[["A", "B", "C"], "rank"].tolist() == [1, 1, 3]


def test_intransigence_against_joint_of_the_same_order():
    joint = [[0.95, 0.0], [0.9, 0.97]]
    own = [[0.9, 0.0], [0.7, 0.96]]
    frame = pd.concat([
        matrix_rows(joint, label="Joint", recipe="j", order="0-1"),
        matrix_rows(own, recipe="m", order="0-1"),
        matrix_rows(own, recipe="m", order="1-0"),
    ])  # fmt: skip
    recipes = {"j": {"method": {"name": "Joint"}}, "m": {"method": {"name": "EWC"}}}
    runs = build_report_data(ReportInput(frame, recipes)).runs
    mine = runs[runs["name"] == "EWC"].set_index("order")
    assert mine.loc["0-1", "intransigence"] == pytest.approx(0.01)
    assert np.isnan(mine.loc["1-0", "intransigence"])
    assert mine.loc["0-1", "distance"] == pytest.approx(np.hypot(0.2, 0.01))


def test_intransigence_pairs_the_reference_by_seed():
    def frame(value, seed, **names):
        return matrix_rows([[value, value], [value, value]], seed=seed, **names)

    frames = [frame(0.6 + s / 5, s, label="Joint", recipe="j") for s in (0, 1)]
    frames += [frame(0.5 + s / 10, s, recipe="m") for s in (0, 1)]
    frames += [frame(0.5, s, label="SI", recipe="s") for s in (0, 7)]  # 7 has no partner
    recipes = {"j": {"method": {"name": "Joint"}}, "m": {"method": {"name": "EWC"}},
               "s": {"method": {"name": "SI"}}}  # fmt: skip
    runs = build_report_data(ReportInput(pd.concat(frames), recipes)).runs.set_index(
        ["recipe", "seed"]
    )
    found = runs["intransigence"]
    assert found["m"].tolist() == pytest.approx([0.1, 0.2])
    assert found["s"].tolist() == pytest.approx([0.2, 0.2])  # against the mean
    assert found["j"].tolist() == pytest.approx([0.0, 0.0])


def test_task_disparity_follows_content_not_position():
    # Each task has the same accuracy wherever it stands: the order does not matter.
    accuracy = {"0": 0.9, "1": 0.4, "2": 0.6}
    frames = [
        matrix_rows([[accuracy[t] for t in order.split("-")]] * 3, order=order)
        for order in ("0-1-2", "2-0-1")
    ]
    row = one(order_disparities(build_report_data(ReportInput(pd.concat(frames)))))
    assert row["task_aopd"] == pytest.approx(0.0)
    assert row["orders"] == 2


def test_stage_curves_leave_out_tasks_not_learnt():
    curves = stage_curves(build_report_data(ReportInput(matrix_rows(GOLDEN))), ["EWC"])
    assert len(curves[curves["task"] == 2]) == 1
    mean = curves[curves["task"] == -1].sort_values("stage")["value"]
    assert mean.tolist() == pytest.approx([0.9, 0.875, 0.72])


def test_all_tasks_seen_of_label_sets_are_not_the_mean_of_their_scores():
    """Tasks share rows: the first figure of the page is the number of its summary."""
    tasks = matrix_rows([[0.9, 0], [0.6, 0.4]]).assign(metric="precision_weighted_jaccard")
    whole = tasks[tasks["task"] == 0].assign(task=-1, value=[0.9, 0.57])
    facts = build_report_data(ReportInput(pd.concat([tasks, whole])))
    curves = stage_curves(facts, ["EWC"])
    seen = curves[curves["task"] == -1].sort_values("stage")["value"]
    assert seen.tolist() == pytest.approx([0.9, 0.57])
    assert seen.iloc[-1] == one(facts.methods)["average_accuracy"]


def test_class_disparity_of_label_sets_counts_an_image_once():
    """Accuracies of a label in single tasks, which share images, are no part of it."""
    frames = []
    for order, found in (("configuration-0", 0.8), ("configuration-1", 0.6)):
        tasks = matrix_rows([[0.9, 0], [0.6, 0.4]], order=order)
        frames.append(tasks.assign(metric="precision_weighted_jaccard"))
        last = tasks[tasks["stage"] == 1].assign(metric="class_accuracy", cls=5)
        frames += [last.assign(value=1.0), last[:1].assign(task=-1, value=found)]
    row = one(order_disparities(build_report_data(ReportInput(pd.concat(frames)))))
    assert row["class_aopd"] == pytest.approx(0.2)


def test_progress_is_capped_and_ends_at_the_stage(frame_of):
    facts = build_report_data(
        ReportInput(frame_of(["A", "B"], seeds=2, tasks=3, points=400, classes=0))
    )
    curves = progress_curves(facts, "accuracy", ["A"])
    assert set(curves["name"]) == {"A"}
    assert curves.groupby(["task"]).size().max() <= 246
    assert curves["x"].max() == pytest.approx(3.0, abs=0.02)
    assert set(progress_curves(facts, "loss/", ["A"])["metric"]) == {"loss/task", "loss/penalty"}


def test_sampled_is_capped_and_repeatable():
    table = pd.DataFrame({"name": ["a"] * 1000 + ["b"] * 3, "v": range(1003)})
    chosen = sample_rows(table, ["name"], 100)
    assert chosen["name"].value_counts().to_dict() == {"a": 100, "b": 3}
    assert chosen.equals(sample_rows(table, ["name"], 100))


def test_bad_inputs_are_refused():
    with pytest.raises(BadArgument, match="frame: expected a pandas DataFrame, got 'list'"):
        ReportInput([])
    good = matrix_rows(GOLDEN)
    with pytest.raises(BadArgument, match=r"reproductions\[0\].*without table"):
        ReportInput(good, reproductions=[pd.DataFrame({"paper": []})])
