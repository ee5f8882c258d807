"""What the pages say of measured numbers, held against the numbers that are committed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "reproduce"
HALVES = ["without", "with"]


def last_step(table: int, half: str, settings: str = "", rows: int = 13) -> dict[str, float]:
    """Accuracy after the last step, by row of a ConFER table: 3 and 5 are of drawn faces."""
    name = f"confer-{table}-embedded" if table < 7 else "confer-fer-2013"
    lines = pd.read_csv(FOLDER / f"{name}.csv", keep_default_na=False)
    lines = lines[(lines["settings"] == settings) & (lines["table"] == table)]
    where = lines["cell"].str.extract(r"^\S+ \S+ O1 (?P<half>\S+) (?P<row>\S+)$")
    lines = lines.assign(**where)
    lines = lines[lines["half"] == half]
    lines = lines[lines["stage"] == lines["stage"].max()]
    found = dict(zip(lines["row"], lines["ours"].astype(float), strict=True))
    assert len(found) == rows
    return found


@pytest.mark.parametrize("half", HALVES)
def test_confer_with_known_tasks(half):
    rows = last_step(3, half)
    for name in ("LwF", "NR"):
        assert rows[name] > rows["UB"] - 0.05
    assert rows["EWC"] < rows["LB"] < rows["UB"] - 0.05


@pytest.mark.parametrize("half", HALVES)
def test_confer_without_known_tasks(half):
    rows = last_step(5, half)
    for name in ("LB", "EWC", "EWC-Online", "SI", "LwF"):
        assert rows[name] == pytest.approx(1 / 8, abs=0.02)
    for name in ("DGR", "DGR+D"):
        assert rows[name] == pytest.approx(1 / 8, abs=0.08)
    assert rows["UB"] > rows["NR"] > rows["LR"] > rows["LGR+D"]
    assert rows["LR"] > rows["LGR"]
    assert rows["LGR+D"] >= rows["LGR"] > rows["DGR"] + 0.05


def test_confer_at_equal_bytes():
    rows = last_step(5, "without", "memory_bytes=884800", rows=2)
    assert rows["NR"] == pytest.approx(rows["LR"], abs=0.03)
    assert min(rows.values()) > last_step(5, "without")["LGR+D"] + 0.2


@pytest.mark.parametrize("half", HALVES)
def test_photographs_with_known_tasks(half):
    rows = last_step(27, half)
    for name in ("LwF", "NR"):
        assert rows[name] > rows["UB"] - 0.03
    plain = {"without": 0.03, "with": 0.09}[half]
    assert rows["UB"] - rows["LB"] == pytest.approx(plain, abs=0.01)
    assert max(rows["LGR"], rows["DGR"]) < rows["LB"]
    assert rows["LR"] > max(rows["LGR"], rows["LGR+D"])


@pytest.mark.parametrize("half", HALVES)
def test_photographs_without_known_tasks(half):
    rows = last_step(31, half)
    for name in ("LB", "EWC", "EWC-Online", "SI", "LwF", "A-GEM", "DGR", "DGR+D"):
        assert rows[name] == pytest.approx(1 / 7, abs=0.01)
    assert rows["UB"] > rows["NR"] + 0.2
    assert rows["NR"] == pytest.approx(rows["LR"], abs=0.02)  # at 37 times the bytes
    assert rows["LR"] > rows["LGR+D"] + 0.05 > rows["LGR"] + 0.05 > rows["DGR"] + 0.05


def test_skeletons():
    lines = pd.read_csv(FOLDER / "cgl-fig3.csv")
    mean = lines[lines["orders"] == "task"].groupby("method")["average_accuracy"].mean()
    assert mean.round(2)[["REPLAY", "GEM", "LwF", "BARE"]].tolist() == [0.58, 0.27, 0.21, 0.17]
    assert mean.nlargest(2).index.tolist() == ["REPLAY", "GEM"]
