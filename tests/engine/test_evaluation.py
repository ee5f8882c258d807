"""The stream says how predictions are judged; what does not fit is refused before training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import engram
from engram import methods, metrics
from engram.checks.toy_runs import make_clouds, make_runs, train_runs
from engram.data.dataset import Data
from engram.engine import engine as engine_module
from engram.engine import evaluation
from engram.engine.engine import Engine
from engram.engine.evaluation import validate, validation_items
from engram.engine.run_definition import Run, score_batch
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.learner import feed as feed_module
from engram.learner.batch import Batch
from engram.learner.networks import Net
from engram.losses import masked_ce, multi_hot
from engram.methods.method import Method, State, Terms
from engram.models.forward_pass import Output
from engram.records import EvaluationItems, head_views
from engram.streams import Stream, class_incremental, hierarchical

SETS = Training(epochs=6, batch_size=16, lr=0.02)


def named_clouds() -> Data:
    return replace(make_clouds((40,) * 6), classes=tuple("abcdef"))


def tree() -> Stream:
    """Superclasses first, four fine classes later; in-task validation rows."""
    hierarchy = {"low": ["a", "b"], "high": ["d", "e"]}
    tasks = [["low", "high"], ["a", "c", "d"], ["b", "e"]]
    return hierarchical(named_clouds(), hierarchy=hierarchy, tasks=tasks, valid=0.2)


def test_streams_know_whether_rows_carry_one_label_or_a_set() -> None:
    stream = tree()
    assert stream.labels == "set"
    assert stream[:1].labels == "set"  # a part is judged as the whole
    assert stream.describe()["labels"] == "set"
    assert "label sets" in repr(stream)
    assert class_incremental(named_clouds()).labels == "single"
    data = named_clouds()
    two = replace(data, y=torch.cat([data.y, torch.full_like(data.y, -1)], 1))
    assert class_incremental(two).labels == "single"  # padding is no label


@pytest.mark.parametrize(
    "method",
    [
        methods.ICaRL(),
        methods.ICaRL(variant="hb1"),
        methods.LwF(),
        methods.BiC(),
        methods.Join(methods.ER(), methods.LwF()),
    ],
    ids=repr,
)
def test_methods_that_decide_by_argmax_are_refused_on_label_sets(method: Method) -> None:
    with pytest.raises(BadArgument, match="method: expected one that decides label by label") as no:
        Run(stream=tree(), method=method)
    if option := method.for_label_sets:
        assert f"{type(method).__name__} with {option}" in str(no.value)
        name, value = option.split(" or ")[0].split("=")
        Run(stream=tree(), method=replace(method, **{name: value}))
    Run(stream=class_incremental(named_clouds()), method=method)


def test_an_own_softmax_loss_is_refused_on_label_sets_unless_it_says_otherwise() -> None:
    @dataclass(frozen=True)
    class Own(Method):
        def loss(self, net: Net, batch: Batch, state: State) -> Terms:
            logits = net(batch.x, batch.w).logits
            return {"task": masked_ce(logits, batch.target, batch.open, batch.w)}

    with pytest.raises(BadArgument, match="sets of labels, got 'Own, whose scores allow argmax'"):
        Run(stream=tree(), method=Own())


@pytest.mark.parametrize("loss", ["ce", "balanced"])
def test_softmax_losses_are_refused_on_label_sets(loss: str) -> None:
    with pytest.raises(BadArgument, match=r"loss: expected 'bce' \(or 'auto'\)"):
        Run(stream=tree(), method=methods.ER(), training=Training(loss=loss))


def test_the_default_loss_follows_the_stream() -> None:
    single = class_incremental(named_clouds())
    assert Run(stream=single, method=methods.ER()).loss == "ce"
    assert Run(stream=tree(), method=methods.ER()).loss == "bce"
    both = [
        train_runs(make_runs(methods.ER(), [tree()], training=replace(SETS, loss=loss)))
        for loss in ("auto", "bce")
    ]
    for key, one in both[0].items():
        assert torch.equal(one.vector, both[1][key].vector)


def test_single_labels_trained_with_bce_are_judged_by_argmax() -> None:
    stream = class_incremental(named_clouds(), classes_per_task=3)
    result = engram.run(stream, method="Joint", loss="bce", epochs=3, device="cpu")
    assert result.figures == ["accuracy"]
    scores = result.predictions.get(*result.runs[0], 1).scores
    items = result.items(*result.runs[0][::2])
    right = scores.astype(np.float32).argmax(1) == items.targets[:, 0]
    by_task = [right[items.task == k].mean() for k in range(2)]
    assert result.matrix[0, 1] == pytest.approx(by_task)
    assert "average_accuracy" in result.summary()


def test_label_sets_are_judged_by_the_sets_above_the_threshold() -> None:
    result = engram.run(tree(), method="ER", epochs=6, lr=0.02, device="cpu")
    assert result.figures == ["precision_weighted_jaccard"]
    items = result.items(*result.runs[0][::2])
    scores = result.predictions.get(*result.runs[0], 2).scores.astype(np.float32)
    truth = (items.targets[:, :, None] == np.arange(items.width)).any(1)
    said = scores > 0
    own = items.task == 0
    expected = metrics.precision_weighted_jaccard(truth[own], said[own])
    assert result.matrix[0, 2, 0] == pytest.approx(expected)
    _, once = np.unique(items.rows, return_index=True)
    overall = metrics.precision_weighted_jaccard(truth[once], said[once])
    assert result.metric("precision_weighted_jaccard") == pytest.approx([overall])
    assert overall > 0.3  # it learns


@pytest.mark.parametrize("variant", ["cnn", "norm"])
def test_icarl_on_label_sets_predicts_something(variant: str) -> None:
    method = methods.ICaRL(variant=variant, memory=engram.Memory(per_class=5, policy="herding"))
    result = engram.run(tree(), method=method, epochs=30, lr=0.05, device="cpu")
    assert result.metric("precision_weighted_jaccard")[0] > 0.2


def test_validation_watches_the_figure_of_the_stream() -> None:
    stream = tree()
    run = Run(stream=stream, method=methods.Finetune(), training=replace(SETS, epochs=1))
    engine = Engine([run], device="cpu")
    learner = next(engine.stages()).learner
    watched = validate([learner], [run.method])
    assert list(watched) == ["loss", "score"]
    batch = learner.batch(stream[0].valid)
    truth = (batch.y[:, :, None] == torch.arange(len(stream.order))).any(1)
    said = (learner.net()(batch.x).logits > 0) & batch.open
    expected = metrics.precision_weighted_jaccard(truth.numpy(), said.numpy())
    assert watched["score"] == pytest.approx([expected])
    single = class_incremental(named_clouds(), valid=0.2)
    run = Run(stream=single, method=methods.Finetune(), training=replace(SETS, loss="bce"))
    learner = next(Engine([run], device="cpu").stages()).learner
    batch = learner.batch(single[0].valid)
    shown = learner.net()(batch.x).logits.masked_fill(~batch.open, -torch.inf)
    expected = float((shown.argmax(1) == batch.target).double().mean())
    assert validate([learner], [run.method])["score"] == pytest.approx([expected])


def test_who_trains_on_all_tasks_with_complete_labels_is_validated_so() -> None:
    stream = tree()
    for method, complete in ((methods.IncrementalJoint(), True), (methods.ERInfinite(), False)):
        run = Run(stream=stream, method=method, training=SETS)
        learner = list(Engine([run], device="cpu").stages())[1].learner
        learner.enter(1)  # after the last stage, as if it were the second
        batch = learner.collate(validation_items(learner, method))
        valid = torch.cat([task.valid for task in stream[:2]]).unique()
        rows, sets = (valid, {(0, 2), (1, 4), (3,), (0,), (1,)}) if complete else (
            stream[1].valid, {(2,), (3,), (4,)})  # fmt: skip
        assert len(batch.y) == len(rows)
        assert {tuple(sorted(c for c in y if c >= 0)) for y in batch.y.tolist()} == sets
        expected = metrics.precision_weighted_jaccard(
            multi_hot(batch.y, len(stream.order), torch.bool).numpy(),
            ((learner.net()(batch.x).logits > 0) & learner.seen).numpy(),
        )
        assert validate([learner], [method])["score"] == pytest.approx([expected])


def test_naming_every_label_is_no_better_than_its_precision() -> None:
    """Judged by its argmax, a network that names all labels is as good as one that is right."""
    y, open_ = torch.tensor([[0, 2], [1, -1]]), torch.ones(2, 3, dtype=torch.bool)
    none = torch.zeros(2)
    batch = Batch(none, y, none, none, none, open_, none, none, none, none)
    every = torch.tensor([[3.0, 1.0, 2.0], [1.0, 2.0, 1.0]])  # names every label
    some = torch.tensor([[3.0, -1.0, 2.0], [-1.0, 2.0, -1.0]])
    assert score_batch(some, batch, "set") == 1.0
    assert score_batch(every, batch, "set") == pytest.approx((4 / 9 + 1 / 9) / 2)
    assert score_batch(every, batch, "single") == score_batch(some, batch, "single")


def test_validation_by_argmax_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant watches accuracy on rows that carry sets of labels."""
    monkeypatch.setattr(evaluation, "score_batch", lambda *args: score_batch(*args[:2], "single"))
    with pytest.raises(AssertionError):
        test_validation_watches_the_figure_of_the_stream()


