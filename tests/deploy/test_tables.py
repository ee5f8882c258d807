"""Weekly tables: the first one decides how every later one is encoded."""

from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

import engram
from engram.data.tables.table_rows import read_csv_texts, read_parquet_table
from engram.data.tables.table_schema import TableWarning
from engram.deploy.table_inputs import encode_inputs
from tests.refusals import refuses

FEW = {"model": {"name": "mlp", "hidden": [8]}, "epochs": 1, "device": "cpu"}
NAMES = ("size", "hue=blue", "hue=red", "wet", "when")


def week(kinds, hues, number=1, rows=20):
    rng = np.random.default_rng(number)
    kind = np.repeat(kinds, rows)
    return pd.DataFrame({
        "size": rng.normal(size=len(kind)).round(3), "hue": np.resize(hues, len(kind)),
        "wet": rng.random(len(kind)) > 0.5, "week": number,
        "when": pd.date_range("2026-03-02", periods=len(kind), freq="6h"), "kind": kind,
    })  # fmt: skip


def start(**options):
    learner = engram.Learner("ER", **FEW)
    first = week(["ant", "bee"], ["red", "blue"])
    return learner.learn(first, label="kind", dates="when", attributes="week", **options)


@pytest.fixture(scope="module")
def learner():
    return start()


def encode(learner, table):
    return encode_inputs(table, learner.snapshot.facts["inputs"]).x


def test_a_new_category_is_learnt_predicted_and_said():
    """In data, in a table with its labels, and in one beside them; always as none of the known."""
    second, new = week(["cat"], ["red", "green"], 2), []
    for given in (
        (engram.Data.from_frame(second, label="kind", dates={"when": "weeks"}, attributes="week"),),
        (second,), (second.drop(columns="kind"), second["kind"]),
        (second, second["kind"]),
    ):  # fmt: skip
        learner = start()
        with pytest.warns(TableWarning, match=r"'green' in 'hue' \(10 of 20 rows\)"):
            learner.learn(*given)
        assert learner.classes_.tolist() == ["ant", "bee", "cat"]
        assert learner.schema.columns == NAMES
        new.append(learner._portable.tensors["net.head.weight"])
    assert all(torch.equal(new[1], other) for other in new[2:])
    assert torch.allclose(new[1], new[0], atol=1e-5)  # weeks, in float32, come back as days
    with pytest.warns(TableWarning, match="'green' in 'hue'"):
        assert learner.score(second) == learner.score(second, second["kind"])


@pytest.mark.filterwarnings("ignore::engram.data.tables.table_schema.TableWarning")
def test_one_table_in_every_form(learner, tmp_path):
    table = week(["ant"], ["red", "green", "blue"], 3)
    x = encode(learner, table)
    assert x[:, 1:3].tolist()[:3] == [[0, 1], [0, 0], [1, 0]]
    assert x[:3, 4].tolist() == [0, 0.25, 0.5]  # days
    told = table.assign(when=table["when"].astype(str))
    told.to_csv(tmp_path / "t.csv", index=False, sep=";", encoding="utf-8-sig")
    table.to_parquet(tmp_path / "t.parquet")
    odd = table.assign(
        size=[Decimal(str(one)) for one in table["size"]], hue=table["hue"].astype("category"),
        wet=table["wet"].map({True: "true", False: "FALSE"}), week="?",
        when=table["when"].dt.tz_localize("UTC").dt.tz_convert("Asia/Kolkata"),
    )[["when", "week", "wet", "hue", "size"]]  # fmt: skip
    forms = (
        table.to_dict("records"), table.to_dict("list"), odd, odd.astype(object),
        table.astype({"size": str, "wet": int}), told.convert_dtypes(dtype_backend="pyarrow"),
        read_csv_texts(tmp_path / "t.csv"), read_csv_texts((tmp_path / "t.csv").read_bytes()),
        read_parquet_table(tmp_path / "t.parquet"),
    )  # fmt: skip
    for form in forms:
        assert np.array_equal(encode(learner, form), x)
    assert (learner.predict(forms[0]) == learner.predict(table)).all()


