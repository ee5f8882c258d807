"""The recorded findings of all papers: each file is what the recorded tables of its folder say."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks.reproduce import recorded_findings as tool
from engram.reproduce.papers.findings import NO, NOT_RUN, UNDECIDED, YES
from engram.reproduce.verdicts import t_interval
from tests.refusals import refuses


@pytest.fixture(scope="module")
def made():
    return {paper: tool.recorded_findings(paper) for paper in tool.CLAIMS}


def select(table, finding, **where):
    found = table[table["finding"].str.contains(finding)]
    for name, value in where.items():
        found = found[found[name] == value]
    return found


@pytest.mark.parametrize("paper", tool.CLAIMS)
def test_shipped_findings_are_those_of_the_tables(made, paper):
    shipped = (tool.HERE / f"{paper}-findings.csv").read_text(encoding="utf-8")
    assert tool.format_findings(made[paper]) == shipped, f"recorded_findings {paper} --save"
    held = made[paper]["holds"]
    assert set(held) <= {YES, NO, UNDECIDED, NOT_RUN}
    assert {YES, NO} <= set(held)  # findings can fail


def test_intervals_are_those_of_the_recorded_cells(made):
    """ConFER: of three repetitions half an interval is 4.303 standard errors."""
    lines = pd.read_csv(tool.HERE / "confer-fer-2013.csv", dtype=str).fillna("")
    line = select(made["confer"], "EWC and LwF end above", first="EWC", second="NR").iloc[0]
    place = ("FER-2013 Task-IL O1 without EWC", "4", "Acc", "")
    keys = lines[["cell", "stage", "metric", "settings"]].itertuples(index=False, name=None)
    (own,) = (n for n, key in enumerate(keys) if key == place)
    mean, low, high = map(float, lines.loc[own, ["ours", "low", "high"]])
    assert line["first_value"] == pytest.approx(mean)
    assert line["first_std"] == pytest.approx((high - low) / 2 / 4.3027 * 3**0.5, rel=1e-4)
    assert line["repetitions"] == 3


def test_rows_of_rwalk_are_those_of_tables_and_figures(made):
    table = made["rwalk"]
    assert not (table["printed_holds"] == NO).any()  # what is declared is what the paper says
    distances = table[table["row"] == "MNIST single-head, distance (F, I)"]
    assert distances["paper_first"].tolist() == pytest.approx([0.2052] * 8, abs=1e-4)
    spans = table[table["row"] == "MNIST range of I over three strengths"]
    assert spans["paper_second"].tolist() == pytest.approx([0.14, 0.17])  # EWC, PI
    wide = select(table, "^single-head, RWalk", second="EWC-S").iloc[0]
    assert (wide["holds"], wide["low"] < 0 < wide["high"]) == (UNDECIDED, True)
    few = select(table, "fewest samples, penalties", first="PI-S, 5 per class").iloc[0]
    assert (few["first_value"], few["repetitions"]) == (pytest.approx(58.5589, abs=1e-3), 5)
    assert few["settings"].startswith("cifar=null")  # figure 4 was made with an earlier preset
    assert set(select(table, "EWC\\+\\+")["holds"]) == {NOT_RUN}


def test_scores_of_iirc_are_those_of_table_and_figure(made):
    """Rows that BiC or joint are one of: one class order, so that the means decide."""
    table = made["iirc"]
    (line,) = select(table, "BiC falls below ER", row="task 15").to_dict("records")
    lines = pd.read_csv(tool.HERE / "iirc-C.1.csv", dtype={"stage": str})
    own = lines[(lines["cell"] == "IIRC-CIFAR IIRC ER") & (lines["stage"] == "15")]
    assert line["first_value"] == pytest.approx(own["ours"].item())
    curve = pd.read_csv(tool.HERE / "iirc-fig4.11.csv").query("panel == 'pw-JS, IIRC-CIFAR'")
    assert line["second_value"] == pytest.approx(curve["value"].iloc[15])
    assert (line["repetitions"], line["holds"]) == (1, YES)
    of_runs = select(table, "orphan precision", first="ER, orphan", row="task 10")
    assert of_runs["first_value"].tolist() == [0.922193]  # no table has it: the line stays


def test_sizes_and_orders_of_cgl_are_those_of_its_figures(made):
    wide = select(made["cgl"], "wider network", first="GEM, width 512").iloc[0]
    figure = pd.read_csv(tool.HERE / "cgl-fig7.csv")
    own = figure.query("method == 'GEM' and width == 512 and metric == 'average_accuracy'")
    assert wide["first_value"] == pytest.approx(100 * own["value"].item())
    assert wide["first_std"] == pytest.approx(100 * own["std"].item() * (5 / 4) ** 0.5)
    assert (wide["holds"], wide["repetitions"]) == (UNDECIDED, 5)
    orders = pd.read_csv(tool.HERE / "cgl-fig5.csv").query("method == 'GEM' and orders == 'task'")
    mean = select(made["cgl"], "GEM is less accurate than REPLAY", first="GEM").iloc[0]
    assert mean["first_value"] == pytest.approx(100 * orders["average_accuracy"].mean())


def test_recorded_settings_are_kept_apart(tmp_path):
    """Two rows that were made with different settings are not compared; how often is no setting."""
    head = "paper,table,cell,stage,metric,printed,corrected,correction,ours,difference,low,high,"
    rows = ["rwalk,1,MNIST multi-head Vanilla lambda=0,5,A(%),90.3,,,90,0,89,91,agrees,,"]
    for settings in ("mnist.epochs=3", "seeds=3"):
        ewc = "rwalk,1,MNIST multi-head EWC lambda=75000,5,A(%),99.3,,,98,0,97,99,agrees,,"
        text = "\n".join([f"{head}verdict,reason,settings", *rows, f"{ewc}{settings}", ""])
        (tmp_path / "rwalk-1.csv").write_text(text)
        found = tool.recorded_findings("rwalk", tmp_path)
        line = select(found, "penalties are above plain", first="EWC", second="Vanilla").iloc[0]
        assert line["holds"] == (YES if settings.startswith("seeds") else NOT_RUN)
        assert not found["row"].str.startswith("CIFAR").any()  # nothing of it is recorded


def test_repetitions_are_found_in_settings_and_reasons():
    known = tool.read_recorded("iirc")["schedule=short; precision=bf16"]
    counts = {
        row: known.means["C.1", f"IIRC-CIFAR IIRC {row}", "10", "pw-JS"].count
        for row in ("ER", "AGEM", "incremental joint")
    }
    assert counts == {"ER": 3, "AGEM": 2, "incremental joint": 1}
    low, high = t_interval(pd.Series([1.0, 2.0, 4.0]).to_numpy())
    assert tool.Moments.of_interval(7 / 3, low, high, 3).std == pytest.approx(1.527525)


def test_an_unknown_paper_is_named():
    with refuses("paper"):
        tool.recorded_findings("rwlk")