def test_the_watched_figure_must_be_the_streams() -> None:
    single, watching = class_incremental(named_clouds(), valid=0.2), Training(schedule="plateau")
    training = replace(watching, plateau_watch="precision_weighted_jaccard")
    with pytest.raises(BadArgument, match=r"plateau_watch: .* 'score', which is 'accuracy'"):
        Run(stream=single, method=methods.ER(), training=training)
    training = replace(watching, plateau_watch="accuracy")
    with pytest.raises(BadArgument, match="which is 'precision_weighted_jaccard'"):
        Run(stream=tree(), method=methods.ER(), training=training)


def test_best_epoch_and_stopping_on_label_sets_alone_and_together() -> None:
    training = replace(
        SETS, patience=2, epochs=12, restore_best=True, precision="float64", optimizer="sgd",
        schedule="plateau", plateau_watch="precision_weighted_jaccard", plateau_patience=1,
    )  # fmt: skip
    runs = make_runs(methods.ER(), [tree()] * 2, training=training)
    alone, together = train_runs(runs), train_runs(runs, together=True)
    for key, one in alone.items():
        assert (one.vector - together[key].vector).abs().max() < 1e-10


def test_curves_during_training_hold_the_figure_of_the_stream() -> None:
    result = engram.run(tree(), method="ER", epochs=2, evaluate_every=4, device="cpu")
    frame = result.frame()
    inside = frame[(frame["step"] >= 0) & (frame["task"] >= 0)]
    assert set(inside["metric"]) == {"precision_weighted_jaccard"}
    assert "accuracy" not in set(frame["metric"])
    assert "chance" not in set(frame["metric"])


