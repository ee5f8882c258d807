from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram import metrics
from engram.errors import BadArgument
from engram.records import (
    EvaluationItems,
    Prediction,
    Result,
    Rows,
    accuracy_matrix,
    head_views,
    predict,
    record_stage,
)
from engram.records.predictions import Predictions, from_float16, pack_predictions, to_float16
from tests.records.synthetic import make_items, make_scores
from tests.refusals import refuses


def by_hand(scores: np.ndarray, items: EvaluationItems, stage: int, head: str) -> list[int]:
    """The definition, one item and one column at a time."""
    chosen = []
    for i in range(len(items)):
        best = None
        for c in range(items.width):
            allowed = (
                items.opening[c] <= stage if head == "single" else items.visible[items.task[i], c]
            )
            if allowed and (best is None or scores[i, c] > scores[i, best]):
                best = c
        chosen.append(best)
    return chosen


@pytest.mark.parametrize("head", ["single", "multi"])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_predictions_follow_the_definition(head: str, stage: int) -> None:
    items = make_items()
    scores = make_scores(items, 3).round(-2)  # many ties
    assert predict(scores, items, stage=stage, head=head).tolist() == by_hand(
        scores, items, stage, head
    )


def test_future_tasks_single_view_is_never_right_multi_view_guesses() -> None:
    items = make_items()
    scores = np.zeros((len(items), items.width))
    scores[np.arange(len(items)), items.targets[:, 0]] = 9.0
    single = accuracy_matrix([scores] * 3, items, head="single")
    multi = accuracy_matrix([scores] * 3, items, head="multi")
    assert single.tolist() == np.tril(np.ones((3, 3))).tolist()
    assert multi.tolist() == np.ones((3, 3)).tolist()


def test_ties_and_not_a_number() -> None:
    items = EvaluationItems(
        rows=[0, 1], task=[0, 0], targets=[0, 1], opening=[0, 0], visible=[[1, 1]], classes=[0, 1]
    )
    assert predict(np.zeros((2, 2)), items, stage=0, head="single").tolist() == [0, 0]
    broken = np.array([[np.nan, 1.0], [np.nan, np.nan]])
    assert predict(broken, items, stage=0, head="single").tolist() == [1, 0]


def test_the_lowest_score_still_beats_a_closed_column() -> None:
    items = make_items()
    scores = np.full((len(items), items.width), -np.inf)
    scores[:, -1] = 5.0
    for one in (scores, np.where(scores < 0, np.nan, scores), from_float16(*to_float16(scores))):
        assert predict(one, items, stage=0, head="single").max() < 2


def test_stored_scores_are_finite_and_order_like_the_scores() -> None:
    given = np.array([[np.nan, -np.inf, -6e4, -0.1, 0.0, 0.1, 6e4], [np.nan, -1e30, 0, 1, 2, 3, 4]])
    for kind in (np.float32, np.float64):
        stored, exponent = to_float16(given.astype(kind))
        assert stored.dtype == np.float16
        assert np.isfinite(stored).all()
        assert (np.diff(stored.astype(np.float64), axis=1) >= 0).all()
        np.testing.assert_array_equal(stored[0, 2:], given[0, 2:].astype(np.float16))
        assert exponent is not None
        assert exponent[0] == 0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(-120, 120))
def test_scores_keep_their_scale(seed: int, power: int) -> None:
    scores = np.random.default_rng(seed).normal(size=(20, 6)).astype(np.float32)
    scaled = np.ldexp(scores, power)
    back = from_float16(*to_float16(scaled))
    most = abs(scaled).max(axis=1, keepdims=True)
    assert (abs(back - scaled) <= most * 2.0**-11).all()


def test_scores_within_half_precision_are_stored_as_they_are() -> None:
    scores = make_scores(make_items(), 5)
    stored, exponent = to_float16(scores)
    assert exponent is None
    np.testing.assert_array_equal(stored, scores.astype(np.float32).astype(np.float16))


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e6, 1e30])
@pytest.mark.parametrize("keep", ["scores", "labels", "parameters"])
def test_scores_are_judged_before_they_are_rounded(keep: str, scale: float) -> None:
    items = make_items()
    truth = items.targets[:, 0]
    scores = np.zeros((len(items), items.width), np.float32)
    scores[np.arange(len(items)), truth] = 2.0**-12  # float16 steps by 2 ** -10 around 1
    scores += 1
    for stage in range(3):
        rows = Rows(recipe="r", seed=0)
        record_stage(rows, scores * np.float32(scale), items, stage=stage)
        frame = rows.frame().query("metric == 'accuracy'")
        assert (frame.query("task <= @stage or head == 'multi'")["value"] == 1).all()
        kept = Prediction.from_scores(
            scores * np.float32(scale), items, recipe="r", seed=0, stage=stage, keep=keep,
            parameters=np.zeros(1),
        )  # fmt: skip
        assert kept is not None
        for head in head_views.HEADS:
            said = kept.predicted(items, head=head)
            right = head_views.task_accuracy(said, items)
            wanted = frame.query("head == @head")["value"].to_numpy()
            np.testing.assert_array_equal(right, wanted)


