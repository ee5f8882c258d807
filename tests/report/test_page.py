from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

import engram
from engram.errors import BadArgument
from engram.records import Rows, RunDirectory
from engram.report import ReportInput, build, from_directories
from engram.report import sections as sections_module
from engram.report.figures import add_bound, draw_points, empty_figure, set_log_axis_with_zero
from engram.report.method_styles import assign_styles
from engram.report.plot_tables import describe_streams
from engram.report.report_data import build_report_data
from engram.report.report_inputs import REPRODUCTION_COLUMNS, from_result
from engram.report.sections import build_sections, choose_methods, list_panels

HOSTILE = (
    "<script>document.title='owned'</script>",
    "</script><img src=x onerror=\"document.title='owned'\">",
    "\"quotes' & <b>bold</b> %{x} {{ 7 * 7 }} $x$",
    "方法-名前-ÄÖÜ-ελληνικά-עברית",
    "long " + "x" * 3000,
)


class Outline(HTMLParser):
    """Tags outside of scripts, and the texts of table cells."""

    def __init__(self):
        super().__init__()
        self.tags, self.cells, self.links = [], [], []
        self.inside = False

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href") and not str(v).startswith("#")]
        if tag == "td":
            self.cells.append("")
            self.inside = True

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "td"

    def handle_data(self, data):
        if self.inside:
            self.cells[-1] += data


def outline(path):
    parser = Outline()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser


