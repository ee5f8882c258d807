from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import engram
from engram.data import Data, inspect, load
from tests.refusals import refuses


def table(rows=60):
    rng = np.random.default_rng(0)
    kind = np.arange(rows) % 4
    return pd.DataFrame(
        {
            "size": rng.normal(size=rows) + kind,
            "hue": np.array(["red", "blue", "green"])[rng.integers(0, 3, rows)],
            "wet": rng.random(rows) > 0.5,
            "kind": np.array(["ant", "bee", "cat", "dog"])[kind],
        }
    )


def test_columns_become_features(tmp_path):
    frame = table()
    data = Data.from_frame(frame, label="kind")
    assert data.columns == ("size", "hue=blue", "hue=green", "hue=red", "wet")
    assert data.classes == ("ant", "bee", "cat", "dog")
    assert torch.equal(data.x[:, 0], torch.tensor(frame["size"].to_numpy(), dtype=torch.float32))
    assert (data.x[:, 1:4].sum(1) == 1).all()
    assert data.x[:, 3].bool().tolist() == (frame["hue"] == "red").tolist()
    assert data.labels.tolist() == [i % 4 for i in range(60)]
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    frame.to_parquet(tmp_path / "t.parquet")
    for file in ("t.csv", "t.tsv", "t.parquet"):
        found = load(tmp_path / file, label="kind")
        assert found.fingerprint() == data.fingerprint(), file
        assert found.name == "t"


def test_parts_and_options(tmp_path):
    frame = table()
    frame["part"] = ["train", "test", "val"] * 20
    data = Data.from_frame(frame, label="kind", split="part", drop="hue", categories=["wet"])
    assert [len(data.train), len(data.test), len(data.valid)] == [20, 20, 20]
    assert data.columns == ("size", "wet=False", "wet=True")
    frame.iloc[:40].to_csv(tmp_path / "a.csv", index=False)
    frame.iloc[40:].to_csv(tmp_path / "b.csv", index=False)
    parts = load(tmp_path / "a.csv", label="kind", test="b.csv", drop=["part"])
    assert (len(parts.train), len(parts.test)) == (40, 20)


def test_missing_values_are_counted_and_mended():
    frame = table()
    frame.loc[:4, "size"] = np.nan
    frame.loc[7, "hue"] = None
    with pytest.raises(ValueError, match=r"'drop'.*'flag'.*'mean'.*size 5, hue 1 of 60 rows"):
        Data.from_frame(frame, label="kind")
    dropped = Data.from_frame(frame, label="kind", missing="drop")
    assert len(dropped) == 54
    assert dropped.notes == ("missing values (size 5, hue 1): 6 rows left out",)
    flagged = Data.from_frame(frame, label="kind", missing="flag")
    assert flagged.columns[:2] == ("size", "size missing")
    assert flagged.x[:6, :2].tolist()[:5] == [[0, 1]] * 5
    assert flagged.x[5, 1] == 0
    assert flagged.x[7, 2:6].tolist() == [0, 0, 0, 1]
    assert Data.from_frame(frame, label="kind", missing=-9).x[0, 0] == -9
    frame.loc[3, "kind"] = None
    with pytest.raises(ValueError, match=r"label: expected a label in every row.*kind 1"):
        Data.from_frame(frame, label="kind", missing="flag")
    assert len(Data.from_frame(frame, label="kind", missing="drop")) == 54


def test_means_are_those_of_the_first_task():
    frame = table()
    frame.loc[[0, 2], "size"] = np.nan  # an ant, of the first task, and a cat, of the second
    data = Data.from_frame(frame, label="kind", missing="mean")
    stream = engram.class_incremental(data)
    first = stream.tasks[0].train
    wanted = float(data.x[first, 0].nanmean())
    assert stream.data.x[[0, 2], 0].tolist() == pytest.approx([wanted] * 2)
    assert bool(stream.data.x.isfinite().all())


