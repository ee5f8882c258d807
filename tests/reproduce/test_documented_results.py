"""Results in the pages of protocols and in the README, cell by cell against their files."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from engram.records import reference

ROOT = Path(__file__).parents[2]
KINDS = ("judged", "ours")


def recorded(name: str) -> pd.DataFrame:
    found = pd.read_csv(ROOT / "benchmarks" / "reproduce" / f"{name}.csv", keep_default_na=False)
    if "printed" in found:
        found["judged"] = found["corrected"].where(found["correction"] != "", found["printed"])
    return found


def page_tables(page: str, *head: str) -> list[list[list[str]]]:
    """The tables of a page whose first columns are called so: rows of cells, without the head."""
    found, table = [], []
    for line in [*(ROOT / page).read_text().splitlines(), ""]:
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        elif table:
            if tuple(table[0][: len(head)]) == head:
                found.append(table[2:])
            table = []
    return found


def agree(texts: list[str], values: list[float]) -> None:
    """Each text is its value, rounded to as many digits as it has."""
    assert len(texts) == len(values) > 0
    for text, value in zip(texts, values, strict=True):
        digits = len(text.partition(".")[2])
        assert float(text) == pytest.approx(float(value), abs=0.5 * 10**-digits + 1e-9)


def steps(lines: pd.DataFrame, cell: str, kind: str) -> list[float]:
    """A row of a table with a column per step."""
    row = lines[lines["cell"] == cell]
    return [float(value) for value in row.sort_values("stage")[kind]]


SMALL = "fer.options.resize=32; seeds=1"


def photographs(settings: str) -> pd.DataFrame:
    lines = recorded("confer-fer-2013").astype({"stage": int})
    return lines[lines["settings"] == settings]


def test_confer_on_photographs():
    lines = photographs("")
    lines = lines[lines["metric"] == "Acc"]
    head = ("row", "Task-IL, paper", "ours", "Class-IL, paper", "ours")
    tables = page_tables("docs/protocols/confer.md", *head)
    for half, table in zip(("without", "with"), tables, strict=True):
        for row, *cells in table:
            for column, text in enumerate(cells):
                setting = ("Task-IL", "Class-IL")[column // 2]
                cell = f"FER-2013 {setting} O1 {half} {row}"
                ours = steps(lines, cell, "ours")
                if "not run" in cells[column // 2 * 2 : column // 2 * 2 + 2]:
                    assert not ours
                elif text == "1/k":
                    agree([f"{1 / k:.2f}" for k in range(1, 8)], ours)
                else:
                    agree(text.split(), steps(lines, cell, KINDS[column % 2]))


@pytest.mark.parametrize(
    ("setting", "orders"), [("Task-IL", ("O1", "O2", "O3")), ("Class-IL", ("O2", "O3"))]
)
def test_confer_in_other_orders(setting, orders):
    lines = photographs(SMALL)
    lines = lines[lines["metric"] == "Acc"]
    head = ("row", *(text for order in orders for text in (f"{order}, paper", "ours")))
    (table,) = page_tables("docs/protocols/confer.md", *head)
    shown = 0
    for row, *cells in table:
        for column, text in enumerate(cells):
            cell = f"FER-2013 {setting} {orders[column // 2]} with {row}"
            if "not run" in cells[column // 2 * 2 : column // 2 * 2 + 2]:
                assert not steps(lines, cell, "ours")
            else:
                agree(text.split(), steps(lines, cell, KINDS[column % 2]))
                shown += column % 2
    assert shown == lines[lines["cell"].str.contains(setting)]["cell"].nunique()


def test_what_is_said_of_other_orders():
    small, whole = photographs(SMALL), photographs("")
    page = (ROOT / "docs/protocols/confer.md").read_text()
    part = " ".join(page.split("### FER-2013 in orders O2 and O3")[1].split("\n### ")[0].split())
    others = small[~small["cell"].str.contains(" O1 ")]
    agreeing = (others["verdict"] == "agrees").sum()
    assert f"{agreeing} of the {len(others)} cells of these orders agree" in part
    both = small.merge(whole, on=["cell", "stage", "metric"], suffixes=("", "_100"))
    both = both[both["metric"] == "Acc"]
    away = (both["ours"].astype(float) - both["ours_100"].astype(float)).abs()
    said = f"differ by {away.mean():.2f} on average and by {away.max():.2f} at most"
    assert said.replace("0.", ".") in part
    printed = reference("confer")
    printed = printed[(printed["dataset"] == "FER-2013") & (printed["setting"] == "Task-IL")]
    printed = printed[(printed["metric"] == "Acc") & (printed["augmentation"] == "with")]
    each = printed.pivot_table(index=["method", "stage"], columns="order", values="value")
    apart = each.sub(each["O1"], axis=0).abs().max().max()
    assert f"within {apart:.2f} of those of O1".replace("0.", ".") in part
    for order in ("O2", "O3"):
        ends = {
            row: steps(
                small[small["metric"] == "Acc"], f"FER-2013 Class-IL {order} with {row}", "ours"
            )[-1]
            for row in ("UB", "LR", "LGR+D", "LGR")
        }
        assert sorted(ends, key=ends.get, reverse=True) == list(ends)


def test_counts_of_confer():
    lines = photographs("")
    page = " ".join((ROOT / "docs/protocols/confer.md").read_text().split())
    agreeing = lines[lines["verdict"] == "agrees"]
    assert f"{len(agreeing)} of the {len(lines)} cells agree" in page
    undecided = (lines["verdict"] == "undecided").sum()
    assert f"{undecided} are undecided, because three seeds give a wide interval" in page
    for half in ("without", "with"):
        own = lines[lines["cell"].str.contains(f" O1 {half} ")]
        part = page.split(f"### FER-2013 {half} copies")[1]
        count = (own["verdict"] == "agrees").sum()
        undecided = (own["verdict"] == "undecided").sum()
        said = f"{count} of {len(own)} cells agree, {undecided} are undecided."
        assert said in part.split(" ### ")[0]


@pytest.mark.parametrize(("at", "number", "setting"), [(0, 3, "Task-IL"), (1, 5, "Class-IL")])
def test_confer_on_drawn_faces(at, number, setting):
    lines = recorded(f"confer-{number}-embedded").astype({"stage": int})
    lines = lines[lines["settings"] == ""]
    table = page_tables("docs/protocols/confer.md", "row", "without copies", "with copies")[at]
    assert len(table) == 13
    for row, *cells in table:
        for half, text in zip(("without", "with"), cells, strict=True):
            agree(text.split(), steps(lines, f"faces {setting} O1 {half} {row}", "ours"))


def test_iirc():
    lines = recorded("iirc-C.1").astype({"stage": int})
    shown = lines[lines["stage"].isin([0, 1, 3, 5, 10, 15, 18, 21])]
    (table,) = page_tables("docs/protocols/iirc.md", "row", "paper", "ours")
    names = set(lines["cell"].str.removeprefix("IIRC-CIFAR IIRC "))
    assert names == {row[0] for row in table} - {"BiC"}
    for row, *cells in table:
        for kind, text in zip(KINDS, cells, strict=True):
            if row != "BiC":
                agree(text.split(), steps(shown, f"IIRC-CIFAR IIRC {row}", kind))
    page = (ROOT / "docs/protocols/iirc.md").read_text()
    agreeing = lines[lines["verdict"] == "agrees"]
    undecided = (lines["verdict"] == "undecided").sum()
    near = (lines["difference"].astype(float).abs() <= 0.05).sum()
    findings = recorded("iirc-findings")["holds"].value_counts()
    for said in (
        f"{len(agreeing)} agree",
        f"{undecided} are undecided, because three orders",
        f"{near} are within .05",
        f"Of {findings.sum() - findings['not run']} comparisons {findings['yes']} hold, ",
        f"{findings['no']} fail and {findings['undecided']} are undecided; {findings['not run']} ",
    ):
        assert said in page


def test_iirc_on_drawn_shapes():
    lines = recorded("iirc-fig4.2-embedded").astype({"stage": int})
    (table,) = page_tables("docs/protocols/iirc.md", "row", "after each task", "labels")
    assert len(table) == lines["method"].nunique()
    for row, text, _ in table:
        agree(text.split(), lines[lines["method"] == row].sort_values("stage")["value"].tolist())


def test_rwalk():
    lines = recorded("rwalk-1")
    plain = lines["cell"].str.replace(r" lambda=.*", "", regex=True)
    printed = "weigh_samples=false; ewc.normalize=false; ewc.alpha_on=batch; rwalk.alpha_on=batch"
    larger, cifar = "mnist.epochs=5; mnist.lr=0.003", "cifar.precision=tf32; seeds=1"
    settings = ("", larger, printed, cifar)
    tables = page_tables("docs/protocols/rwalk.md", "head", "method", "A paper")
    for name, table in zip(settings, tables, strict=True):
        assert len(table) == 13
        data = "CIFAR-100" if "cifar" in name else "MNIST"
        for head, method, *cells in table:
            row = lines[(plain == f"{data} {head} {method}") & (lines["settings"] == name)]
            assert row["metric"].tolist() == ["A(%)", "F", "I"]
            agree(cells, row[list(KINDS)].to_numpy().flatten().tolist())


def test_skeletons():
    lines = recorded("cgl-2").set_index(["cell", "metric"])
    (table,) = page_tables("docs/protocols/cgl.md", "", "paper, task orders")
    assert len(table) == 7
    for row, *cells in table:
        for column, text in enumerate(cells):
            orders = ("task-order", "class-order-aggregated")[column // 2]
            found = lines.loc[f"UCLA-CIL {orders} {row}", KINDS[column % 2]]
            agree(text.split(" / "), found[["AOPD", "MOPD"]].tolist())


def test_findings_on_skeletons_are_counted_on_their_page():
    found = recorded("cgl-findings")
    held = found["holds"].value_counts()
    text = " ".join((ROOT / "docs/protocols/cgl.md").read_text().split())
    assert f"Of {len(found)} comparisons that try {found['finding'].nunique()} claims" in text
    said = f"{held['yes']} hold, {held['no']} do not, {held['undecided']} are undecided"
    assert f"{said}, and {held['not run']} wait" in text


def test_findings_of_novelty_are_of_the_runs_of_the_tables():
    cells = recorded("cnd-all").astype({"table": str, "stage": str})
    found = recorded("cnd-findings")
    (control,) = found[found["finding"].str.startswith("without bias")].itertuples()
    accuracy = cells[cells["cell"] == "TinyImageNet multi-head FineTune ResNet"]
    accuracy = accuracy[accuracy["metric"] == "Acc"]["ours"]
    assert accuracy.astype(float).tolist() == [control.first_value]


def test_novelty():
    lines = recorded("cnd-all")
    table, drawn = page_tables("docs/protocols/cnd.md", "row", "Acc", "Forg", "mAUC")
    metrics = ("Acc", "Forg", "mAUC", "m.P.AUC", "m.R.AUC", "F/IN", "F/Out")
    for row, *cells in table:
        found = novelty_row(lines, row, "TinyImageNet", "VGG")
        for metric, text in zip(metrics, cells, strict=True):
            if text:
                agree(text.split(" / "), found.loc[metric, list(KINDS)].tolist())
    lines = recorded("cnd-embedded")
    for row, *cells in drawn:
        found = novelty_row(lines, row, "shapes", "second network")
        texts = [text for text in cells if text]
        metrics = ("Acc", "Forg", "mAUC", "F/IN", "F/Out")[: len(texts)]
        agree(texts, found.loc[list(metrics), "ours"].tolist())


def novelty_row(lines: pd.DataFrame, row: str, data: str, second: str) -> pd.DataFrame:
    """Tables 1 and 3 of one row, by metric; the last is of Softmax."""
    method, _, other = row.partition(", ")
    assert other in ("", second)
    head = "multi-head" if method in ("FineTune", "LwF", "MAS") else "shared-head"
    network = "VGG" if other else "ResNet"
    cells = [f"{data} {head} {method} {network}", f"{data} {head} {method} Softmax {network}"]
    found = lines[lines["cell"].isin(cells) & lines["table"].astype(str).isin(["1", "3"])]
    return found.set_index("metric")


def test_readme():
    lines = recorded("rwalk-1")
    lines = lines[(lines["settings"] == "") & (lines["metric"] == "A(%)")]
    names = {
        "plain training": "Vanilla lambda",
        "EWC": "EWC lambda",
        "PI (SI)": "PI lambda",
        "iCaRL": "iCaRL",
        "plain training with samples": "Vanilla-S",
        "EWC with samples": "EWC-S",
        "PI with samples": "PI-S",
        "RWalk with samples": "RWalk",
    }
    (table,) = page_tables("README.md", "", "paper", "ours", "verdict")
    assert [row[0] for row in table] == list(names)
    for row, paper, ours, verdict, _ in table:
        found = lines[lines["cell"].str.match(rf"MNIST single-head {names[row]}(=| lambda|$)")]
        agree([paper, ours], found[list(KINDS)].to_numpy().flatten().tolist())
        assert found["verdict"].tolist() == [verdict]


def test_first_task_of_iirc():
    lines = recorded("iirc-first-task").set_index("order")
    page = " ".join((ROOT / "docs/protocols/iirc.md").read_text().split())
    for order, score, epochs in lines[["score", "epochs"]].itertuples():
        assert f"at {score:.2f} in order {order} ({epochs} epochs)".replace("0.", ".") in page
    mean = (0.70 + lines["score"].sum()) / 3  # order 0 with the short schedule
    assert f"the mean is {mean:.2f}".replace("0.", ".") in page


def test_findings_of_confer():
    page = " ".join((ROOT / "docs/protocols/confer.md").read_text().split())
    held = recorded("confer-findings")["holds"].value_counts()
    said = f"{held['yes']} of {held.sum()} comparisons hold, {held['no']} fail, {held['undecided']}"
    assert f"{said} are undecided and {held['not run']}" in page
    drawn = recorded("confer-findings-embedded")["holds"]
    assert f"(`confer-findings-embedded.csv`) {(drawn == 'yes').sum()} of {len(drawn)} hold" in page


def test_roots_of_confer():
    lines = recorded("confer-roots").astype({"ours": float, "stage": int})
    head = ("rate", "mean accuracy", "end of Task-IL: LR, LGR, LGR+D")
    (table,) = page_tables("docs/protocols/confer.md", *head)
    rates = dict.fromkeys(lines["root_lr"])
    for rate, (said, mean, *ends) in zip(rates, table, strict=True):
        own = lines[lines["root_lr"] == rate]
        assert float(said.split(",")[0]) == rate
        assert float(mean) == round(own["ours"].mean(), 3)
        blocks = [("Task-IL", "without"), ("Class-IL", "without"),
                  ("Task-IL", "with"), ("Class-IL", "with")]  # fmt: skip
        for (setting, half), text in zip(blocks, ends, strict=True):
            at = own[own["cell"].str.contains(f"{setting} O1 {half} ")]
            agree(text.split(), at[at["stage"] == at["stage"].max()]["ours"].tolist())