def test_files_that_hold_scores_alone_are_judged_by_them() -> None:
    items, scores = make_items(), make_scores(make_items(), 4).astype(np.float16)
    key = Prediction.from_scores(scores, items, recipe="r", seed=0, stage=2).key
    older = Prediction(key=key, scores=scores)
    for head in head_views.HEADS:
        expected = predict(scores, items, stage=2, head=head)
        np.testing.assert_array_equal(older.predicted(items, head=head), expected)


def test_micro_and_macro_task_accuracy() -> None:
    # [T-M1] a task with classes of 30 and 10 items and class accuracies 0.5 and 1
    items = EvaluationItems(
        rows=range(40), task=[0] * 40, targets=[0] * 30 + [1] * 10, opening=[0, 0],
        visible=[[1, 1]], classes=[5, 2],
    )  # fmt: skip
    said = np.array([0] * 15 + [1] * 25)
    assert head_views.task_accuracy(said, items)[0] == pytest.approx(0.625)
    assert head_views.task_accuracy(said, items, average="macro")[0] == pytest.approx(0.75)
    table = head_views.class_table(said, items)
    assert table.accuracy.tolist() == [[0.5, 1.0]]
    assert table.number.tolist() == [[30, 10]]


def test_tables_agree_with_metrics_and_take_leading_axes() -> None:
    items = make_items()
    scores = np.stack([make_scores(items, s) for s in range(4)])  # [runs, n, C]
    said = predict(scores, items, stage=2, head="single")
    y = items.targets[:, 0]
    for run in range(4):
        each = metrics.class_accuracy(y, said[run], classes=np.arange(items.width))
        np.testing.assert_allclose(
            np.nansum(head_views.class_table(said, items).accuracy[run], 0), each
        )
        own = [metrics.accuracy(y[items.task == t], said[run][items.task == t]) for t in range(3)]
        np.testing.assert_array_equal(head_views.task_accuracy(said, items)[run], own)
        macro = [
            metrics.task_accuracy(y[items.task == t], said[run][items.task == t], average="macro")
            for t in range(3)
        ]
        np.testing.assert_allclose(
            head_views.task_accuracy(said, items, average="macro")[run], macro
        )
        np.testing.assert_array_equal(
            head_views.confusion(said[run], items, stage=2),
            metrics.confusion_matrix(y, said[run], classes=np.arange(items.width)),
        )
        share = head_views.predicted_share(said, items, stage=2)[run]
        np.testing.assert_allclose(share, np.bincount(said[run], minlength=6) / len(y))


def test_shares_and_confusion_leave_out_future_tasks() -> None:
    items = make_items()
    said = predict(make_scores(items, 1), items, stage=0, head="single")
    assert head_views.predicted_share(said, items, stage=0).sum() == pytest.approx(1.0)
    assert head_views.confusion(said, items, stage=0).sum() == (items.task == 0).sum()


def test_calibration_error_uses_only_open_columns() -> None:
    items = make_items(tasks=2, width=1)
    scores = np.zeros((len(items), 2))
    # After stage 0 one column is open: confidence 1, always right.
    assert head_views.calibration_error(scores, items, stage=0, head="single") == 0.0
    # After stage 1 confidence is one half and the first class, 7 of 15, is right.
    expected = abs(0.5 - 7 / 15)
    found = head_views.calibration_error(scores, items, stage=1, head="single")
    assert found == pytest.approx(expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["single", "multi"]), st.integers(0, 2))
def test_kept_scores_and_kept_labels_give_the_same_predictions(
    seed: int, head: str, stage: int
) -> None:
    items, run = make_items(), {"recipe": "r", "seed": 0, "stage": stage}
    scores = make_scores(items, seed)
    direct = predict(scores.astype(np.float32), items, stage=stage, head=head)
    for keep in ("scores", "labels"):
        kept = Prediction.from_scores(scores, items, keep=keep, **run)
        assert kept is not None
        np.testing.assert_array_equal(kept.predicted(items, head=head), direct)