def test_join_decides_as_all_of_its_parts_do() -> None:
    assert methods.Join(methods.ER(), methods.EWC()).decides == ("argmax", "threshold")
    assert methods.Join(methods.ER(), methods.LwF()).decides == ("argmax",)


def test_the_answer_of_a_method_decides_not_the_logits_of_its_network() -> None:
    """Bias subtracted in `answer` moves the threshold with it."""

    @dataclass(frozen=True)
    class Shy(methods.Finetune):
        def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
            output = net(x)
            return output._replace(logits=output.logits - 1e3)

    result = engram.run(tree(), method=Shy(), epochs=1, device="cpu")
    assert np.nanmax(result.matrix) == 0.0


def test_post_task_validation_is_recorded_beside_the_test() -> None:
    held = hierarchical(
        named_clouds(), hierarchy={"low": ["a", "b"], "high": ["d", "e"]},
        tasks=[["low", "high"], ["a", "c", "d"], ["b", "e"]], valid=0.1, post_valid=0.2,
    )  # fmt: skip
    result = engram.run(held, method="ER", epochs=4, seeds=2, device="cpu")
    frame = result.frame()
    rows = frame[frame["metric"] == "post_valid_score"]
    assert set(rows["task"]) == {-1, 0, 1, 2}
    run = Run(stream=held, method=methods.ER(), training=Training(epochs=4))
    last = list(Engine([run], device="cpu").stages())[-1]
    items = EvaluationItems.of_stream(held, "post_valid")
    said = last.held > 0
    truth = head_views.true_sets(items, stage=2)
    once = np.unique(items.rows, return_index=True)[1]
    expected = metrics.precision_weighted_jaccard(truth[once], said[once])
    assert len(once) < len(items)
    assert result.metric("post_valid_score")[0] == pytest.approx(expected, abs=1e-6)
    assert np.isnan(rows[(rows["stage"] == 0) & (rows["task"] == 2)]["value"]).all()
    plain = engram.run(class_incremental(named_clouds()), method="ER", epochs=1, device="cpu")
    assert "post_valid_score" not in set(plain.frame()["metric"])


def test_label_sets_are_refused_by_many_heads() -> None:
    with pytest.raises(BadArgument, match=r"stream.head: expected a single head"):
        Run(stream=replace(tree(), head="multi"), method=methods.ER())


