"""Names of methods and streams: short, and told apart by what differs."""

from __future__ import annotations

import pytest

import engram
from engram.errors import BadArgument
from engram.records import Result, Rows, combine, read
from engram.records.display_names import DisplayNames
from tests.refusals import refuses


def recipe(name="ER", *, data="digits", label="", training=None, stream=None, **options):
    return {
        "stream": {"data": data, "kind": "class_incremental", **(stream or {})},
        "method": {"name": name, **options},
        "training": {"lr": 0.1, "epochs": 1, **(training or {})},
        "label": label,
    }


def result_of(**recipes) -> Result:
    rows = Rows()
    for one, content in recipes.items():
        rows.bind(recipe=one, label=content["label"], seed=0)
        rows.add("accuracy", 0.5, stage=0, task=0, head="single")
    return Result(rows.frame(), recipes=recipes)


def labels(**recipes) -> list[str]:
    return list(DisplayNames(recipes).labels.values())


def test_a_lone_method_is_called_by_its_name():
    long = "ER memory=200 items, shared by classes, random"
    assert labels(a=recipe(label=long, memory={"total": 200})) == ["ER"]
    assert labels(a=recipe("EWC", label="EWC strength=5", strength=5.0)) == ["EWC"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"memory": {"total": 200}}, {"memory": {"per_class": 20}},
         ["ER (memory 200)", "ER (memory 20 per class)"]),
        ({"training": {"lr": 0.01}}, {"training": {"lr": 0.1}}, ["ER (lr 0.01)", "ER (lr 0.1)"]),
        ({"memory": {"policy": "herding"}}, {"memory": {"policy": "random"}},
         ["ER (herding)", "ER (random)"]),
        ({"weights": "/disk/me/secret/w.pt"}, {"weights": "/data/v.pt"},
         ["ER (weights w.pt)", "ER (weights v.pt)"]),
        ({}, {}, ["ER (1)", "ER (2)"]),  # of other code, say
    ],
)  # fmt: skip
def test_what_differs_is_named(first, second, expected):
    assert labels(a=recipe(**first), b=recipe(**second)) == expected


def test_given_labels_stay_and_automatic_ones_do_not():
    assert labels(a=recipe(label="ours"), b=recipe("EWC", label="EWC, tuned")) == [
        "ours", "EWC, tuned",
    ]  # fmt: skip
    joined = recipe("Join", label="LwF + ER memory=20 items",
                    parts=[{"name": "LwF"}, {"name": "ER", "memory": {"total": 20}}])  # fmt: skip
    assert labels(a=joined) == ["LwF + ER"]


def test_a_method_has_one_name_on_every_stream():
    found = result_of(a=recipe(), b=recipe(data="/disk/me/birds.npz"), c=recipe("EWC"))
    assert found.labels == ["ER [digits]", "ER [birds.npz]", "EWC"]
    assert found.run_methods == ["ER", "ER", "EWC"]
    assert found.streams == ["digits", "birds.npz"]
    assert found.select(method="ER").runs == found.runs[:2]
    alone = found.select(stream="digits")
    assert alone.labels == ["ER", "EWC"]
    with refuses("stream", near="digits"):
        found.select(stream="digit")


def test_streams_of_one_data_set_are_told_apart():
    found = result_of(
        a=recipe(stream={"classes_per_task": 2}), b=recipe(stream={"classes_per_task": 5})
    )
    assert found.streams == ["digits, 2 per task", "digits, 5 per task"]


def test_tables_have_streams_apart():
    found = result_of(a=recipe(), b=recipe(data="birds"), c=recipe("EWC"))
    summary = found.summary()
    assert summary.index.tolist() == [("digits", "ER"), ("digits", "EWC"), ("birds", "ER")]
    assert found.curves()["stream"].tolist() == ["digits"] * 4 + ["birds"] * 2
    text = str(found)
    assert text.index("digits") < text.index("EWC") < text.index("birds")
    assert "ER [" not in text


def test_renamed_runs_keep_their_names(tmp_path):
    found = result_of(a=recipe(), b=recipe(data="birds"), c=recipe("EWC"))
    new = found.rename({"ER": "Replay", "EWC": "EWC lr=0.1"})
    assert new.labels == ["Replay [digits]", "Replay [birds]", "EWC lr=0.1"]
    assert found.labels[0] == "ER [digits]"
    assert set(new.frame()["label"]) == set(new.labels)
    one = found.rename({"ER [birds]": "Other"})
    assert one.labels == ["ER", "Other", "EWC"]
    with pytest.raises(BadArgument, match="rename: unknown name 'Er'"):
        found.rename({"Er": "x"})
    new.save(tmp_path / "saved")
    assert read(tmp_path / "saved").labels[:2] == new.labels[:2]
    assert combine([new.select(label="Replay [digits]")]).labels == ["Replay"]


def test_a_new_label_of_finished_runs_is_recorded_without_training(tmp_path):
    options = {"method": "EWC", "epochs": 1, "device": "cpu", "out": tmp_path}
    before = engram.run(engram.load("blobs"), **options)
    after = engram.run(engram.load("blobs"), **options, label="mine")
    assert (before.labels, after.labels) == (["EWC"], ["mine"])
    assert after.runs == before.runs
    assert after.frame()["value"].equals(before.frame()["value"])  # seconds as well
    more = engram.run(engram.load("blobs"), **options, seeds=2)  # no label is asked for
    assert more.labels == engram.read(tmp_path).labels == ["mine"]
