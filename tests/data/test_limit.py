"""Fewer rows for quick trials."""

from __future__ import annotations

import pytest
import torch

import engram
from engram.data.dataset import Data
from tests.refusals import refuses


def test_limited_data_has_rows_of_every_class_in_every_part():
    data = engram.load("digits", limit=50)
    whole = engram.load("digits")
    for part in ("train", "test"):
        rows = getattr(data, part)
        assert data.labels[rows].flatten().bincount().tolist() == [5] * 10
        assert torch.isin(rows, getattr(whole, part)).all()
    assert data.fingerprint() != whole.fingerprint()
    assert data.limit(1000).train.equal(data.train)
    assert engram.load("digits", limit=10**6).fingerprint() == whole.fingerprint()
    with refuses("limit"):
        engram.load("digits", limit=0)


def test_a_small_class_gives_what_it_has():
    data = Data.from_arrays([[float(i)] for i in range(100)], [0] * 90 + [1] * 10)
    small = data.limit(40)
    assert small.labels[small.train].flatten().bincount().tolist() == [32, 8]


def test_a_run_takes_fewer_rows_of_data_but_not_of_a_stream():
    limited = engram.run(engram.load("blobs"), limit=100)
    named = engram.run(engram.load("blobs", limit=100))
    assert limited.runs == named.runs
    with refuses("limit"):
        engram.run(engram.class_incremental(engram.load("blobs")), limit=100)


@pytest.mark.parametrize("form", ["frame", "file", "stream"])
def test_a_column_of_a_table_is_an_attribute(form, tmp_path):
    import pandas as pd

    frame = pd.DataFrame(
        {"week": [f"w{i // 40}" for i in range(120)], "a": range(120),
         "kind": [i % 3 for i in range(120)]}
    )  # fmt: skip
    frame.to_csv(tmp_path / "mine.csv", index=False)
    path = str(tmp_path / "mine.csv")
    if form == "frame":
        data = Data.from_frame(frame, label="kind", attributes="week")
    elif form == "file":
        data = engram.load(path, label="kind", attributes=["week"])
    else:
        section = {"data": path, "data_options": {"label": "kind"}, "kind": "domain_incremental",
                   "by": "week"}  # fmt: skip
        recipe = engram.Recipe.of({"stream": section, "method": "Finetune"})
        assert engram.Recipe.of(recipe.plain()).id == recipe.id
        data = recipe.data()
    assert data.columns == ("a",)
    assert data.attribute_names["week"] == ("w0", "w1", "w2")
    stream = engram.domain_incremental(data, by="week")
    assert [int(data.x[task.train].min()) // 40 for task in stream] == [0, 1, 2]


def test_an_attribute_of_a_table_is_whole_numbers_or_names():
    import pandas as pd

    frame = pd.DataFrame({"when": [0.5, 1.0] * 10, "a": range(20), "kind": [0, 1] * 10})
    with refuses("column 'when' of table"):
        Data.from_frame(frame, label="kind", attributes="when")
    with refuses("attributes of table"):
        Data.from_frame(frame, label="kind", attributes="then")