def test_what_is_said_of_a_table(learner, recwarn):
    table = week(["ant"], ["red", "pink", "Red"], 3).astype({"size": str}).assign(id=range(20))
    said = learner.schema.check(table)
    assert said.unseen == {"hue": {"pink": 7, "Red": 6}}
    assert said.ignored == ("id",)  # not `week` and `kind`, which the first table had
    assert said.converted == {"size": "text"}
    assert said.absent == {"hue": ("blue",)}
    assert json.loads(json.dumps(said.facts())) == said.facts()
    assert not recwarn.list
    learner.predict(table)
    assert [str(one.message) for one in recwarn.list] == list(said.warnings)
    assert recwarn.list[0].filename == __file__


@pytest.mark.parametrize(
    ("change", "argument", "near"),
    [
        (lambda t: t.rename(columns={"hue": "heu"}), "columns of x", "heu"),
        (lambda t: pd.concat([t, t[["hue"]]], axis=1), "columns of x", None),
        (lambda t: t.assign(size="tall"), "column 'size' of x", None),
        (lambda t: t.assign(size=np.inf), "column 'size' of x", None),
        (lambda t: t.assign(size=[10**400] * 20), "column 'size' of x", None),
        (lambda t: t.assign(size=t["when"]), "column 'size' of x", None),
        (lambda t: t.assign(size=None), "column 'size' of x", None),
        (lambda t: t.assign(hue=None), "column 'hue' of x", None),
        (lambda t: t.assign(hue=[["red"]] * 20), "column 'hue' of x", None),
        (lambda t: t.assign(wet=2), "column 'wet' of x", None),
        (lambda t: t.assign(when=3), "column 'when' of x", None),
        (lambda t: t.assign(when="today"), "column 'when' of x", None),
        (lambda t: [*t.to_dict("records"), 3], "x[20]", None),
        (lambda t: {"size": 1.5}, "x['size']", None),
    ],
)
def test_what_cannot_be_encoded_is_refused_by_name(learner, change, argument, near):
    with refuses(argument, near):
        learner.predict(change(week(["ant"], ["red", "blue"], 3)))


def test_missing_values_are_treated_as_the_first_table_said():
    gaps = week(["ant"], ["red", "blue"], 3).astype({"wet": object})
    gaps.loc[:1, ["size", "hue", "wet"]] = None
    mean = start(missing="mean", standardize=True)
    first = week(["ant", "bee"], ["red", "blue"])
    assert mean.snapshot.facts["inputs"]["fill"][0] == pytest.approx(first["size"].mean(), abs=1e-6)
    filled = gaps.assign(size=gaps["size"].fillna(first["size"].mean()),
                         wet=gaps["wet"].fillna(first["wet"].mean()))  # fmt: skip
    assert np.isnan(encode(mean, gaps)[:2, [0, 3]]).all()
    assert mean.schema.check(gaps).missing == {"size": 2, "hue": 2, "wet": 2}
    with refuses("column 'wet' of x"):  # a mean is no boolean
        mean.predict(filled)
    part = encode(mean, gaps.assign(wet=True))
    assert encode(start(missing=-7.0), gaps)[0].tolist() == [-7, 0, 0, -7, 0]
    assert part[0, 1:4].tolist() == [0, 0, 1]
    run = engram.run(
        engram.Data.from_frame(first, label="kind", missing="mean", dates="when"), method="ER",
        model=FEW["model"], epochs=1, device="cpu",
    ).model()  # fmt: skip
    assert run.snapshot.facts["inputs"]["fill"]
    assert len(run.predict(gaps)) == 20
    dropped = start(missing="drop")
    with refuses("column 'size' of x"):
        dropped.predict(gaps)
    dropped.learn(gaps)
    assert dropped.snapshot.facts["tasks"][1]["rows"] == 18
    flagged = engram.Learner("ER", **FEW).learn(gaps, label="kind", missing="flag", dates="when",
                                                attributes="week")  # fmt: skip
    names = ("size", "size missing", "hue=blue", "hue=red", "hue missing", "wet=False", "wet=True",
             "wet missing", "when")  # fmt: skip
    assert flagged.schema.columns == names
    assert encode(flagged, gaps)[0].tolist() == [0, 1, 0, 0, 1, 0, 0, 1, 0]
    with refuses("column 'when' of x"):
        flagged.predict(gaps.assign(when=None))


