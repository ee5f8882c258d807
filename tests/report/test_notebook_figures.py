"""Figures in notebooks: kept as HTML, drawn offline, with one copy of plotly's library."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import plotly.graph_objects as go
import plotly.io
import pytest

import engram
from engram.report import notebook_figures
from engram.report.notebook_figures import LIBRARY, MIME, NotebookFigure, embed_figure
from tests.report import chromium
from tests.report.test_browser import complaints, needs_chromium


@pytest.fixture
def notebook(monkeypatch):
    """A kernel, as far as figures ask it; `shown` is what its cells display."""
    shell = SimpleNamespace(execution_count=0, user_ns={"In": []}, cell="", shown=[])
    shell.get_parent = lambda: {"metadata": {"cellId": shell.cell}} if shell.cell else {}

    def run(source, cell=""):
        shell.execution_count += 1
        shell.user_ns["In"].append(source)
        shell.cell = cell

    shell.run = run
    display = SimpleNamespace(display=lambda data, raw: shell.shown.append(data))
    python = SimpleNamespace(get_ipython=lambda: shell, display=display)
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook_figures, "_holder", None)
    monkeypatch.setattr(plotly.io.renderers, "default", "plotly_mimetype")
    return shell


def holds(shown):
    return [f'class="{LIBRARY}"' in one["text/html"] for one in shown]


def test_figures_are_stored_as_html_too(notebook):
    result = engram.run(engram.load("blobs", classes=4), epochs=1, device="cpu")
    notebook.run("result.plot()")
    for figure in (result.plot(), result.plot("stages-mean"), result.plot("matrices")):
        figure._ipython_display_()
    result.plot().show()
    engram.class_incremental(engram.load("digits")).plot()._ipython_display_()
    assert [set(one) for one in notebook.shown] == [{MIME, "text/html"}] * 5
    assert holds(notebook.shown) == [True, False, False, False, False]


def test_the_cell_with_the_library_has_it_again_when_it_runs_again(notebook):
    figure = NotebookFigure(go.Scatter(x=[1], y=[1]))
    for source, cell in (("a", "1"), ("b", "2"), ("b", "2"), ("edited", "1"), ("b", "2")):
        notebook.run(source, cell)
        figure._ipython_display_()
    assert holds(notebook.shown) == [True, False, False, True, False]


def test_cells_without_ids_are_known_by_their_source(notebook):
    figure = NotebookFigure(go.Scatter(x=[1], y=[1]))
    for source in ("a", "b", "a"):
        notebook.run(source)
        figure._ipython_display_()
    assert holds(notebook.shown) == [True, False, True]


def test_a_renderer_of_the_users_choice_is_used(notebook, monkeypatch):
    asked = []
    monkeypatch.setattr(plotly.io, "show", lambda figure, *_, **__: asked.append(figure))
    monkeypatch.setattr(plotly.io.renderers, "default", "png")
    figure = NotebookFigure(go.Scatter(x=[1], y=[1]))
    figure._ipython_display_()
    figure.show()
    assert asked == [figure, figure]
    assert not notebook.shown


@needs_chromium
def test_a_converted_notebook_draws_its_figures_without_a_network(tmp_path):
    figure = go.Figure(go.Scatter(x=[1, 2], y=[3, 4], name="</script><b>"))
    plain = figure.to_plotly_json()
    parts = [embed_figure(plain, library=which == 1) for which in range(3)]  # not the first one
    page = tmp_path / "notebook.html"
    amd = "<script>window.define = Object.assign(() => {}, { amd: {} })</script>"  # as require.js
    page.write_text(f"<!doctype html><body>{amd}{''.join(parts)}</body>", encoding="utf-8")
    with chromium.launch() as browser:
        browser.open(page)
        browser.evaluate("new Promise(done => setTimeout(done, 2000))")
        assert browser.evaluate("document.querySelectorAll('.scatterlayer .trace').length") == 3
        assert complaints(browser) == []
        page.write_text(f"<!doctype html><body>{parts[0]}</body>", encoding="utf-8")
        browser.open(page)
        browser.evaluate("new Promise(done => setTimeout(done, 500))")
        assert "Run all cells again" in browser.evaluate("document.body.innerText")
