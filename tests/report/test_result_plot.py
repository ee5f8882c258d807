"""Figures by name, and what notebooks show of data, streams and results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

import engram
from engram.errors import BadArgument
from engram.report import from_result
from engram.report.report_data import build_report_data
from engram.report.sections import build_sections, choose_methods
from tests.refusals import refuses


@pytest.fixture(scope="module")
def result():
    data = engram.load("blobs", classes=4, per_class=10, features=4)
    model = {"name": "mlp", "hidden": [4]}
    return engram.run(data, method=["Finetune", "ER"], seeds=2, model=model, device="cpu")


def test_every_figure_of_the_report_has_a_name(result):
    facts = build_report_data(from_result(result))
    for section in build_sections(facts, choose_methods(facts)):
        if not section.panels:
            with pytest.raises(BadArgument, match="expected data for"):
                result.plot(section.name)
            continue
        whole = result.plot(section.name)
        assert isinstance(whole, go.Figure)
        heads = {trace.meta["head"] for trace in whole.data}
        assert heads <= {"single", ""}
        every = [trace for panel in section.panels for trace in panel.figure.data]
        assert len(whole.data) == sum(trace.meta["head"] in ("single", "") for trace in every)
    one = result.plot(section.panels[-1].name, head="multi")
    assert {trace.meta["head"] for trace in one.data} == {"multi", ""}


def test_a_section_has_its_panels_beside_each_other(result):
    figure = result.plot("matrices")
    assert [a.text for a in figure.layout.annotations] == ["ER", "Finetune"]
    maps = [trace for trace in figure.data if trace.type == "heatmap"]
    assert [trace.xaxis for trace in maps] == ["x", "x2"]
    mean = result.select(label="ER").matrix.mean(axis=0)
    np.testing.assert_allclose(np.array(maps[0].z, float), mean)
    assert figure.layout.yaxis2.autorange == "reversed"
    named = [t.name for t in result.plot("stages").data if t.showlegend]
    assert sorted(named) == ["ER", "Finetune"]  # each once, however many panels


def test_comparisons_and_searches_show_tables(result):
    shown = result.compare()._repr_html_()
    assert shown.count("<table>") == 2
    found = result.compare()
    assert f'<td style="text-align:right">{found.methods["mean"].iloc[0]:.3f}</td>' in shown
    stream = engram.class_incremental(engram.load("blobs"), valid=0.2)
    options = {"method": "EWC", "trials": 3, "tasks": 2, "device": "cpu", "epochs": 1}
    trials = engram.search(stream, {"strength": "1..1e4:log"}, **options)
    page = trials._repr_html_()
    assert page.count("<tr>") == 1 + 3
    assert page.count(">chosen</td>") == 1
    assert f"{trials.best.value:.3f}" in page
    broken = replace(trials, trials=(replace(trials.trials[0], value=None, diverged=1),))
    assert ">diverged</td>" in broken._repr_html_()


def test_unknown_figures_get_near_names(result):
    with refuses("plot", near="matrices"):
        result.plot("matrixes")
    with refuses("head"):
        result.plot("stages", head="both")


def test_notebooks_show_tables(result):
    shown = result._repr_html_()
    assert shown.count("<tr>") == 3
    assert '<td style="text-align:left">Finetune</td>' in shown
    mean, std = result.metric("average_accuracy")[2:].mean(), result.metric("average_accuracy")[2:]
    assert f"{mean:.3f} ± {std.std(ddof=1):.3f}" in shown
    x = np.zeros((125, 1, 6, 6), np.uint8)
    names = ["<b>", "c1", *(f"c{i}" for i in range(2, 25))]
    data = engram.Data.from_arrays(x, np.arange(125) % 25, classes=names)
    page = data._repr_html_()
    assert page.count("<img ") == 10
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert "5 more" in page
    stream = engram.class_incremental(data, classes_per_task=5)
    told = stream._repr_html_()
    assert told.count("<tr>") == 1 + len(stream)
    assert "<b>" not in told
    assert "<img" not in engram.load("blobs")._repr_html_()