def test_files_have_the_schema(learner, tmp_path):
    table = week(["ant"], ["red", "blue"], 3)
    path = learner.save(tmp_path / "m.engram")
    again = engram.Learner.load(path, device="cpu")
    assert again.schema == learner.schema
    assert (again.predict_proba(table) == learner.predict_proba(table)).all()
    again._portable.facts["inputs"]["schema"]["features"].pop()
    with pytest.raises(engram.RecordError, match="a schema of the columns"):
        engram.Learner.load(again.save(tmp_path / "bad.engram"))


@pytest.mark.filterwarnings("ignore:columns that the first table did not have")
def test_models_without_a_schema_encode_by_the_names_of_their_features():
    first = week(["ant", "bee"], ["red", "blue"]).drop(columns=["when", "week"])
    learner = engram.Learner("ER", **FEW).learn(first, label="kind")
    table = week(["ant"], ["blue", "red"], 2)
    wanted = encode(learner, table)
    del learner.snapshot.facts["inputs"]["schema"]
    assert learner.schema is None
    assert np.array_equal(encode(learner, table), wanted)
    learner.learn(table, label="kind")
    learner.learn(engram.Data.from_frame(table.drop(columns=["when", "week"]), label="kind"))
    assert learner.tasks == 3


def test_labels_keep_their_kind():
    learner = start()
    learner.learn(week(["7"], ["red", "blue"], 2))  # a name, although a number
    seven = week(["7"], ["red", "blue"], 3).assign(kind=7)
    learner.learn(engram.Data.from_frame(seven, label="kind", dates="when", attributes="week"))
    assert learner.classes_.tolist() == ["7", "ant", "bee"]
    table = week(["ant"], ["red"], 2)
    for options, argument in (
        ({"label": "knd"}, "label"), ({"missing": "mean"}, "missing"),
        ({"y": table["kind"], "label": "kind"}, "label"),
    ):  # fmt: skip
        with refuses(argument):
            learner.learn(table, **options)
    with refuses("label"):
        learner.learn(table.assign(kind=None))
    with refuses("label"):
        engram.Learner("ER", **FEW).learn(np.ones((4, 2)), [0, 1, 0, 1], label="kind")
    with refuses("learn"):
        engram.Learner("ER", **FEW).learn(table, label="kind", mising="mean")


def test_label_sets_and_validation_rows_of_tables():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=12), "tags": ["wet;cold", "cold", "warm"] * 4})
    learner = engram.Learner("ER", patience=1, **FEW)
    learner.learn(table, label="tags", separator=";", valid=table[:3])
    learner.learn(table.to_dict("records"), valid=table[3:5])
    assert learner.classes_.tolist() == ["cold", "warm", "wet"]
    assert 0 <= learner.score(table) <= 1


def test_a_table_of_bytes_is_an_array_of_bytes():
    x = pd.DataFrame(np.arange(16, dtype=np.uint8).reshape(8, 2), columns=["p", "q"])
    learner = engram.Learner("Finetune", **FEW).learn(x, [0, 1] * 4)
    assert learner.snapshot.facts["inputs"]["dtype"] == "uint8"
    assert learner.schema is None
    with refuses("x"):
        learner.predict([{"p": 1, "q": 2}])
