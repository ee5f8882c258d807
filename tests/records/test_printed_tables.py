from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from engram.errors import BadArgument
from engram.records import document, reference
from engram.records.printed_tables import (
    DATA_IN_DOUBT,
    ORDER_IN_DOUBT,
    PAPERS,
    _read_csv,
    learning_accuracies,
    matching_rows,
    read_flags,
)
from tests.refusals import refuses

ROWS = {
    "confer": (
        "3: 104, 4: 78, 5: 208, 6: 182, 7: 104, 8: 78, 9: 182, 10: 156, 11: 104, 12: 78, 13: 208, "
        "14: 182, 15: 104, 16: 78, 17: 208, 18: 182, 19: 104, 20: 78, 21: 182, 22: 156, 23: 104, "
        "24: 78, 25: 208, 26: 182, 27: 104, 28: 78, 29: 104, 30: 78, 31: 182, 32: 156, 33: 182, "
        "34: 156, 35: 104, 36: 78, 37: 104, 38: 78, 39: 208, 40: 182, 41: 208, 42: 182, 43: 104, "
        "44: 78, 45: 104, 46: 78, 47: 208, 48: 182, 49: 208, 50: 182"
    ),
    "iirc": "3.1: 12, 3.2: 8, 3.3: 17, C.1: 154, C.2: 50, C.3: 141",
    "cgl": "1: 12, 2: 56, 3: 20, 4: 10, 5: 29",
    "cnd": "1: 26, 2: 200, 3: 105, 4: 632, 5: 632",
    "rwalk": "1: 78, 2: 3, 3: 90, 4: 16",
}
TOTAL = {"confer": 6656, "iirc": 382, "cgl": 127, "cnd": 1595, "rwalk": 187}


@pytest.mark.parametrize("paper", PAPERS)
def test_rows_per_table(paper: str) -> None:
    frame = reference(paper)
    assert len(frame) == TOTAL[paper]
    expected = {k: int(n) for k, n in re.findall(r"([\w.]+): (\d+)", ROWS[paper])}
    assert frame["table"].value_counts().to_dict() == expected
    assert len(reference(paper, next(iter(expected)))) == next(iter(expected.values()))


def cell(frame: object, **where: object) -> float:
    for key, value in where.items():
        frame = frame[frame[key] == value]  # type: ignore[index]
    assert len(frame) == 1  # type: ignore[arg-type]
    return float(frame["value"].iloc[0])  # type: ignore[index]


def test_known_cells() -> None:
    confer = {"augmentation": "without", "method": "LB", "stage": 1}
    assert cell(reference("confer", 3), **confer) == 0.92
    assert cell(reference("rwalk", 1), dataset="MNIST", setting="multi-head", method="Vanilla",
                metric="A(%)") == 90.3  # fmt: skip
    assert cell(reference("rwalk", 1), dataset="MNIST", setting="multi-head", method="Vanilla",
                metric="I") == 6.6e-4  # fmt: skip
    assert cell(reference("cnd", 1), method="ER-50s", metric="Acc") == 32.09
    assert cell(reference("cgl", 1), dataset="UCLA-CIL", metric="n_joints") == 20
    assert cell(reference("iirc", "3.1"), setting="with_duplicates", dataset="IIRC-CIFAR",
                metric="n_samples_train") == 46160  # fmt: skip
    assert cell(reference("iirc", "C.1"), method="LUCIR", stage=16) == 0.09


def test_every_flag_speaks_about_some_row() -> None:
    for paper in PAPERS:
        printed = _read_csv(f"{paper}_results.csv")
        name = printed["paper"].iloc[0]
        for flag in read_flags(name):
            assert matching_rows(printed, flag).any(), flag
    assert (
        sum(len(read_flags(p)) for p in ("ConFER", "IIRC", "CGL", "RWalk")) + len(read_flags("CND"))
        == 114 + 69
    )


