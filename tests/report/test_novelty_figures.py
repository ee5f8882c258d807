"""The section on novelty: what is drawn is what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import engram
from engram.errors import EngramError, RecordError
from engram.probes import Features
from engram.report.novelty_figures import (
    alarms_section,
    draw_histogram,
    features_section,
    novelty_section,
    novelty_table,
    roc_curve,
    scores_section,
)
from engram.report.page import render_page
from engram.report.probe_figures import probe_section
from engram.report.report_data import build_report_data
from engram.report.report_inputs import from_directories, from_result
from engram.report.report_tables import build_tables
from engram.report.sections import choose_methods


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("novel")
    stream = engram.task_incremental(
        engram.load("blobs", classes=6, per_class=30), classes_per_task=2, valid=0.2
    )
    engram.run(
        stream, method=["Finetune", "LwF"], detectors=["Softmax", "Mahalanobis"], seeds=2,
        out=out, epochs=2, device="cpu", probes=[Features(items=40)],
    )  # fmt: skip
    return out


def test_lines_are_the_table_and_histograms_the_scores(folder):
    result = engram.read(folder)
    facts = build_report_data(from_directories(folder))
    section = novelty_section(facts, choose_methods(facts))
    titles = [panel.title for panel in section.panels]
    assert titles[:2] == ["Finetune: C.AUC", "Finetune: R.AUC"]
    assert list(section.legend) == ["mahalanobis", "softmax"]
    table = result.novelty().set_index(["label", "detector", "metric", "stage"])["mean"]
    for panel in section.panels:
        method, short = panel.title.split(": ")
        assert panel.label == method  # its switch hides the figure
        assert [trace.name for trace in panel.figure.data] == list(section.legend)
        metric = {"C": "combined", "R": "recent", "P": "previous"}[short[0]] + "_auroc"
        for trace in panel.figure.data:
            assert trace.meta["label"] == method
            for x, y in zip(trace.customdata, trace.y, strict=True):
                assert table[method, trace.name, metric, x - 1] == y
    panels = scores_section(facts, choose_methods(facts)).panels
    curves = [p for p in panels if "roc" in p.name]
    assert [p.title for p in curves] == ["Finetune: ROC", "LwF: ROC"]
    assert [trace.name for trace in curves[0].figure.data] == ["mahalanobis", "softmax"]
    drawn = [p for p in panels if "roc" not in p.name]
    assert len(drawn) == 4
    assert {panel.label for panel in drawn} == {"Finetune", "LwF"}


def test_the_area_below_a_curve_is_the_combined_auc(folder):
    inputs = from_directories(folder)
    result = engram.read(folder)
    for one in inputs.familiarity:
        run = min(run for run in result.runs if run.recipe == one.recipe)
        table = result.select(recipe=run.recipe, seed=run.seed).novelty()
        chosen = (table["detector"] == one.detector) & (table["metric"] == "combined_auroc")
        expected = table[chosen & (table["stage"] == one.stage)]["mean"].item()
        x, y = roc_curve(one.inside, one.outside)
        assert np.trapezoid(y, x) == pytest.approx(expected, abs=0.01)
    x, y = roc_curve(np.arange(5000.0) + 1000, np.arange(5000.0))
    assert len(x) <= 101
    assert np.trapezoid(y, x) == pytest.approx(0.68, abs=0.01)


def test_false_alarms_are_means_over_earlier_tasks(folder):
    facts = build_report_data(from_directories(folder))
    (panel, *_) = alarms_section(facts, choose_methods(facts)).panels
    table = engram.read(folder).false_alarms(0.05)
    own = table[(table["detector"] == "mahalanobis") & (table["task"] < table["stage"])]
    means = own.groupby(["label", "stage"])["frozen"].mean()
    assert panel.label == "Finetune"
    (trace,) = (one for one in panel.figure.data if one.name == "mahalanobis")
    for x, y in zip(trace.customdata, trace.y, strict=True):
        assert y == pytest.approx(means["Finetune", x - 1])


def test_features_of_sets(folder, monkeypatch):
    monkeypatch.setattr("engram.report.novelty_figures.MOST_MAPS", 2)
    facts = build_report_data(from_directories(folder))
    section = features_section(facts, choose_methods(facts))
    norm = next(p for p in section.panels if p.name == "features-1-norm")
    assert {trace.name for trace in norm.figure.data} >= {"first inside", "outside"}
    maps = [panel for panel in section.panels if "map" in panel.name]
    assert [panel.title for panel in maps[:2]] == ["map after stage 1: Finetune"] + [
        "map after stage 2: Finetune"
    ]

    def absent(features):
        raise EngramError("a map of features needs scikit-learn")

    monkeypatch.setattr("engram.report.novelty_figures.embed_in_plane", absent)
    without = features_section(facts, choose_methods(facts))
    assert len(without.panels) == len(section.panels) - len(maps)
    assert "No maps: a map of features needs scikit-learn." in without.help


def test_costs_of_detectors_stand_in_one_table(folder):
    inputs = from_directories(folder)
    facts = build_report_data(inputs)
    table = novelty_table(facts)
    assert table.frame[["name", "detector"]].drop_duplicates().shape == (4, 2)
    assert (table.frame["seconds"] > 0).all()
    softmax = table.frame[table.frame["detector"] == "softmax"]
    assert (softmax["kept"] == 0).all()
    assert probe_section(facts, choose_methods(facts)) is None  # nothing is left to say
    assert "probes" not in {one.name for one in build_tables(inputs, {"": (inputs, facts)}, facts)}


def test_histograms_hold_every_finite_score_once(folder):
    (one, *_) = from_directories(folder).familiarity
    result = engram.read(folder)
    sets = result.sets(min(result.runs), one.stage)
    assert one.stage == 1
    assert len(one.inside) == sum(map(len, sets.inside))
    assert len(one.forgotten) == sum(map(len, sets.forgotten))
    assert len(one.outside) == 2 * sum(map(len, sets.outside))  # under both heads
    for trace in draw_histogram(one, "Finetune").data:
        assert np.sum(trace.y) == pytest.approx(1)


def test_constant_and_missing_scores_are_drawn(folder):
    (one, *_) = from_directories(folder).familiarity
    dull = one._replace(inside=np.ones(3), forgotten=np.full(2, np.nan), outside=np.ones(2))
    assert [trace.name for trace in draw_histogram(dull, "ER").data] == [
        "inside (3)",
        "outside (2)",
    ]
    spread = one._replace(inside=np.arange(60.0), forgotten=np.ones(1), outside=np.arange(60.0))
    assert (
        draw_histogram(spread, "ER").layout.yaxis.range[1] < 0.1
    )  # one item does not flatten sixty


def test_the_page_has_the_section_only_where_detectors_were_asked(folder, monkeypatch):
    monkeypatch.setattr("engram.report.novelty_figures.MOST_MAPS", 0)  # they take seconds
    assert 'id="novelty-section"' in render_page(from_directories(folder))
    stream = engram.task_incremental(
        engram.load("blobs", classes=4, per_class=10), classes_per_task=2
    )
    assert 'id="novelty-section"' not in render_page(
        from_result(engram.run(stream, epochs=1, device="cpu"))
    )


def test_predictions_that_were_not_kept_are_a_problem(folder, monkeypatch):
    def none(*args):
        raise RecordError("predictions of stage 1 were not kept")

    monkeypatch.setattr("engram.records.novelty_records.item_sets", none)
    inputs = from_directories(folder)
    assert inputs.problems == ["novelty: predictions of stage 1 were not kept"]
    assert not len(inputs.novelty)


def test_what_was_chosen_is_said(folder):
    facts = replace(
        build_report_data(from_directories(folder)), tuned=["tuned odin (LwF): epsilon=0.01"]
    )
    section = novelty_section(facts, choose_methods(facts))
    assert "Tuned after the first stage: tuned odin (LwF): epsilon=0.01." in section.help