def page_data(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="page-data">(.*?)</script>', text, re.S)[1])


def test_one_file_without_outside_links(tmp_path, frame_of, recipes_of):
    frame = frame_of(orders=("0-1-2-3-4", "1-0-2-3-4"))
    out = build(
        ReportInput(frame, recipes_of(frame)), tmp_path / "a" / "report.html", title="T & T"
    )
    text = out.read_text(encoding="utf-8")
    parsed = outline(out)
    assert "<title>T &amp; T</title>" in text
    assert parsed.links == []
    assert parsed.tags.count("script") == 3
    assert text.count("plotly.js v") == 1
    assert [p.name for p in out.parent.iterdir()] == ["report.html"]


def test_same_input_same_page(tmp_path, frame_of):
    inputs = ReportInput(frame_of(seeds=2, points=3))
    first, second = (build(inputs, tmp_path / f"{i}.html").read_bytes() for i in range(2))
    assert first == second


def test_every_section_has_its_figures(frame_of, recipes_of):
    frame = frame_of(orders=("0-1-2-3-4", "1-0-2-3-4"))
    facts = build_report_data(ReportInput(frame, recipes_of(frame)))
    found = {s.name: len(s.panels) for s in build_sections(facts, choose_methods(facts))}
    assert found == {
        "matrices": 4, "stages": 6, "iterations": 5, "trade-off": 1, "plane": 1, "orders": 1,
        "costs": 2, "losses": 2, "classes": 1,
    }  # fmt: skip


def test_sections_without_data_are_left_out_and_said_why(tmp_path, frame_of):
    inputs = ReportInput(frame_of(["A"], seeds=1, tasks=1, heads=["single"], points=0, classes=0))
    facts = build_report_data(inputs)
    for section in build_sections(facts, choose_methods(facts)):
        assert bool(section.panels) != bool(section.note), section.name
    out = build(inputs, tmp_path / "r.html")
    text, parsed = out.read_text(encoding="utf-8"), outline(out)
    assert parsed.tags.count("figure") == 1  # the matrix
    assert re.findall(r'<section class="card" id="([^"]+)"', text) == [
        "summary", "doctor", "matrices-section",
    ]  # fmt: skip
    assert re.findall(r'<li><a href="#([^"]+)"', text) == ["summary", "doctor", "matrices-section"]
    assert "<li>Sensitivity to the order: Only one order was run.</li>" in text


def test_the_data_set_is_named(tmp_path, frame_of, recipes_of):
    frame = frame_of(points=0)
    recipes = recipes_of(frame)
    for one in recipes.values():
        one["stream"] = {"kind": "class_incremental", "data": "a/b/birds.npz", "head": "single"}
    text = build(ReportInput(frame, recipes), tmp_path / "r.html").read_text(encoding="utf-8")
    assert '<p class="facts about">birds.npz: class_incremental</p>' in text
    assert "caption{Summary. birds.npz: class" in page_data(tmp_path / "r.html")["tables"][
        "summary"]["latex"].replace("\\_", "_")  # fmt: skip


def test_hostile_names_are_text(tmp_path, frame_of):
    frame = frame_of(HOSTILE, seeds=2, points=3)
    recipes = {"evil": {"method": HOSTILE[0], "note": HOSTILE[1]}}
    out = build(
        ReportInput(frame, recipes, environment={HOSTILE[1]: HOSTILE[0]}, ledger={HOSTILE[0]: 1},
                    problems=[HOSTILE[1]]),
        tmp_path / "r.html", title=HOSTILE[0],
    )  # fmt: skip
    parsed = outline(out)
    assert parsed.tags.count("script") == 3
    assert "img" not in parsed.tags
    for name in HOSTILE:
        assert name in parsed.cells
    data = page_data(out)
    assert data["methods"] == sorted(HOSTILE)
    names = [t["name"] for f in data["figures"].values() for t in f["data"] if t.get("name")]
    assert names
    assert not any("<" in name for name in names)
    assert html.escape("<b>bold", quote=False) in " ".join(names)


def test_many_methods_are_capped_in_figures_not_in_tables(tmp_path, frame_of):
    labels = [f"ER size={i}" for i in range(60)]
    inputs = ReportInput(frame_of(labels, seeds=1, tasks=2, points=0, classes=0, heads=["single"]))
    facts = build_report_data(inputs)
    cast = choose_methods(facts)
    assert len(cast.names) == sections_module.MOST_METHODS
    assert "ER size=59" in cast.names  # the best is drawn
    out = build(inputs, tmp_path / "r.html")
    assert set(labels) <= set(outline(out).cells)
    assert "36 more, only in tables" in out.read_text(encoding="utf-8")


def test_ten_thousand_rows_of_points_are_sampled(frame_of):
    frame = frame_of(["A", "B"], seeds=5000, tasks=2, points=0, classes=0, heads=["single"])
    facts = build_report_data(ReportInput(frame))
    for panel in list_panels(build_sections(facts, choose_methods(facts))):
        assert len(panel.figure.to_json()) < 100_000, panel.name


def test_forgetting_of_every_definition_is_on_the_page(tmp_path, frame_of):
    data = page_data(build(ReportInput(frame_of(points=0, classes=0)), tmp_path / "r.html"))
    assert len(data["forgetting"]) == 8
    row = data["forgetting"][0]
    assert row["cglb"][2] == pytest.approx(-row["diagonal"][2])
    assert sum(row["max"][3] for row in data["forgetting"]) == 2  # the best of each view


def test_reproduction_tables(tmp_path, frame_of):
    row = ["rwalk", "1", "EWC, MNIST", "", "A", 0.558, float("nan"), "", 0.5612, 0.0032, 0.55, 0.57]
    row += ["within", "<none>", ""]
    table = pd.DataFrame([row], columns=list(REPRODUCTION_COLUMNS))
    parsed = outline(build(ReportInput(frame_of(), reproductions=[table]), tmp_path / "r.html"))
    assert {"EWC, MNIST", "0.558", "0.561", "within", "<none>"} <= set(parsed.cells)


def test_from_directories(tmp_path):
    rows = Rows(recipe="0a1b2c3d4e5f", label="ER", seed=0)
    rows.add_array(
        "accuracy", [[0.9, 0.1], [0.7, 0.8]], head="single", stage=[[0], [1]], task=[0, 1]
    )
    folder = RunDirectory(tmp_path / "run")
    folder.write_recipe("0a1b2c3d4e5f", {"method": {"name": "ER"}})
    folder.append(
        rows, ledger={"0a1b2c3d4e5f-0-": {"0": {"train": 64}}}, environment={"python": "3"}
    )
    (tmp_path / "run" / "results-broken.parquet").write_bytes(b"no")
    inputs = from_directories(tmp_path / "run")
    assert inputs.environment == {"python": "3"}
    assert "results-broken.parquet" in inputs.problems[0]
    parsed = outline(build(inputs, tmp_path / "r.html"))
    assert {"ER", "train", "64"} <= set(parsed.cells)


def test_bad_arguments(tmp_path, frame_of):
    with pytest.raises(BadArgument, match="inputs: expected a ReportInput"):
        build(frame_of(), tmp_path / "r.html")
    with pytest.raises(BadArgument, match="out: expected the path of a file"):
        build(ReportInput(frame_of()), tmp_path)


def test_bound_line():
    figure = empty_figure("x", "y")
    add_bound(figure, 3)
    line = dict(zip(figure.data[0].x.round(6).tolist(), figure.data[0].y.tolist(), strict=True))
    assert line[0.72] == pytest.approx(0.42)  # [T-M4]
    assert max(line.values()) == 1.0


def test_zero_cost_has_a_place_on_a_log_axis():
    costs = [0.0, 1.0, 1000.0]
    table = pd.DataFrame({"name": ["a", "b", "c"], "head": "", "x": costs, "y": 0.5})
    figure = draw_points(table, assign_styles(["a", "b", "c"]), x="bytes", y="accuracy")
    set_log_axis_with_zero(figure, costs)
    assert figure.layout.xaxis.type == "log"
    assert figure.layout.xaxis.ticktext[0] == "0"
    assert all(np.isfinite(np.log10(trace.x[0])) for trace in figure.data)


def test_a_report_of_label_sets_names_their_score():
    rows = Rows(recipe="r", label="ER", seed=0)
    matrix = np.array([[0.8, np.nan], [0.5, 0.9]])
    place = {"stage": [[0], [1]], "task": [0, 1], "head": "single"}
    rows.add_array("precision_weighted_jaccard", matrix, **place)
    for stage, value in enumerate((0.8, 0.61)):
        rows.add("precision_weighted_jaccard", value, stage=stage, head="single")
    facts = build_report_data(ReportInput(rows.frame()))
    assert (facts.figure, facts.average) == ("precision-weighted Jaccard",) * 2
    # over all rows, each once: no average of tasks
    assert facts.methods["average_accuracy"].tolist() == [0.61]
    assert facts.methods["forgetting/max"].tolist() == pytest.approx([0.3])
    sections = build_sections(facts, choose_methods(facts))
    words = " ".join(f"{one.title} {one.help} {one.note}" for one in sections)
    assert "Precision-weighted Jaccard over stages" in words
    assert "ccuracy" not in words
    for panel in list_panels(sections):
        assert "accuracy" not in panel.figure.to_json()


def test_the_header_counts_test_rows_of_one_order():
    recipe = engram.Recipe.of({"stream": {"data": "blobs", "classes_per_task": 2},
                               "method": "Finetune"})  # fmt: skip
    study = engram.orders(recipe, task_orders=4)
    shown = describe_streams(build_report_data(from_result(study.result)))
    assert (
        shown == f"blobs: class_incremental, {len(engram.load('blobs').test)} test rows, 10 classes"
    )


def test_figures_of_two_streams_are_apart(tmp_path, frame_of, recipes_of):
    parts, recipes = [], {}
    for data in ("digits", "birds"):
        frame = frame_of(["ER", "EWC"], points=0, tasks=2)
        frame["recipe"] = data + frame["recipe"]
        parts.append(frame)
        recipes |= recipes_of(frame)
        for one in frame["recipe"].unique():
            recipes[one]["stream"] = {**recipes[one]["stream"], "data": data}
    out = build(ReportInput(pd.concat(parts), recipes), tmp_path / "r.html")
    data = page_data(out)
    assert data["methods"] == ["ER", "EWC"]  # one switch for both streams
    for name in ("trade-off", "stages-mean"):
        assert {f"{name}-stream-1", f"{name}-stream-2"} <= set(data["figures"])
        assert name not in data["figures"]
        for number in (1, 2):
            traces = data["figures"][f"{name}-stream-{number}"]["data"]
            lines = [t for t in traces if t["meta"]["label"] == "ER"]
            assert lines
    assert "digits: All tasks seen" in out.read_text(encoding="utf-8")