def test_doubts_are_joined() -> None:
    cnd = reference("cnd", 4)
    assert cnd["value"].isna().sum() == 49
    assert (cnd.loc[cnd["value"].isna(), "doubt"] != "").all()
    sick = cnd.query("method == 'MAS' and nd_method == 'Mahalanobis' and stage == 8 "
                     "and metric == 'DER_F_vs_N' and dataset == 'Eight-Task'")  # fmt: skip
    assert "exclude each other" in sick["doubt"].iloc[0]
    exact = reference("rwalk", 3).query("dataset == 'CIFAR-100' and method == 'EWC'")
    damaged = exact[exact["doubt"].str.contains("exponent damaged")]
    assert damaged["params"].unique().tolist() == ["lambda=300000"]
    assert (reference("confer", 3)["doubt"] == "").all()


def test_remarks_about_units_and_other_tables_are_no_doubts() -> None:
    said = [flag["reason"] for paper in ("CGL", "RWalk") for flag in read_flags(paper)]
    assert sum(text.startswith("std > 1 (unit: ") for text in said) == 19
    cgl = reference("cgl", 2)
    doubted = cgl[cgl["doubt"] != ""]
    assert doubted[["dataset", "setting", "method", "metric"]].to_numpy().tolist() == [
        ["UCLA-CIL", "task-order", "MAS", "MOPD"]
    ]
    assert "98.7" in doubted["doubt"].iloc[0]
    assert "unit" not in doubted["doubt"].iloc[0]
    rwalk = reference("rwalk", 3)
    assert rwalk[rwalk["doubt"] != ""]["params"].unique().tolist() == ["lambda=300000"]


def test_forgetting_columns_of_confer_are_rotated_back() -> None:
    rotated, printed = (
        reference("confer", 6),
        reference("confer", 6, confer_cf_columns="as_printed"),
    )
    a_gem = {"method": "A-GEM", "augmentation": "without"}
    # Accuracies .59 and .50 after two and three classes imply forgetting .82 and .75.
    assert cell(rotated, stage=2, **a_gem) == 0.82
    assert cell(rotated, stage=3, **a_gem) == 0.76
    assert cell(printed, stage=2, **a_gem) == 0.76
    assert cell(printed, stage=8, **a_gem) == 0.82
    assert sorted(rotated["stage"].unique()) == sorted(printed["stage"].unique())
    assert (rotated["printed_stage"] == printed["stage"]).all()
    assert rotated["value"].tolist() == printed["value"].tolist()
    accuracy = reference("confer", 5)
    assert (accuracy["stage"] == accuracy["printed_stage"]).all()


@pytest.mark.parametrize(("table", "turned"), [(3, False), (4, True), (12, True), (50, True)])
def test_forgetting_tables_are_rotated(table: int, turned: bool) -> None:
    frame = reference("confer", table)
    assert bool((frame["stage"] != frame["printed_stage"]).all()) is turned
    assert bool((frame["stage"] != frame["printed_stage"]).any()) is turned


def of_task_il(**options: str) -> pd.DataFrame:
    frame = reference("confer", **options)  # type: ignore[arg-type]
    return learning_accuracies(frame[frame["setting"] == "Task-IL"]).droplevel("setting")


def test_accuracies_right_after_learning_fit_into_the_unit_interval() -> None:
    found, printed = of_task_il(), of_task_il(confer_cf_columns="as_printed")
    blocks = found.groupby(level=["dataset", "order", "augmentation"]).max()
    assert blocks.shape == (24, 4)
    assert blocks.to_numpy().max() < 1.06
    assert printed.to_numpy().max() > 1.6
    half = of_task_il(confer_cf_norm="i-1")  # rotated alone is not enough
    assert half.to_numpy().max() > 1.06


def test_a_task_of_one_class_is_learnt_to_the_end() -> None:
    single = ["RAF-DB", "FER-2013"]  # without Contempt the fourth task has one class
    fourth = of_task_il().loc[single, 4]
    assert len(fourth) == 104
    assert fourth.mean() == pytest.approx(1.0, abs=0.005)
    assert fourth.std() == pytest.approx(0.02, abs=0.005)
    printed = of_task_il(confer_cf_columns="as_printed").loc[single, 4]
    means = printed.groupby(level=["dataset", "order", "augmentation"]).mean()
    assert (round(means.min(), 2), round(means.max(), 2)) == (0.53, 0.87)


