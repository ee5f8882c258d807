from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import engram
from engram import metrics
from engram.errors import BadArgument, RecordError
from engram.records import (
    Prediction,
    Result,
    Rows,
    RunDirectory,
    RunKey,
    combine,
    from_csv,
    head_views,
    predict,
    read,
    record_stage,
)
from engram.records.predictions import from_float16, to_float16
from engram.report import from_result
from engram.report.report_data import build_report_data
from tests.records.synthetic import RECIPES, fill, make_items, make_scores
from tests.records.test_head_views import hierarchy
from tests.refusals import refuses

TRIANGLE = [[0.9, 0.3, 0.2], [0.95, 0.8, 0.1], [0.7, 0.5, 0.96]]


def from_matrix(
    matrix: object, *, label: str = "EWC", seed: int = 0, head: str = "single"
) -> Result:
    rows = Rows(recipe=label, label=label, seed=seed)
    array = np.asarray(matrix)
    stage, task = np.indices(array.shape)
    rows.add_array("accuracy", array, stage=stage, task=task, head=head)
    return Result(rows.frame())


def test_matrix_hides_the_future_and_full_matrix_keeps_it() -> None:
    result = from_matrix(TRIANGLE)
    np.testing.assert_array_equal(result.full_matrix[0], TRIANGLE)
    np.testing.assert_array_equal(np.isnan(result.matrix[0]), np.triu(np.ones((3, 3)), 1) > 0)


def test_metrics_of_the_golden_matrix() -> None:
    # [T-M2]
    result = from_matrix(TRIANGLE)
    assert result.metric("average_accuracy") == pytest.approx([0.72], abs=1e-5)
    assert result.metric("forgetting") == pytest.approx([0.275], abs=1e-5)
    assert result.metric("forgetting", definition="diagonal") == pytest.approx([0.25], abs=1e-5)
    assert result.metric("forgetting", stage=1) == pytest.approx([-0.05], abs=1e-5)
    assert result.metric("backward_transfer", definition="all") == pytest.approx([-0.15], abs=1e-5)
    assert result.metric("forgetting_bound") == pytest.approx([0.40], abs=1e-5)
    assert result.curve("average_accuracy")[0] == pytest.approx([0.9, 0.875, 0.72], abs=1e-5)
    joint = from_matrix(np.full((3, 3), 0.97))
    assert result.metric("intransigence", reference=joint) == pytest.approx([0.01], abs=1e-5)
    assert result.metric("forgetting", definition="first") == pytest.approx([0.275], abs=1e-5)
    assert result.metric("forward_transfer", chance=0.1) == pytest.approx([0.1], abs=1e-5)
    with refuses("metric", near="forgetting"):
        result.metric("forgeting")


def several(*parts: Result) -> Result:
    return Result(pd.concat([part.frame() for part in parts], ignore_index=True))


def test_intransigence_pairs_the_reference_by_seed() -> None:
    mine = several(*(from_matrix(np.full((2, 2), 0.5 + s / 10), seed=s) for s in (0, 1, 2)))
    # in another sequence, and far from the mean
    joint = several(
        *(from_matrix(np.full((2, 2), 0.6 + s / 5), label="Joint", seed=s) for s in (2, 0, 1))
    )
    assert mine.metric("intransigence", reference=joint) == pytest.approx([0.1, 0.2, 0.3])
    assert mine.select(seed=1).metric("intransigence", reference=joint) == pytest.approx([0.2])


def test_intransigence_of_other_seeds_takes_the_mean_and_says_so() -> None:
    mine = several(*(from_matrix(np.full((2, 2), 0.5), seed=s) for s in (0, 7)))
    joint = several(
        *(from_matrix(np.full((2, 2), 0.6 + s / 5), label="Joint", seed=s) for s in (0, 1))
    )
    with pytest.warns(
        UserWarning, match=r"no runs of seeds \[7\]: the mean over its seeds \[0, 1\]"
    ):
        found = mine.metric("intransigence", reference=joint)
    assert found == pytest.approx([0.2, 0.2])
    short = from_matrix(np.full((3, 3), 0.6), label="Joint")
    with pytest.raises(BadArgument, match="reference: expected runs over 2 tasks"):
        mine.metric("intransigence", reference=short)


def with_chance(values: list[float], *, head: str) -> Result:
    rows = Rows(recipe="EWC", label="EWC", seed=0)
    rows.add_array("chance", np.array(values), stage=0, task=np.arange(3), head=head)
    return several(from_matrix(TRIANGLE, head=head), Result(rows.frame()))


