"""What the pages say of measured numbers, held against the numbers that are committed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "reproduce"
HALVES = ["without", "with"]


def last_step(table: int, half: str, settings: str = "", rows: int = 13) -> dict[str, float]:
    """Accuracy after the last step, by row of a ConFER table on drawn faces."""
    lines = pd.read_csv(FOLDER / f"confer-{table}-embedded.csv", keep_default_na=False)
    lines = lines[lines["settings"] == settings]
    where = lines["cell"].str.extract(r"^faces \S+ O1 (?P<half>\S+) (?P<row>\S+)$")
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


def test_skeletons():
    lines = pd.read_csv(FOLDER / "cgl-fig3.csv")
    mean = lines[lines["orders"] == "task"].groupby("method")["average_accuracy"].mean()
    assert mean.round(2)[["REPLAY", "GEM", "LwF", "BARE"]].tolist() == [0.70, 0.34, 0.19, 0.18]
    assert mean.nlargest(2).index.tolist() == ["REPLAY", "GEM"]
