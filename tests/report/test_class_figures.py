"""Confusion, classes, calibration and response: numbers of a real, tiny run behind the figures."""

from __future__ import annotations

import numpy as np
import pytest

import engram
from engram.records import confusion as answers_module
from engram.records.confusion import count_confusions
from engram.report import from_result
from engram.report.class_figures import (
    calibration_section,
    calibration_table,
    class_accuracies,
    class_section,
    class_table,
    confusion_section,
)
from engram.report.hyperparameter_figures import (
    find_varied_numbers,
    response_section,
    response_table,
)
from engram.report.report_data import build_report_data
from engram.report.sections import choose_methods


@pytest.fixture(scope="module")
def result():
    data = engram.load("blobs", classes=6, per_class=20, features=4)
    stream = engram.class_incremental(data, classes_per_task=2)
    methods = [engram.methods.ER(memory=engram.Memory(total=t)) for t in (6, 30)]
    model = {"name": "mlp", "hidden": [8]}
    return engram.run(stream, method=methods, model=model, seeds=2, epochs=3, lr=0.02,
                      device="cpu", together=True)  # fmt: skip


@pytest.fixture(scope="module")
def facts(result):
    return build_report_data(from_result(result))


def test_confusion_is_the_mean_over_runs(result):
    first = count_confusions(result)[0]
    each = [result.confusion(run, head=first.head) for run in (0, 1)]
    expected = np.mean([one.div(one.sum(axis=1), axis=0) for one in each], axis=0)
    np.testing.assert_allclose(first.confusion, expected)
    assert first.names == tuple(each[0].columns)
    assert first.runs == 2


def test_bins_hold_every_row_once_and_errors_are_those_of_the_result(result):
    singles = [one for one in count_confusions(result) if one.head == "single"]
    errors = np.concatenate([one.errors for one in singles])
    np.testing.assert_allclose(errors, result.calibration())
    rows = len(result.items(result.runs[0].recipe))
    assert all(one.number.sum() == 2 * rows for one in singles)
    right = [np.trace(result.confusion(run)) for run in (0, 1)]
    assert singles[0].right.sum() == sum(right)


def test_many_classes_are_shown_by_task(result, monkeypatch):
    monkeypatch.setattr(answers_module, "MOST_CLASSES", 5)
    first = count_confusions(result)[0]
    assert first.names == ("task 1", "task 2", "task 3")
    np.testing.assert_allclose(first.confusion.sum(axis=1), 1)
    each = [result.confusion(run).to_numpy() for run in (0, 1)]
    kept = [one[:2, :2].sum() / one[:2].sum() for one in each]
    assert first.confusion[0, 0] == pytest.approx(np.mean(kept))


def test_classes_have_the_accuracies_of_the_result(result, facts):
    table = class_accuracies(facts)
    own = table[(table["name"] == result.labels[0]) & (table["head"] == "single")]
    expected = result.class_accuracy().to_numpy()[:2].mean(axis=0)
    np.testing.assert_allclose(own.sort_values("cls")["value"], expected)
    assert [c.title for c in class_table(facts).columns][2:] == list(map(str, range(6)))


def test_sections_have_a_trace_for_each_method_and_view(facts):
    cast = choose_methods(facts)
    for build, panels in ((class_section, 1), (confusion_section, 2), (calibration_section, 1)):
        section = build(facts, cast)
        assert len(section.panels) == panels
        drawn = [t.meta for p in section.panels for t in p.figure.data if t.meta["label"]]
        assert sorted((m["label"], m["head"]) for m in drawn) == sorted(
            (name, head) for name in cast.names for head in ("single", "multi")
        )
    assert len(calibration_table(facts).frame) == 4


def test_response_to_the_memory(result, facts):
    section = response_section(facts, choose_methods(facts))
    assert [p.title for p in section.panels] == [
        "Average accuracy against memory.total", "Forgetting against memory.total",
    ]  # fmt: skip
    rows = response_table(facts)
    rows = rows[rows["head"] == "single"].sort_values("x")
    assert rows["x"].tolist() == [6, 30]
    assert rows["joined"].all()
    expected = result.metric("average_accuracy").reshape(2, 2).mean(axis=1)
    np.testing.assert_allclose(rows["value"], expected)


def test_varied_numbers_lie_on_lines_or_in_a_cloud():
    def made(*pairs):
        return {str(i): {"method": {"name": "EWC", "strength": s}, "training": {"lr": lr}}
                for i, (s, lr) in enumerate(pairs)}  # fmt: skip

    grid = find_varied_numbers(made((1, 0.1), (2, 0.1), (1, 0.2), (2, 0.2)))
    assert set(grid["line"]) == {"EWC lr=0.1", "EWC lr=0.2", "EWC strength=1", "EWC strength=2"}
    assert grid["joined"].all()
    cloud = find_varied_numbers(made((1, 0.1), (2, 0.2), (3, 0.3)))
    assert set(cloud["line"]) == {"EWC"}
    assert not cloud["joined"].any()
    assert not len(find_varied_numbers(made((1, 0.1), (1, 0.1))))
    other = {"a": {"method": {"name": "ER", "size": 1}}, "b": {"method": {"name": "LwF", "t": 2}}}
    assert not len(find_varied_numbers(other))  # unlike methods are no sweep