def test_forward_transfer_of_unseen_classes_is_no_number() -> None:
    new = with_chance([1 / 2, 1 / 4, 1 / 6], head="single")
    assert np.isnan(new.metric("forward_transfer")).all()
    assert np.isnan(new.metric("forward_transfer", chance=0.1)).all()
    late = with_chance([1 / 2, 1 / 2, 1 / 4], head="single")  # the third task brings classes
    assert np.isnan(late.metric("forward_transfer")).all()
    assert not np.isnan(late.metric("forward_transfer", stage=1)).any()
    known = with_chance([1 / 2, 1 / 2, 1 / 2], head="single")
    told = with_chance([1 / 2, 1 / 3, 1 / 4], head="multi")  # an output for each task
    assert not np.isnan(known.metric("forward_transfer")).any()
    assert not np.isnan(told.metric("forward_transfer")).any()


def test_pyclad_reads_accuracies_before_a_task_is_learnt() -> None:
    full = [[0.9, 0.85, 0.0], [0.95, 0.8, 0.2], [0.7, 0.5, 0.96]]
    result = from_matrix(full)
    found = result.metric("forgetting", definition="pyclad")
    assert found == pytest.approx(
        [((0.95 - 0.7) + (0.85 - 0.5) + (0.2 - 0.96)) / 3], abs=1e-6
    )  # the newest task too, as at commit bbcbb43


def test_a_reference_that_trains_only_at_the_end_forgets_nothing() -> None:
    stream = engram.class_incremental(engram.load("blobs"), classes_per_task=5)
    result = engram.run(stream, method=["Finetune", {"name": "Joint", "skip": 1}], epochs=2)
    for name in ("forgetting", "backward_transfer", "learning_accuracy"):
        assert np.isnan(result.metric(name)).tolist() == [False, True]
    assert (result.metric("average_accuracy") > 0).all()
    runs = build_report_data(from_result(result)).runs
    joint = runs[(runs["name"].str.startswith("Joint")) & (runs["head"] == "single")].iloc[0]
    assert np.isnan(joint["forgetting/max"])
    assert joint["average_accuracy"] > 0


def test_each_run_is_seen_through_its_own_head(folder: RunDirectory) -> None:
    result = read(folder.path)
    assert result.labels == ["ER", "EWC"]
    assert result.runs == [RunKey(recipe, seed, "") for recipe in RECIPES for seed in range(2)]
    assert result.heads == ["single", "single", "multi", "multi"]
    single, multi = result.view(head="single"), result.view(head="multi")
    np.testing.assert_array_equal(result.full_matrix[:2], single.full_matrix[:2])
    np.testing.assert_array_equal(result.full_matrix[2:], multi.full_matrix[2:])
    assert not np.array_equal(single.full_matrix, multi.full_matrix)
    items = make_items()
    expected = metrics.accuracy(items.targets[:7, 0], make_scores(items, 0)[:7, :2].argmax(1))
    first = single.class_accuracy(stage=0).iloc[0]
    assert first[items.classes[0]] == expected


def test_unknown_own_head_is_an_error_that_names_the_way_out() -> None:
    both = pd.concat([from_matrix(TRIANGLE, head=h).frame() for h in ("single", "multi")])
    result = Result(both)
    with pytest.raises(RecordError, match=r"view\(head"):
        _ = result.matrix
    assert result.view(head="multi").matrix.shape == (1, 3, 3)
    with refuses("head"):
        from_matrix(TRIANGLE).view(head="multi")


def test_summary_is_mean_and_sample_std_over_runs() -> None:
    shifted = np.asarray(TRIANGLE) - 0.1
    result = combine([from_matrix(TRIANGLE), from_matrix(shifted, seed=1)])
    table = result.summary()
    row = table.loc["EWC"]
    assert row["runs"] == row["finished"] == 2
    assert row["average_accuracy"] == pytest.approx(0.67)
    assert row["average_accuracy_std"] == pytest.approx(np.std([0.72, 0.62], ddof=1))
    assert row["forgetting"] == pytest.approx(0.275)
    assert result.summary(definition="cglb").loc["EWC", "forgetting"] == pytest.approx(-0.25)
    assert "0.670 ± 0.071" in repr(result)


def test_unfinished_and_diverged_runs_are_counted_not_averaged() -> None:
    rows = Rows(recipe="EWC", label="EWC", seed=1)
    rows.add_array("accuracy", TRIANGLE[0], stage=0, task=[0, 1, 2], head="single")
    rows.add("diverged", 1.0, stage=1)
    result = combine([from_matrix(TRIANGLE), Result(rows.frame())])
    row = result.summary().loc["EWC"]
    assert (row["runs"], row["finished"], row["diverged"]) == (2, 1, 1)
    assert row["average_accuracy"] == pytest.approx(0.72)
    assert result.diverged == {RunKey("EWC", 1, ""): 1}
    assert "1 run without a last stage, 1 diverged" in repr(result)


