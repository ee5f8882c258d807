"""Views of label sets that form a tree, from records of one run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import engram
from engram.errors import BadArgument, RecordError
from engram.methods import Finetune
from engram.probes import Threshold
from engram.records import EvaluationItems, Prediction, Result, Rows, record_stage
from engram.records.label_tree import LABEL_VIEWS, find_label_tree
from engram.report.diagnostics import diagnose
from tests.engine.test_evaluation import named_clouds, tree
from tests.records.test_head_views import hierarchy
from tests.refusals import refuses

# superclass A with subclasses a and b, and o without one; columns A, a, o, b
NAMES = ("superclass/A", "fine/a", "fine/o", "fine/b")


def labelled() -> EvaluationItems:
    return replace(hierarchy(), names=NAMES)


def recorded(*sets: tuple[int, ...], stage: int = 2, keep: str = "scores") -> Result:
    """The same answer for each of the images a, a, b, o in all tasks."""
    items = labelled()
    said = np.full((len(items), 4), -1.0)
    for place, row in enumerate(items.rows):
        said[place, list(sets[row])] = 1.0
    rows = Rows(recipe="r", label="ER", seed=0)
    kept = []
    for k in range(stage + 1):
        record_stage(rows, said, items, stage=k)
        kept.append(Prediction.from_scores(said, items, recipe="r", seed=0, stage=k, keep=keep))
    return Result(rows.frame(), predictions=kept, items={("r", ""): items})


def test_the_tree_is_read_from_names_and_labels() -> None:
    found = find_label_tree(labelled())
    assert found is not None
    assert found.parent.tolist() == [-1, 0, -1, 0]
    assert np.flatnonzero(found.superclasses).tolist() == [0]
    assert np.flatnonzero(found.subclasses).tolist() == [1, 3]
    assert np.flatnonzero(found.orphans).tolist() == [2]
    assert find_label_tree(hierarchy()) is None  # labels of other names may mean anything


def test_a_subclass_without_test_rows_is_no_orphan(tmp_path: Path) -> None:
    x, y = np.arange(80.0)[:, None], np.array(["cat", "dog", "oak", "ivy"] * 20)
    data = engram.Data.from_arrays(x, y, test=(x[2:4], y[2:4]))  # oak and ivy alone
    stream = engram.hierarchical(
        data, hierarchy={"pet": ["cat", "dog"], "plant": ["oak"]},
        tasks=[["pet", "plant"], ["cat", "dog", "oak", "ivy"]], valid=0.1,
    )  # fmt: skip
    with pytest.raises(BadArgument, match="test rows"):
        engram.hierarchical(data, hierarchy={"pet": ["cat", "dog"]}, tasks=[["pet"]], valid=0.1)
    result = engram.run(
        stream, method="ER", model={"name": "mlp", "hidden": [4]}, epochs=1, device="cpu",
        out=tmp_path,
    )  # fmt: skip
    for found in (result, engram.read(tmp_path)):
        (run,) = found.runs
        items = found.items(run.recipe, run.order)
        tree = find_label_tree(items)
        assert tree is not None
        orphans = [name for name, alone in zip(items.names, tree.orphans, strict=True) if alone]
        assert orphans == ["fine/ivy"]
        known = {found.class_names[c] for c in found.class_accuracy().columns}
        assert known == {"superclass/plant", "fine/oak", "fine/ivy"}  # of others nothing is known


def test_views_of_superclasses_subclasses_and_orphans() -> None:
    result = recorded((0, 1), (0,), (1, 2), (2,))
    numbers = {name: result.metric(name)[0] for name in LABEL_VIEWS}
    assert numbers["labels_per_image"] == 6 / 4
    assert numbers["superclass_score"] == pytest.approx(2 / 3)  # o has none and is left out
    assert numbers["subclass_precision"] == pytest.approx(3 / 4)  # a said of b
    assert numbers["orphan_precision"] == pytest.approx(3 / 4)  # o said of b
    # completed: {A,a} {A} {A,a,o} {o} against {A,a} {A,a} {A,b} {o}
    assert numbers["hierarchical_f1"] == pytest.approx(2 * 5 / (7 + 7))
    assert numbers["mistake_depth"] == pytest.approx(1 / 2)  # a for b: depth 1; o for b: 0
    assert np.isnan(result.metric("subclass_precision", stage=0)[0])  # none is open yet


def test_curves_hold_all_tasks_so_far_and_the_newest() -> None:
    result = recorded((0, 1), (0,), (0,), (2,))
    table = result.curves().set_index(["metric", "stage"])["mean"]
    assert table["precision_weighted_jaccard", 1] == pytest.approx((1 + 0.5 + 1 + 1) / 4)
    assert table["current_task", 1] == pytest.approx((1 + 0.5 + 1) / 3)
    assert table["current_task", 2] == pytest.approx(0.5)
    assert result.metric("current_task").tolist() == [pytest.approx(0.5)]
    assert "current_task" in result.summary()
    named = set(result.curves()["metric"])
    assert set(LABEL_VIEWS) - {"mistake_depth"} <= named  # there is no mistake


def test_refinement_of_every_pair() -> None:
    table = recorded((0, 1), (1,), (0, 1), (2,)).refinement()
    own = table.loc[("ER", "A", "a")]
    assert own.tolist() == [1.0, 0.5, 1.0, 1.0]  # A kept for b; for one a of two; a found; spread
    other = table.loc[("ER", "A", "b")]
    assert other.tolist() == [0.5, 1.0, 0.0, 0.0]
    assert len(recorded((0,), (0,), (0,), (2,)).refinement(stage=0)) == 0


def test_confusion_stands_beside_its_truth() -> None:
    found = recorded((0, 1), (0,), (0,), (2,)).label_confusion(0)
    assert list(found.truth.columns) == list(NAMES)  # in order of introduction
    assert found.truth.loc["superclass/A"].tolist() == pytest.approx([1, 2 / 3, 0, 1 / 3])
    assert found.truth.loc["fine/a"].tolist() == [1, 1, 0, 0]
    assert found.predicted.loc["superclass/A"].tolist() == pytest.approx([1, 1 / 3, 0, 0])
    assert found.predicted.loc["fine/b"].tolist() == [1, 0, 0, 0]


def test_other_thresholds_change_the_views() -> None:
    result = recorded((0, 1), (0,), (0,), (2,))
    assert result.recompute(threshold=2.0).metric("labels_per_image").tolist() == [0.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "0.5", True, None])
def test_a_threshold_is_a_number(value: Any) -> None:
    with pytest.raises(BadArgument, match="threshold: expected a finite number"):
        recorded((0, 1), (0,), (0,), (2,)).recompute(threshold=value)


def test_rows_with_one_label_have_no_threshold() -> None:
    result = engram.run(engram.load("blobs"), method="Finetune")
    with pytest.raises(BadArgument, match="threshold: expected 0, because no run has label sets"):
        result.recompute(threshold=0.5)


def test_other_thresholds_are_refused_where_only_labels_were_kept() -> None:
    result = recorded((0, 1), (0,), (0,), (2,), keep="labels")
    assert result.recompute().metric("labels_per_image").tolist() == [1.25]
    with pytest.raises(BadArgument, match="threshold: expected 0, because only label sets were"):
        result.recompute(threshold=0.5)


def test_label_sets_have_no_mean_over_classes() -> None:
    """They are scored row by row; a mean over classes was accepted once, and ignored."""
    with pytest.raises(BadArgument, match="average: expected 'micro', because rows carry sets"):
        recorded((0, 1), (0,), (0,), (2,)).recompute(average="macro")
    data = engram.load("blobs")
    stream = engram.hierarchical(data, hierarchy={"low": [0, 1]}, classes_per_task=1)
    with refuses("average"):
        engram.run(stream=stream, method="Finetune", average="macro")


@pytest.mark.parametrize(
    ("said", "told"), [((), "predict nothing"), ((0, 1, 2, 3), "predict every label")]
)
def test_the_doctor_knows_who_says_nothing_or_everything(said: tuple[int, ...], told: str) -> None:
    texts = [finding.text for finding in diagnose(recorded(*[said] * 4).frame())]
    assert sum(told in text for text in texts) == 1
    healthy = diagnose(recorded((0, 1), (0, 1), (0, 3), (2,)).frame())
    assert not any("label" in finding.text for finding in healthy)


def test_runs_without_a_tree_say_so() -> None:
    single = engram.run(engram.load("blobs"), epochs=1, device="cpu")
    with pytest.raises(RecordError, match="form no tree"):
        single.refinement()
    with pytest.raises(RecordError, match="one label per item"):
        single.label_confusion()
    assert set(single.curves()["metric"]) == {"average_accuracy", "current_task"}


def chosen(scores: list[list[float]], labels: list[int], **options: Any) -> float:
    """The threshold for validation rows of a task that shows columns 1 and 2; 0 is an older one."""
    learner = SimpleNamespace(
        task=SimpleNamespace(valid=None), stage=1, state={}, seen=torch.tensor([True, True, True]),
        stream=SimpleNamespace(visible=torch.tensor([[True, False, False], [False, True, True]])),
        batch=lambda rows: SimpleNamespace(x=None, y=torch.tensor([[c, -1] for c in labels])),
        net=lambda: lambda x: SimpleNamespace(logits=torch.tensor(scores)),
    )  # fmt: skip
    return Threshold(**options).choose(learner, Finetune())  # type: ignore[arg-type]


def test_the_chosen_threshold_is_the_best_one_nearest_to_zero() -> None:
    scores = [[2.0, -0.5, -3.0], [2.0, -3.0, -0.4], [2.0, -0.6, -3.0]]  # all best above -3
    assert -0.6 - 2.6 / 200 <= chosen(scores, [1, 2, 1]) < -0.6
    assert chosen([[2.0, 0.5, -3.0], [2.0, -3.0, 0.4]], [1, 2]) == 0


def test_labels_of_earlier_tasks_are_no_mistakes_when_a_threshold_is_chosen() -> None:
    """Validation rows hide them: column 0, which may be the superclass, is named here as well."""
    scores = [[0.5, 1.0, -1.0], [0.5, -1.0, 1.0], [0.5, 0.3, -1.0]]
    assert chosen(scores, [1, 2, 1]) == 0
    assert chosen(scores, [1, 2, 1], among="seen") >= 0.5


def test_a_threshold_is_chosen_on_validation_rows() -> None:
    result = engram.run(tree(), method="ER", epochs=3, seeds=2, device="cpu", probes=[Threshold()])
    table: pd.DataFrame = result.frame()
    at = table[table["metric"] == "threshold/at"]["value"]
    assert len(at) == 6
    assert (at != 0).any()
    tuned = table[table["metric"] == "threshold/precision_weighted_jaccard"]
    for _, row in tuned.iterrows():
        here = (table["stage"] == row["stage"]) & (table["seed"] == row["seed"])
        value = float(table[here & (table["metric"] == "threshold/at")]["value"].iloc[0])
        runs = [number for number, run in enumerate(result.runs) if run.seed == row["seed"]]
        found = result.recompute(threshold=value).metric(
            "precision_weighted_jaccard", stage=int(row["stage"])
        )
        assert found[runs[0]] == pytest.approx(row["value"], abs=0.02)  # scores are kept rounded
    with pytest.raises(BadArgument, match="label sets"):
        engram.run(named_clouds(), epochs=1, device="cpu", probes=[Threshold()])
