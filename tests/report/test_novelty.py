"""The section on novelty: what is drawn is what was measured."""

from __future__ import annotations

import numpy as np
import pytest

import engram
from engram.errors import RecordError
from engram.report.digest import digest
from engram.report.inputs import from_directories, from_result
from engram.report.novelty import histogram, novelty_section
from engram.report.page import page
from engram.report.sections import choose_cast


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("novel")
    stream = engram.task_incremental(
        engram.load("blobs", classes=6, per_class=30), classes_per_task=2
    )
    engram.run(
        stream, method=["Finetune", "LwF"], detectors=["Softmax", "Mahalanobis"], seeds=2,
        out=out, epochs=2, device="cpu",
    )  # fmt: skip
    return out


def test_lines_are_the_table_and_histograms_the_scores(folder):
    result = engram.read(folder)
    facts = digest(from_directories(folder))
    section = novelty_section(facts, choose_cast(facts))
    titles = [panel.title for panel in section.panels]
    lines = [panel for panel in section.panels if panel.label is None]
    assert titles[:2] == ["mahalanobis: C.AUC", "mahalanobis: R.AUC"]
    table = result.novelty().set_index(["label", "detector", "metric", "stage"])["mean"]
    for panel in lines:
        detector, short = panel.title.split(": ")
        metric = {"C": "combined", "R": "recent", "P": "previous"}[short[0]] + "_auroc"
        for trace in panel.figure.data:
            for x, y in zip(trace.x, trace.y, strict=True):
                assert table[trace.meta["label"], detector, metric, x - 1] == y
    drawn = [panel for panel in section.panels if panel.label]
    assert len(drawn) == 4
    assert {panel.label for panel in drawn} == {"Finetune", "LwF"}


def test_histograms_hold_every_finite_score_once(folder):
    (one, *_) = from_directories(folder).familiarity
    result = engram.read(folder)
    sets = result.sets(min(result.runs), one.stage)
    assert one.stage == 1
    assert len(one.inside) == sum(map(len, sets.inside))
    assert len(one.forgotten) == sum(map(len, sets.forgotten))
    assert len(one.outside) == 2 * sum(map(len, sets.outside))  # under both heads
    for trace in histogram(one, "Finetune").data:
        assert np.sum(trace.y) == pytest.approx(1)


def test_constant_and_missing_scores_are_drawn(folder):
    (one, *_) = from_directories(folder).familiarity
    dull = one._replace(inside=np.ones(3), forgotten=np.full(2, np.nan), outside=np.ones(2))
    assert [trace.name for trace in histogram(dull, "ER").data] == ["inside (3)", "outside (2)"]


def test_the_page_has_the_section_only_where_detectors_were_asked(folder):
    assert 'id="novelty-section"' in page(from_directories(folder))
    stream = engram.task_incremental(
        engram.load("blobs", classes=4, per_class=10), classes_per_task=2
    )
    assert 'id="novelty-section"' not in page(
        from_result(engram.run(stream, epochs=1, device="cpu"))
    )


def test_predictions_that_were_not_kept_are_a_problem(folder, monkeypatch):
    def none(*args):
        raise RecordError("predictions of stage 1 were not kept")

    monkeypatch.setattr("engram.records.novelty.sets", none)
    inputs = from_directories(folder)
    assert inputs.problems == ["novelty: predictions of stage 1 were not kept"]
    assert not len(inputs.novelty)