def test_streams_of_different_length_live_in_one_result() -> None:
    short = from_matrix([[0.5, 0.0], [0.4, 0.6]], label="ER")
    result = combine([from_matrix(TRIANGLE), short])
    assert result.matrix.shape == (2, 3, 3)
    assert result.metric("average_accuracy") == pytest.approx([0.72, 0.5])
    assert result.metric("average_accuracy", stage=-2) == pytest.approx([0.875, 0.5])
    assert np.isnan(result.metric("average_accuracy", stage=2)[1])


def test_labels_shared_by_two_recipes_are_told_apart() -> None:
    rows = Rows()
    for recipe in ("r1", "r2"):
        rows.add("accuracy", 0.5, recipe=recipe, label="ER", stage=0, task=0, head="single")
    assert Result(rows.frame()).labels == ["ER (1)", "ER (2)"]


def test_select_by_label_seed_and_order(folder: RunDirectory) -> None:
    result = read(folder.path)
    one = result.select(label="ER", seed=[1])
    assert one.runs == [RunKey("aaaaaaaaaaaa", 1, "")]
    np.testing.assert_array_equal(one.matrix[0], result.matrix[1])
    with refuses("label", near="ER"):
        result.select(label="ERR")
    with pytest.raises(BadArgument, match=r"seed: expected a seed of these runs, such as 0, 1.* 7"):
        result.select(seed=[0, 7])
    with pytest.raises(BadArgument, match="order: unknown name 't1-0'"):
        result.select(order="t1-0")


def test_cost_adds_time_and_takes_the_largest_memory(folder: RunDirectory) -> None:
    table = read(folder.path).select(stream="single").cost()
    assert table.loc["ER", "seconds"] == 6.0
    assert table.loc["ER", "steps"] == 30
    assert table.loc["ER", "memory_items"] == 15
    assert "state_bytes" not in table


@pytest.mark.parametrize("keep", ["scores", "labels", "counts", "parameters"])
def test_recomputed_numbers_equal_the_recorded_ones(tmp_path: Path, keep: str) -> None:
    fill(tmp_path, keep=keep)
    result = read(tmp_path)
    again = result.recompute()
    for head in ("single", "multi"):
        np.testing.assert_array_equal(
            again.view(head=head).full_matrix, result.view(head=head).full_matrix
        )
    order = ["recipe", "seed", "stage", "step", "task", "cls", "head", "metric"]
    frames = [
        one.frame().astype(dict.fromkeys(("recipe", "label", "order", "head", "metric"), str))
        .sort_values(order).reset_index(drop=True)
        for one in (result, again)
    ]  # fmt: skip
    pd.testing.assert_frame_equal(*frames, check_exact=True)


def test_made_up_scores_change_their_predictions_when_rounded() -> None:
    # Otherwise the equality above would hold for numbers recorded from rounded scores, too.
    items = make_items()
    scores = make_scores(items, 0)
    exact, stored = (
        predict(s, items, stage=2, head="single")
        for s in (scores, from_float16(*to_float16(scores)))
    )
    assert (exact != stored).mean() > 0.2


@pytest.mark.parametrize("keep", ["scores", "labels", "counts"])
def test_macro_accuracy_is_recomputed_from_whatever_was_kept(tmp_path: Path, keep: str) -> None:
    fill(tmp_path, keep=keep)
    result = read(tmp_path)
    macro = result.recompute(average="macro")
    rows = result.frame().query(
        "metric == 'class_accuracy' and recipe == 'aaaaaaaaaaaa' and seed == 0 and head == 'single'"
    )
    expected = rows.groupby(["stage", "task"])["value"].mean().unstack().to_numpy()
    np.testing.assert_allclose(macro.full_matrix[0], expected)
    assert not np.array_equal(macro.full_matrix, result.full_matrix)
    assert not np.allclose(
        macro.metric("forgetting", definition="diagonal"),
        result.metric("forgetting", definition="diagonal"),
    )


def test_recompute_says_what_was_not_kept() -> None:
    with pytest.raises(RecordError, match="neither predictions nor counts"):
        from_matrix(TRIANGLE).recompute()