def test_orders_are_in_doubt_where_other_tasks_have_equal_accuracies() -> None:
    found = of_task_il()
    apart = {}
    for dataset in found.index.unique("dataset"):
        block = found.loc[dataset].drop(["without", "original"], level="augmentation")
        first = block.xs("O1", level="order")
        gaps = [(block.xs(o, level="order") - first).median().abs().max() for o in ("O2", "O3")]
        apart[dataset] = max(gaps)
    assert {name for name, gap in apart.items() if gap <= 0.04} == {*DATA_IN_DOUBT}
    frame = reference("confer")
    marked = frame[frame["doubt"].str.contains(ORDER_IN_DOUBT)]
    assert {*marked["dataset"]} == {*DATA_IN_DOUBT}
    assert {*marked["order"]} == {"O2", "O3"}
    others = frame[frame["dataset"].isin(DATA_IN_DOUBT) & frame["order"].isin(("O2", "O3"))]
    assert len(marked) == len(others) > 2000


def test_the_last_rotated_column_is_in_doubt_where_the_paper_does_not_show_it() -> None:
    frame = reference("confer", 50)
    last = frame[frame["printed_stage"] == 8]
    assert last["doubt"].str.contains("last printed column").all()
    assert not frame[frame["printed_stage"] == 7]["doubt"].str.contains("last printed column").any()


def test_what_the_rotation_settles_is_no_doubt() -> None:
    assert (reference("confer", 6)["doubt"] == "").all()
    printed = reference("confer", 6, confer_cf_columns="as_printed")
    assert printed["doubt"].str.contains("shifted by one stage").all()
    weak = reference("confer", 26)
    assert weak["doubt"].str.contains("weak evidence").all()


def test_norm_of_task_incremental_forgetting() -> None:
    lb = "method == 'LB' and augmentation == 'without'"
    plain = reference("confer", 4, confer_cf_norm="i-1").query(lb)
    scaled = reference("confer", 4).query(lb)
    ratio = dict(zip(plain["stage"], scaled["value"] / plain["value"], strict=True))
    assert ratio == pytest.approx({2: 1.0, 3: 1 / 2, 4: 2 / 3})
    class_il = reference("confer", 10, confer_cf_norm="i-1")
    assert reference("confer", 10).equals(class_il)


def test_printed_numbers_can_be_seen() -> None:
    corrected = reference("confer")
    printed = reference("confer", confer_cf_columns="as_printed")
    raw = _read_csv("confer_results.csv")
    assert printed["value"].tolist() == [float(text) for text in raw["value"]]
    assert printed["stage"].tolist() == [int(text) for text in raw["stage"]]
    assert corrected["printed_value"].tolist() == printed["value"].tolist()
    assert corrected["printed_stage"].tolist() == printed["stage"].tolist()
    changed = corrected[corrected["value"] != corrected["printed_value"]]
    assert {*changed["setting"]} == {"Task-IL"}
    assert {*changed["metric"]} == {"CF"}


def test_callers_cannot_spoil_the_table() -> None:
    mine = reference("cgl")
    mine["value"] = 0.0
    assert reference("cgl")["value"].max() > 0


def test_documents() -> None:
    cifar, imagenet = document("iirc_cifar_hierarchy"), document("iirc_imagenet_hierarchy")
    assert cifar != imagenet
    assert list(document("confer_orders")["orders"]) == ["O1", "O2", "O3"]
    assert document("protocols")["ConFER"]["optimizer"]["lr"] == 2.5e-4


def test_unknown_names_are_refused() -> None:
    with refuses("paper", near="confer"):
        reference("confr")
    with refuses("table"):
        reference("cgl", 9)
    with pytest.raises(BadArgument, match="rotated"):
        reference("confer", confer_cf_columns="rotate")
    assert np.isfinite(reference("RWalk")["value"]).all()