def test_a_row_that_several_tasks_test_is_passed_through_the_network_once() -> None:
    stream, method = tree(), methods.Finetune()
    learner = Engine([run := Run(stream=stream, method=method)], device="cpu").learner(run)
    passed: list[int] = []
    whole = learner.feed.chunks
    learner.feed.chunks = lambda rows, *rest: (passed.append(len(rows)), whole(rows, *rest))[1]  # type: ignore[method-assign,assignment,func-returns-value]
    items = evaluation.test_items(stream)
    with torch.no_grad():
        alone, once = (
            answer(learner, method, *items, True)
            for answer in (evaluation._evaluate_one, evaluation._evaluate_distinct_rows)
        )
    assert passed == [len(items[0]), len(items[0].unique())]
    assert passed[0] > passed[1]
    np.testing.assert_allclose(once[0], alone[0], rtol=1e-5, atol=1e-6)
    assert torch.allclose(once[1], alone[1], atol=1e-6)  # type: ignore[arg-type]


# -- which tasks are evaluated ---------------------------------------------------------------------
ORDERS = ([0, 1, 2], [2, 0, 1], [1, 2, 0])


@cache
def uneven() -> Stream:
    """Three tasks with 4, 6 and 8 test rows, and validation rows."""
    data = engram.load("blobs", classes=6, per_class=20)
    y = data.labels[data.test]
    kept = [data.test[y == c][: 2 + c // 2] for c in range(6)]
    return class_incremental(replace(data, test=torch.cat(kept)), classes_per_task=2, valid=0.2)


def stages_of(*, unseen: bool, orders: Any = ORDERS, **changes: Any) -> dict[Any, Any]:
    """Results by (run, stage) of runs in lockstep, in several orders of tasks."""
    run = {"method": methods.ER(), "training": Training(epochs=2, evaluate_every=3), **changes}
    runs = [
        Run(stream=engram.reorder(uneven(), task_order=order), unseen=unseen, **run)
        for order in orders
    ]
    results = Engine(runs, device="cpu", together=len(runs) > 1).stages()
    return {(one.run, one.stage): one for one in results}


def own_rows_are_passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of dimensions of the rows passed through mapped networks."""
    dims, usual = [], evaluation._evaluate_mapped

    def watch(learners: Any, methods: Any, rows: Tensor, *rest: Any) -> Any:
        dims.append(rows.ndim)
        return usual(learners, methods, rows, *rest)

    monkeypatch.setattr(evaluation, "_evaluate_mapped", watch)
    return dims


@pytest.mark.parametrize("orders", [ORDERS[:1], [ORDERS[1]] * 2], ids=["alone", "lockstep"])
def test_tasks_to_come_are_scored_on_request_and_change_no_other_score(orders: Any) -> None:
    learnt, every = (stages_of(unseen=unseen, orders=orders) for unseen in (False, True))
    sizes = {0: [4, 10, 18], 1: [8, 12, 18]}[int(len(orders) > 1)]
    for key, one in learnt.items():
        n, whole = sizes[key[1]], every[key]
        assert (len(one.scores), len(one.items), len(whole.scores)) == (n, n, 18)
        np.testing.assert_array_equal(one.items.rows, whole.items.rows[:n])
        np.testing.assert_array_equal(one.scores, whole.scores[:n])
        np.testing.assert_array_equal(one.held, whole.held)
        assert torch.equal(one.learner.vector, whole.learner.vector)
        for (step, scores), (other, more) in zip(one.curve, whole.curve, strict=True):
            assert (step, len(scores), len(more)) == (other, n, 18)
            np.testing.assert_array_equal(scores, more[:n])


def test_runs_in_other_orders_pass_their_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is scored as alone; the rows of all of them together would be those of every task."""
    dims = own_rows_are_passed(monkeypatch)
    training = Training(epochs=2, precision="float64", optimizer="sgd", lr=0.02)
    together = stages_of(unseen=False, training=training)
    assert 2 in dims
    for number, order in enumerate(ORDERS):
        alone = stages_of(unseen=False, orders=[order], training=training)
        for stage in range(3):
            one, other = together[number, stage], alone[0, stage]
            np.testing.assert_array_equal(one.items.rows, other.items.rows)
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)


def test_copies_of_equal_beginnings_are_not_evaluated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed: list[int] = []
    usual = engine_module.evaluate

    def watch(learners: Any, *rest: Any, **more: Any) -> Any:
        passed.append(len(learners))
        return usual(learners, *rest, **more)

    monkeypatch.setattr(engine_module, "evaluate", watch)
    orders = ([0, 1, 2], [0, 2, 1])  # share their first task
    stream = replace(uneven(), tasks=tuple(replace(t, valid=t.valid[:0]) for t in uneven().tasks))
    found = {}
    for unseen in (False, True):
        passed.clear()
        runs = [
            Run(stream=engram.reorder(stream, task_order=order), method=methods.ER(), unseen=unseen)
            for order in orders
        ]
        results = Engine(runs, device="cpu", together=True).stages()
        found[unseen] = {(one.run, one.stage): one for one in results}, list(passed)
    assert found[False][1] == []
    assert found[True][1] == [1]
    for key, one in found[False][0].items():
        np.testing.assert_array_equal(one.scores, found[True][0][key].scores[: len(one.scores)])
        assert one.items.visible.tolist() == found[True][0][key].items.visible.tolist()


def test_a_result_has_no_number_for_a_task_that_was_not_scored() -> None:
    stream = engram.reorder(uneven(), task_order=ORDERS[1])
    learnt, every = (
        engram.run(stream, method="ER", seeds=2, device="cpu", evaluate_unseen=unseen)
        for unseen in (False, True)
    )
    above = np.triu(np.ones((3, 3), bool), 1)
    assert np.isnan(learnt.full_matrix[:, above]).all()
    assert not np.isnan(every.full_matrix).any()
    np.testing.assert_array_equal(learnt.matrix, every.matrix)
    assert learnt.runs == every.runs  # the same ids
    assert learnt.tasks.tolist() == every.tasks.tolist() == [3, 3]
    for name in ("forgetting", "f1_score", "top_k_accuracy"):
        options = {"k": 1} if name == "top_k_accuracy" else {}
        for stage in (1, 2):
            np.testing.assert_array_equal(
                learnt.metric(name, stage=stage, **options),
                every.metric(name, stage=stage, **options),
            )
    np.testing.assert_array_equal(learnt.recompute().matrix, learnt.matrix)
    np.testing.assert_array_equal(
        learnt.recompute(average="macro").matrix, every.recompute(average="macro").matrix
    )
    for stage in range(3):
        pd.testing.assert_frame_equal(
            learnt.confusion(1, stage=stage), every.confusion(1, stage=stage)
        )
        np.testing.assert_array_equal(
            learnt.calibration(stage=stage), every.calibration(stage=stage)
        )
        assert len(learnt.predictions.get(*learnt.runs[0], stage).single) == [8, 12, 18][stage]
    tests = [
        {int(k): v["test"] for k, v in entry["stages"].items()}
        for result in (learnt, every)
        for entry in result.ledger
    ]
    assert tests == [{0: 8, 1: 12, 2: 18}] * 2 + [{0: 18, 1: 18, 2: 18}] * 2


def test_inputs_under_a_view_are_made_once_per_task(monkeypatch: pytest.MonkeyPatch) -> None:
    data = engram.load("digits")
    for stream in (engram.permuted(data, tasks=4), engram.rotated(data, angles=(0, 30, 60, 90))):
        made: list[int] = []
        usual = type(stream.view).__call__

        def watch(
            view: Any, x: Tensor, stage: Tensor, usual: Any = usual, made: list[int] = made
        ) -> Tensor:
            made.extend([int(stage[0])] * (len(x) > 64))  # not those of a step
            return usual(view, x, stage)

        monkeypatch.setattr(type(stream.view), "__call__", watch)
        kept = engram.run(stream, method="Finetune", iterations=5, device="cpu")
        assert made == [0, 1, 2, 3]
        made.clear()
        monkeypatch.setattr(feed_module, "VIEWED_BYTES", 0)
        every = engram.run(stream, method="Finetune", iterations=5, device="cpu")
        assert made == [0, 0, 1, 0, 1, 2, 0, 1, 2, 3]
        np.testing.assert_array_equal(kept.matrix, every.matrix)
        monkeypatch.undo()


@pytest.mark.parametrize("method", ["Finetune", "ER", "DERpp", "EWC", "GDumb", "ICaRL", "LwF"])
def test_a_row_that_a_method_reads_again_counts_once(method):
    stream = engram.class_incremental(engram.load("blobs"), classes_per_task=5)
    (entry,) = engram.run(stream, method=method, epochs=2).ledger
    stages = entry.get("runs", [entry])[0]["stages"]
    assert [stages[str(k)]["train"] for k in range(2)] == [len(task.train) for task in stream]