def test_multi_label_streams_are_recorded_and_recomputed() -> None:
    items, rows, kept = hierarchy(), Rows(recipe="r", label="ER"), []
    for stage in range(3):
        scores = np.random.default_rng(stage).normal(size=(len(items), 4))
        scores = scores[np.searchsorted([0, 1, 2, 3], items.rows)]  # equal rows, equal scores
        record_stage(rows, scores, items, stage=stage)
        kept.append(Prediction.from_scores(scores, items, recipe="r", seed=0, stage=stage))
    recipes = {"r": {"stream": {"head": "single"}}}
    result = Result(rows.frame(), recipes=recipes, predictions=kept, items={("r", ""): items})
    np.testing.assert_array_equal(result.recompute().full_matrix, result.full_matrix)
    match = result.recompute(score="exact_match")
    assert np.nanmax(match.matrix) <= 1.0
    assert not np.array_equal(match.full_matrix, result.full_matrix, equal_nan=True)
    everything = result.recompute(threshold=-1e9, score="jaccard")  # every open label predicted
    assert everything.matrix[0, 0, 0] == 1.0
    np.testing.assert_allclose(everything.matrix[0, 1, 0], (2 / 3 + 2 / 3 + 1 / 3) / 3)
    overall = result.frame().query("metric == 'jaccard' and head == 'single'")
    assert overall["task"].tolist() == [-1, -1, -1]


def label_sets(name: str = "r") -> Result:
    """A run over a hierarchy whose scores are drawn, with its predictions."""
    items, rows, kept = hierarchy(), Rows(recipe=name, label=name), []
    for stage in range(3):
        scores = np.random.default_rng(stage).normal(size=(4, 4))[items.rows]
        record_stage(rows, scores, items, stage=stage)
        kept.append(Prediction.from_scores(scores, items, recipe=name, seed=0, stage=stage))
    recipes = {name: {"stream": {"head": "single"}}}
    return Result(rows.frame(), recipes=recipes, predictions=kept, items={(name, ""): items})


def test_label_sets_are_never_called_accuracy() -> None:
    result = label_sets()
    assert "accuracy" not in set(result.frame()["metric"])
    assert result.figures == ["precision_weighted_jaccard"]
    table = result.summary()
    assert [c for c in table.columns if "accuracy" in c] == []
    assert table["finished"].tolist() == [1]
    items, last = hierarchy(), result.predictions.get("r", 0, "", 2)
    sets = last.predicted(items, head="single")
    expected = head_views.overall_set_score(sets, items, stage=2)
    assert table["precision_weighted_jaccard"].tolist() == pytest.approx([expected])
    diagonal = np.diagonal(result.matrix[0]).mean()
    assert table["learning_precision_weighted_jaccard"].tolist() == pytest.approx([diagonal])
    assert "precision_weighted_jaccard" in repr(result)
    assert "accuracy" not in repr(result)
    assert result.curve("precision_weighted_jaccard").shape == (1, 3)
    other = result.recompute(score="jaccard")
    assert other.figures == ["jaccard"]
    assert "jaccard" in other.summary()


def test_metrics_that_label_sets_do_not_have_are_refused() -> None:
    result = label_sets()
    with pytest.raises(
        BadArgument, match="precision_weighted_jaccard, because the runs have label sets"
    ):
        result.metric("average_accuracy")
    with pytest.raises(BadArgument, match="expected learning_precision_weighted_jaccard"):
        result.metric("learning_accuracy")
    with pytest.raises(BadArgument, match="uses no task before it is learnt"):
        result.metric("forgetting", definition="first")
    with pytest.raises(BadArgument, match="since the items carry sets of labels"):
        result.recompute(score="accuracy")


def test_both_kinds_of_labels_in_one_result_keep_their_own_figure() -> None:
    both = combine([from_matrix(TRIANGLE), label_sets()])
    assert both.figures == ["accuracy", "precision_weighted_jaccard"]
    table = both.summary()
    assert np.isnan(table["average_accuracy"]).tolist() == [False, True]
    assert np.isnan(table["precision_weighted_jaccard"]).tolist() == [True, False]
    assert table["finished"].tolist() == [1, 1]
    np.testing.assert_array_equal(both.metric("average_accuracy")[0],
                                  from_matrix(TRIANGLE).metric("average_accuracy")[0])  # fmt: skip
    assert not np.isnan(both.metric("forgetting")).any()


