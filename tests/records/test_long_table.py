from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from engram.errors import BadArgument
from engram.records import COLUMNS, Rows
from engram.records.long_table import from_frame, part_schema, to_frame
from engram.records.table_parts import read_parts, write_part
from tests.refusals import refuses


def test_rows_hold_what_was_added_in_every_column() -> None:
    rows = Rows(recipe="r", label="ER", seed=3, order="1-0")
    rows.add_array("accuracy", torch.tensor([0.25, 0.5]), stage=1, task=[0, 1], head="multi")
    rows.add_array(["a", "b"], [1.0, np.nan], seed=[7, 8])
    frame = rows.frame()
    assert list(frame.columns) == list(COLUMNS)
    assert frame["metric"].tolist() == ["accuracy", "accuracy", "a", "b"]
    assert frame["seed"].tolist() == [3, 3, 7, 8]
    assert frame["order"].tolist() == ["1-0"] * 4
    assert frame["head"].tolist() == ["multi", "multi", "", ""]
    assert frame["task"].tolist() == [0, 1, -1, -1]
    assert frame["step"].tolist() == [-1] * 4
    np.testing.assert_array_equal(frame["value"], [0.25, 0.5, 1.0, np.nan])


def test_extend_keeps_words_apart() -> None:
    first, second = Rows(recipe="a", label="x"), Rows(recipe="b", label="y")
    first.add("m", 1)
    second.add("n", 2)
    second.add_array(["m", "n"], [3, 4], recipe=["c", "b"])
    first.extend(second)
    frame = first.frame()
    assert frame["recipe"].tolist() == ["a", "b", "c", "b"]
    assert frame["metric"].tolist() == ["m", "n", "m", "n"]


def test_arrays_may_change_after_they_were_added() -> None:
    task, value = np.array([0, 1], np.int16), np.array([0.5, 0.25])
    rows = Rows(recipe="r")
    rows.add_array("m", value, task=task)
    task[:], value[:] = 9, 9
    assert rows.frame()[["task", "value"]].to_numpy().tolist() == [[0, 0.5], [1, 0.25]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stage", 40_000),
        ("task", 1.5),
        ("seed", 2**31),
        ("cls", float("nan")),
        ("task", np.array([0, 40_000])),
        ("cls", -(2**31) - 1),
        ("seed", 2**80),
    ],
)
def test_numbers_that_do_not_fit_are_refused(field: str, value: float) -> None:
    with pytest.raises(BadArgument, match=field):
        Rows().add("m", 1.0, **{field: value})


def test_unknown_fields_and_shapes_are_refused() -> None:
    with refuses("place", near="stage"):
        Rows().add("m", 1.0, stages=1)
    with pytest.raises(BadArgument, match="broadcast"):
        Rows().add_array("m", [1.0, 2.0], task=[0, 1, 2])


def test_a_part_comes_back_with_its_schema(tmp_path: Path) -> None:
    rows = Rows(recipe="r", label="é")
    rows.add_array("m", np.arange(5.0), task=np.arange(5))
    path = write_part(tmp_path / "results-1.parquet", rows)
    parts = read_parts([path])
    assert parts.table.schema.equals(part_schema())
    pd.testing.assert_frame_equal(to_frame(parts.table), rows.frame())


def test_a_frame_becomes_a_table_and_back() -> None:
    frame = pd.DataFrame({"metric": ["m", "n"], "value": [1.0, 2.0], "stage": [0, 1]})
    whole = to_frame(from_frame(frame))
    assert whole["stage"].tolist() == [0, 1]
    assert whole["task"].tolist() == [-1, -1]
    with refuses("frame", near="stage"):
        from_frame(frame.rename(columns={"stage": "stag"}))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_cut_file_is_a_problem_and_the_rest_is_read(tmp_path: Path, share: float) -> None:
    for i in range(3):
        rows = Rows(recipe="r", seed=i)
        rows.add_array("m", np.arange(50.0), task=np.arange(50))
        write_part(tmp_path / f"results-{i}.parquet", rows)
    broken = tmp_path / "results-1.parquet"
    content = broken.read_bytes()
    broken.write_bytes(content[: int(len(content) * share)])
    parts = read_parts(list(tmp_path.glob("results-*")))
    assert len(parts.table) == 100
    assert [problem.file for problem in parts.problems] == [str(broken)]
    assert set(parts.part) == {0, 1}


def test_a_foreign_parquet_file_is_a_problem(tmp_path: Path) -> None:
    pd.DataFrame({"x": [1]}).to_parquet(tmp_path / "results-1.parquet")
    parts = read_parts([tmp_path / "results-1.parquet"])
    assert len(parts.problems) == 1
    assert "other columns" in parts.problems[0].reason


def test_of_repeated_numbers_the_later_part_counts(tmp_path: Path) -> None:
    for part, value in (("1", 0.1), ("2", 0.2)):
        rows = Rows(recipe="r")
        rows.add("accuracy", value, stage=0, task=0, head="single")
        rows.add("accuracy", value, stage=int(part), task=0, head="single")
        write_part(tmp_path / f"results-{part}.parquet", rows)
    frame = to_frame(read_parts(list(tmp_path.glob("*"))).table)
    assert frame.set_index("stage")["value"].to_dict() == {0: 0.2, 1: 0.1, 2: 0.2}
    assert len(frame) == 3


def test_a_million_rows_of_ten_thousand_runs_are_read_fast(tmp_path: Path) -> None:
    runs, numbers = 10_000, 100
    for part in range(20):
        rows = Rows(recipe=f"{part:012d}", label="ER")
        seed = np.arange(runs // 20)[:, None]
        value = np.random.default_rng(part).random((runs // 20, numbers))
        rows.add_array("accuracy", value, seed=seed, stage=np.arange(numbers) // 10,
                       task=np.arange(numbers) % 10, head="single")  # fmt: skip
        write_part(tmp_path / f"results-{part:02d}.parquet", rows)
    start = time.process_time()
    parts = read_parts(list(tmp_path.glob("*")))
    spent = time.process_time() - start
    assert len(parts.table) == runs * numbers
    # Ten times the usual time: catches a reader that goes row by row, not a busy machine.
    assert spent < 10.0