def test_labels_of_tables():
    frame = pd.DataFrame({"x": np.arange(12.0), "kind": [3, 7, 9] * 4})
    assert Data.from_frame(frame, label="kind").classes == ("3", "7", "9")
    several = pd.DataFrame({"x": [1.0, 2.0, 3.0], "a": [1, 0, 1], "b": [1, 1, 0], "c": [0, 0, 1]})
    data = Data.from_frame(several, label=["a", "b", "c"])
    assert data.classes == ("a", "b", "c")
    assert data.y.tolist() == [[0, 1], [1, -1], [0, 2]]
    cells = pd.DataFrame({"x": [1.0, 2.0], "tags": ["wet;cold", "cold"]})
    assert Data.from_frame(cells, label="tags", separator=";").y.tolist() == [[0, 1], [0, -1]]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {}, r"label: expected the column .*--label NAME.*columns are size, hue, wet, kind"),
        ({}, {"label": "knd"}, "unknown name 'knd', did you mean 'kind'"),
        ({}, {"label": "size"}, "whole numbers or names"),
        ({"id": range(60)}, {"label": "id"}, "60 different values in 60 rows"),
        ({"id": [f"n{i}" for i in range(60)] * 1}, {"label": "kind", "drop": "ID"}, "'id'"),
        ({"when": pd.Timestamp("2020-01-01")}, {"label": "kind"}, r"drop=\['when'\]"),
        ({}, {"label": "kind", "missing": "men"}, "missing: expected error, drop, flag, mean"),
        (
            {"age": ["?", *map(str, range(59))]},
            {"label": "kind"},
            "column 'age'.*got '[?] in row 0",
        ),
        ({"part": "nowhere"}, {"label": "kind", "split": "part"}, "train, test or valid"),
    ],
)
def test_complaints(change, options, message):
    with pytest.raises(ValueError, match=message):
        Data.from_frame(table().assign(**change), **options)


def test_text_that_is_no_category():
    frame = table(240).assign(id=[f"n{i}" for i in range(240)])
    with pytest.raises(ValueError, match=r"drop=\['id'\].*240 different values"):
        Data.from_frame(frame, label="kind")
    assert len(Data.from_frame(frame, label="kind", drop="id").columns) == 5
    assert len(Data.from_frame(frame, label="kind", categories=["id"]).columns) == 245


def test_codes_beside_words_are_categories():
    frame = table().assign(rooms=["1", "2", "3+"] * 20)
    assert Data.from_frame(frame, label="kind").columns[-3:] == ("rooms=1", "rooms=2", "rooms=3+")


def test_files_that_are_no_tables(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "bare.csv").write_text("1.0,2.0,0\n3.0,4.0,1\n")
    (tmp_path / "odd.parquet").write_text("nothing")
    with pytest.raises(ValueError, match=r"empty\.csv: expected a table"):
        load(tmp_path / "empty.csv", label="y")
    with pytest.raises(ValueError, match="header=False"):
        load(tmp_path / "bare.csv", label="2")
    assert load(tmp_path / "bare.csv", label="2", header=False).sample_shape == (2,)
    with pytest.raises(ValueError, match="expected a Parquet file"):
        load(tmp_path / "odd.parquet", label="y")
    with refuses("option of the CSV form", near="label"):
        load(tmp_path / "bare.csv", lable="2")


def test_rows_of_one_series(tmp_path):
    long = pd.DataFrame(
        {"who": ["p", "q", "p", "q", "q"], "t": [2, 1, 1, 2, 3], "v": [20.0, 1, 10, 2, 3],
         "kind": ["a", "b", "a", "b", "b"]}
    )  # fmt: skip
    data = Data.from_frame(long, label="kind", series="who", time="t", pad="front")
    shown = dict(zip(data.labels.tolist(), data.x[:, :, 0].tolist(), strict=True))
    assert shown == {0: [0, 10, 20], 1: [1, 2, 3]}
    assert sorted(data.attributes["length"].tolist()) == [2, 3]
    long.loc[0, "kind"] = "b"
    with pytest.raises(ValueError, match="one label"):
        Data.from_frame(long, label="kind", series="who")


def test_series_are_padded():
    rng = np.random.default_rng(0)
    series = [rng.normal(size=(steps, 2)) for steps in (3, 5, 2, 4, 5)]
    data = Data.from_series(series, [0, 1, 0, 1, 0], length=4)
    assert data.sample_shape == (4, 2)
    assert data.attributes["length"].tolist() == [3, 4, 2, 4, 4]
    assert data.notes == ("2 series are longer than 4 steps and were cut",)
    assert (data.x[2, 2:] == 0).all()
    with pytest.raises(ValueError, match=r"train\[1\]: expected 2 features"):
        Data.from_series([series[0], np.ones((2, 3))], [0, 1])
    with pytest.raises(ValueError, match=r"Data\.from_series"):
        Data.from_arrays(series, [0, 1, 0, 1, 0])


def test_what_inspect_finds(tmp_path):
    frame = table(66)
    frame["kind"] = ["ant"] * 61 + ["bee"] * 5
    frame["one"], frame["pay"] = 5.0, frame["size"] * 1e5
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = inspect(tmp_path / "t.csv", label="kind").findings
    assert found[0] == "classes are imbalanced: 49 training rows of 'ant', 4 of 'bee'"
    assert "never changes in training rows: one" in found[1]
    assert "extreme scales: pay" in found[2]
    assert "--set standardize=true" in found[2]
    assert len(inspect(tmp_path / "t.csv", label="kind", standardize=True).findings) == 2