def test_calibration_of_label_sets_asks_every_open_label() -> None:
    result, items = label_sets(), hierarchy()
    scores = result.predictions.get("r", 0, "", 1).scores.astype(np.float64)
    seen, open_ = [0, 1, 2, 5], items.opening <= 1  # each image once
    truth = head_views.true_sets(items, stage=1)[seen][:, open_]
    said = 1 / (1 + np.exp(-scores[seen][:, open_]))
    pairs = sorted(zip(said.ravel().tolist(), truth.ravel().tolist(), strict=True))
    gaps = [
        sum(p - t for p, t in pairs if k / 15 < p <= (k + 1) / 15) for k in range(15)
    ]  # a bin's weight is its size
    expected = sum(map(abs, gaps)) / len(pairs)
    assert result.calibration(stage=1) == pytest.approx([expected])


def test_confusion_and_calibration_come_from_stored_scores(folder: RunDirectory) -> None:
    result = read(folder.path)
    items = make_items()
    table = result.confusion(0, stage=1)
    assert list(table.index) == ["class 0", "class 1", "class 2", "class 3"]
    assert table.to_numpy().sum() == (items.task <= 1).sum()
    diagonal = np.diag(table) / table.sum(axis=1)
    known = result.class_accuracy(stage=1).iloc[0]
    np.testing.assert_allclose(diagonal, known[items.classes[:4]])
    errors = result.calibration()
    assert errors.shape == (4,)
    assert ((errors > 0) & (errors < 1)).all()
    with refuses("run"):
        result.confusion(7)


def test_saved_results_come_back(folder: RunDirectory, tmp_path: Path) -> None:
    result = read(folder.path)
    result.save(tmp_path / "copy")
    copy = read(tmp_path / "copy")
    np.testing.assert_array_equal(copy.full_matrix, result.full_matrix)
    assert copy.recipes == result.recipes
    assert len(copy.predictions) == len(result.predictions)
    assert len(copy.ledger) == len(result.ledger)
    np.testing.assert_array_equal(copy.recompute().full_matrix, result.full_matrix)


def test_a_directory_in_which_nothing_is_finished_says_so(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "a").write_recipe("aaaaaaaaaaaa", {"method": {"name": "ER"}})
    with pytest.raises(RecordError, match="a: no task of any run is finished yet; engram resume"):
        read(tmp_path / "a")


def test_several_directories_are_read_as_one(tmp_path: Path) -> None:
    fill(tmp_path / "a", seeds=1)
    fill(tmp_path / "b", seeds=2)
    assert len(read(tmp_path / "a", tmp_path / "b").runs) == 4
    with pytest.raises(RecordError, match="not a run directory"):
        read(RunDirectory(tmp_path / "c").path)
    with refuses("path"):
        read(tmp_path / "d")


@pytest.mark.parametrize(
    "text",
    [
        "0.9,,\n0.95,0.8,\n0.7,0.5,0.96\n",
        "0.9\n0.95,0.8\n0.7,0.5,0.96\n",
        "t1,t2,t3\n0.9,nan,nan\n0.95,0.8,nan\n0.7,0.5,0.96\n",
        ",t1,t2,t3\n1,0.9,,\n2,0.95,0.8,\n3,0.7,0.5,0.96\n",
        ",0,1,2\n0,0.9,,\n1,0.95,0.8,\n2,0.7,0.5,0.96\n",
        "after t1,0.9,,\nafter t2,0.95,0.8,\nafter t3,0.7,0.5,0.96\n",
    ],
)
def test_csv_matrices_of_other_tools(tmp_path: Path, text: str) -> None:
    path = tmp_path / "finetune.csv"
    path.write_text(text)
    result = from_csv(path)
    assert result.labels == ["finetune"]
    assert result.metric("forgetting") == pytest.approx([0.275], abs=1e-5)
    assert result.heads == ["single"]


def test_csv_percentages_must_be_declared(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("90,\n70%,80\n")
    with pytest.raises(RecordError, match="percent=True"):
        from_csv(path)
    assert from_csv(path, path, percent=True, head="multi").matrix[1, 1, 0] == pytest.approx(0.7)
    for text in ("90,x\n70,80\n", "", "t1,t2\n"):
        path.write_text(text)
        with pytest.raises(RecordError, match=r"a\.csv"):
            from_csv(path, percent=True)


def test_the_import_is_light() -> None:
    code = "import sys, engram.records; print({'pandas', 'pyarrow', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_ends_leave_curves_out() -> None:
    rows = Rows(recipe="r", label="ER")
    rows.add("accuracy", 0.9, stage=0, task=0, head="single")
    rows.add("accuracy", 0.5, stage=0, task=0, head="single", step=10)
    rows.add("loss/task", 2.0, stage=0, step=10)
    ends = Result(rows.frame()).ends()
    assert ends.frame()["value"].tolist() == [0.9]
    assert ends.matrix.tolist() == [[[0.9]]]
