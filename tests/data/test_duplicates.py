"""Identical samples in train and test are counted and said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import engram
from engram.cli import app
from engram.data import inspect, pack, verify
from engram.data.dataset import Data
from engram.data.duplicates import _hash_inputs, find_repeats
from engram.report import diagnose
from engram.streams import Stream, Task, class_incremental
from engram.streams.stream_warnings import count_repeated_test_rows

X = torch.randn(40, 2, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(4).repeat(10)


@pytest.fixture
def twice(tmp_path):
    """A packed set whose test rows are its training rows."""
    data = Data.from_arrays(X, Y, test=(X, Y), name="twice")
    return engram.data.pack(data, tmp_path / "twice.npz")


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.uint8, torch.int16])
@pytest.mark.parametrize("width", [1, 5, 8, 300])
def test_rows_of_any_width_and_type(kind, width):
    x = (torch.arange(60 * width).reshape(60, width) * 37 % 251).to(kind)
    x[40:43] = x[[0, 7, 7]]
    x[43] = x[42] + 1
    expected = [
        row for row in range(40, 60) if any(torch.equal(x[row], x[other]) for other in range(40))
    ]
    y = torch.arange(60) % 2
    data = Data.from_arrays(x[:40], y[:40], test=(x[40:], y[40:]))
    assert find_repeats(data).tolist() == expected
    assert expected[:3] == [40, 41, 42]


def test_equal_hashes_are_compared(monkeypatch):
    data = Data.from_arrays(X, Y, test=(X[:3] + 1, Y[:3]))
    data.__dict__["_row_hashes"] = np.zeros(len(data), dtype=np.uint64)
    assert len(find_repeats(data)) == 0


def test_signs_of_pairs_are_not_lost():
    other = X.clone()
    other[:, 0, 1:] *= -1
    data = Data.from_arrays(X, Y, test=(other, Y))
    assert len(np.unique(_hash_inputs(data))) == len(data)


def test_a_memory_map_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("engram.data.duplicates._CHUNK", 100)
    array = np.memmap(tmp_path / "x", np.float32, "w+", shape=(20, 6))
    array[:] = np.arange(120).reshape(20, 6)
    array[19] = array[2]
    rows = torch.arange(20)
    data = Data(x=array, y=rows[:, None] % 2, train=rows[:15], test=rows[15:], classes=("a", "b"))
    assert find_repeats(data).tolist() == [19]


def test_rows_of_the_stream_count_and_orders_share_the_work(monkeypatch):
    data = Data.from_arrays(X, Y, test=(X, Y))
    tasks = [Task(train=torch.tensor([k, k + 4]), test=torch.tensor([40 + k, 52 + k]), new=(k,))
             for k in range(4)]  # fmt: skip
    assert count_repeated_test_rows(Stream(data=data, tasks=tuple(tasks))) == 4
    monkeypatch.setattr("engram.streams.stream_warnings.find_repeats", None)  # known by now
    assert count_repeated_test_rows(Stream(data=data, tasks=tuple(reversed(tasks)))) == 4


def test_verify_and_inspect_say_it(twice):
    words = "40 of 40 test rows have the same input as a training row"
    assert inspect(twice).repeated == words
    lines = [(one.verdict, one.found) for one in verify(twice) if "samples" in one.what]
    assert lines == [
        ("note", words),
        ("ok", "0 of 40 training rows have the same input as an earlier one"),
        ("ok", "0 of 40 test rows have the same input as an earlier one"),
    ]
    shown = CliRunner().invoke(app, ["data", "verify", str(twice)])
    assert f"note  samples both for training and test: {words}" in shown.output
    assert shown.exit_code == 0  # official sets have such rows
    shown = CliRunner().invoke(app, ["data", "inspect", str(twice)])
    assert words in shown.output


def test_verify_counts_samples_that_a_part_holds_twice(tmp_path):
    x = torch.cat([X, X[:3], X[:2]])
    data = Data.from_arrays(x, [*Y.tolist(), *Y[:3].tolist(), *Y[:2].tolist()],
                            test=(X[[0, 0]] + 9, Y[[0, 0]]))  # fmt: skip
    found = {one.what: one for one in verify(pack(data, tmp_path / "again.npz"))}
    again = found["samples twice for training"]
    assert (again.verdict, again.found.split(" have")[0]) == ("note", "5 of 45 training rows")
    assert found["samples twice for test"].found.startswith("1 of 2 test rows")
    assert found["samples both for training and test"].verdict == "ok"
    assert all(one.good for one in found.values())


def test_a_run_says_it(twice, tmp_path):
    result = engram.run(class_incremental(engram.load(twice)), method="Finetune", epochs=1, seeds=3)
    found = [one.text for one in diagnose(result.frame())]
    assert any("40 test rows have the same input as a training row" in text for text in found)
    arguments = ["--data", str(twice), "--set", "epochs=1", "--method", "Finetune", "--out"]
    shown = CliRunner().invoke(app, ["run", *arguments, str(tmp_path / "runs")])
    assert "40 of 40 test rows" in shown.output


def test_honest_data_says_nothing():
    result = engram.run(class_incremental(engram.load("blobs")), method="Finetune", epochs=1)
    assert "repeated_samples" not in set(result.frame()["metric"])


def test_a_python_call_says_it_too():
    x = torch.rand(40, 3)
    data = Data.from_arrays(x, [0, 1, 2, 3] * 10, test=(x[:8], [0, 1, 2, 3] * 2))
    with pytest.warns(UserWarning, match="8 of 8 test rows have the same input as a training row"):
        engram.run(data, device="cpu")