def hierarchy() -> EvaluationItems:
    # [T-M17] superclass A = {a, b}, orphan o; tasks [A], [a, o], [b]; columns A, a, o, b;
    # test images a, a, b, o belong to every task that introduces one of their labels.
    images = {0: [0, 1], 1: [0, 1], 2: [0, 3], 3: [2, -1]}
    pairs = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (3, 1), (2, 2)]
    return EvaluationItems(
        rows=[row for row, _ in pairs], task=[task for _, task in pairs],
        targets=[images[row] for row, _ in pairs], opening=[0, 1, 1, 2],
        visible=[[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]], classes=[0, 1, 2, 3],
        names=("A", "a", "o", "b"), multilabel=True,
    )  # fmt: skip


def test_multi_label_scores_of_a_hierarchy() -> None:
    items = hierarchy()
    scores = np.full((len(items), 4), -1.0)
    scores[np.arange(7), np.where(items.rows == 3, 2, 0)] = 1.0  # {A} for a, a, b and {o} for o
    sets = head_views.predict_sets(scores, items, stage=1, head="single")
    tasks = head_views.set_scores(sets, items, stage=1)
    assert tasks[:2] == pytest.approx([2 / 3, 2 / 3], abs=1e-5)
    assert np.isnan(tasks[2])
    assert head_views.overall_set_score(sets, items, stage=1) == pytest.approx(0.75, abs=1e-5)
    packed = Prediction.from_scores(scores, items, recipe="r", seed=0, stage=1, keep="labels")
    assert packed is not None
    np.testing.assert_array_equal(packed.predicted(items, head="single"), sets)


def test_an_image_that_several_tasks_test_is_counted_once() -> None:
    """Images a, a, b, o; the first is tested by tasks 0 and 1, so are the second and the third."""
    items = hierarchy()
    said = np.zeros((7, 4), np.bool_)
    said[:, 0] = np.isin(items.rows, [0, 2])  # {A} for one a and for b, nothing for the rest
    counts = head_views.confusion(said, items, stage=1)
    assert counts[0].tolist() == [2, 0, 0, 0]  # three images of A, two of them named so
    assert counts[1].tolist() == [1, 0, 0, 0]
    assert head_views.predicted_share(said, items, stage=1).tolist() == [0.5, 0, 0, 0]
    recall = head_views.label_recall(said, items, stage=1)
    assert recall[:3] == pytest.approx([2 / 3, 0, 0])
    assert np.isnan(recall[3])  # not opened yet
    rows = Rows(recipe="r", label="ER", seed=0)
    record_stage(rows, np.where(said, 1.0, -1.0), items, stage=1)
    table = Result(rows.frame()).class_accuracy(stage=1)
    assert table[[0, 1, 2]].values.tolist() == [pytest.approx([2 / 3, 0, 0])]


def test_images_counted_twice_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant counts an image for every task that tests it."""
    monkeypatch.setattr(EvaluationItems, "counted", lambda self, stage: self.task <= stage)
    with pytest.raises(AssertionError):
        test_an_image_that_several_tasks_test_is_counted_once()
    with pytest.raises(AssertionError):
        test_multi_label_scores_of_a_hierarchy()


def test_label_sets_have_no_view_by_task() -> None:
    items = hierarchy()
    assert items.heads == ("single",)
    scores = np.zeros((len(items), 4))
    rows = Rows(recipe="r", label="ER", seed=0)
    record_stage(rows, scores, items, stage=1)
    assert set(rows.frame()["head"]) <= {"single", ""}
    kept = Prediction.from_scores(scores, items, recipe="r", seed=0, stage=1)
    assert kept is not None
    with pytest.raises(BadArgument, match="belongs to several tasks"):
        kept.predicted(items, head="multi")
    with pytest.raises(BadArgument, match="a view that was recorded"):
        Result(rows.frame()).view(head="multi")


def test_wrong_shapes_and_names_are_refused() -> None:
    items = make_items()
    with refuses("scores"):
        predict(np.zeros((3, 6)), items, stage=0, head="single")
    with refuses("head", near="single"):
        predict(make_scores(items, 0), items, stage=0, head="singel")
    with refuses("parameters"):
        Prediction.from_scores(
            make_scores(items, 0), items, recipe="r", seed=0, stage=0, keep="parameters"
        )
    with refuses("targets"):
        EvaluationItems(rows=[0], task=[0], targets=[4], opening=[0], visible=[[1]], classes=[0])


def test_a_column_beyond_two_bytes_stays_itself(tmp_path):
    width = 70_000
    items = EvaluationItems(
        rows=[0], task=[0], targets=[width - 1], opening=[0] * width, visible=[[1] * width],
        classes=range(width),
    )  # fmt: skip
    one = Prediction.from_scores(
        np.arange(width)[None], items, recipe="r", seed=0, stage=0, keep="labels"
    )
    path = tmp_path / "predictions-1.safetensors"
    path.write_bytes(pack_predictions([one]))
    again = Predictions([path]).get("r", 0, "", 0)
    assert again.predicted(items, head="single").tolist() == [width - 1]
