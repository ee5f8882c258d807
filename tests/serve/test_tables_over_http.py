"""Rows as records, CSV and Parquet over HTTP."""

from __future__ import annotations

import importlib.util

import numpy as np
import pandas as pd
import pytest

from engram import Learner
from tests.deploy.conftest import FAST, MODEL

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("fastapi") is None, reason="the extra serve is not installed"
)


def week(kinds, hues, number=1):
    rng = np.random.default_rng(number)
    kind = np.repeat(kinds, 12)
    return pd.DataFrame(
        {"size": rng.normal(size=len(kind)), "hue": np.resize(hues, len(kind)), "kind": kind}
    )


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    from tests.serve.client import serving

    learner = Learner("ER", MODEL, **FAST).learn(
        week(["ant", "bee"], ["red", "blue"]), label="kind"
    )
    path = learner.save(tmp_path_factory.mktemp("tables") / "model.engram")
    with serving({"model": path}) as (port, service):
        yield port, service


def asked(running, path, body=None, **options):
    from tests.serve.client import ask

    return ask(running[0], path, body, **options)


def send(running, path, table, kind):
    if kind == "records":
        return asked(running, path.partition("?")[0], {"x": table.to_dict("records")})
    if kind == "csv":
        raw, media = table.to_csv(index=False).encode(), "text/csv; charset=utf-8"
    else:
        raw, media = table.to_parquet(), "application/vnd.apache.parquet"
    return asked(running, path, raw=raw, headers={"content-type": media})


@pytest.mark.filterwarnings("ignore:values that are no category")
@pytest.mark.parametrize("kind", ["records", "csv", "parquet"])
def test_tables_in_three_forms(running, kind):
    table = week(["ant"], ["red", "green"], 2).drop(columns="kind").assign(id=range(12))
    wanted = running[1].first.learner.predict(table.drop(columns="id"))
    wanted = wanted.tolist()
    status, said = send(running, "/predict?probabilities=true", table, kind)
    assert (status, said["labels"]) == (200, wanted)
    assert (said["probabilities"] is None) == (kind == "records")
    assert said["table"].pop("converted", None) == ({"size": "text"} if kind == "csv" else None)
    assert said["table"] == {"unseen": {"hue": {"green": 6}}, "ignored": ["id"]}
    status, said = send(running, "/novelty?detector=Softmax", table, kind)
    assert (status, len(said["novelty"])) == (200, 12)
    status, said = send(running, "/predict", table.drop(columns="hue").assign(heu=1), kind)
    assert status == 422
    assert "did you mean 'heu'" in said["error"]


@pytest.mark.parametrize("kind", ["records", "csv", "parquet"])
def test_tables_to_learn(running, kind, monkeypatch):
    _, service = running
    model = service.first
    monkeypatch.setattr(service, "_changed", type(service._changed)())  # nothing is learnt
    table = week(["ant", "cat"], ["red", "green"], 3)
    status, said = send(running, "/learn", table, kind)
    assert (status, said["rows"], said["table"]["unseen"]) == (202, 24, {"hue": {"green": 12}})
    x, y = model.jobs.read(said["job"])
    assert y == table["kind"].tolist()
    assert np.allclose(x[:, 0], table["size"])
    assert x[:, 1:].tolist() == [[0, 1], [0, 0]] * 12  # neither blue nor red is green
    for wrong in (table.drop(columns="kind"), table.assign(size="tall"), table.assign(kind=None)):
        assert send(running, "/learn", wrong, kind)[0] == 422


def test_what_is_no_table_is_refused(running):
    header = {"content-type": "text/csv"}
    for raw in (b"", b"\xff\xfe", b"size,hue\n1,red,3,4\n", b"size,size,hue\n1,2,red\n"):
        status, said = asked(running, "/predict", raw=raw, headers=header)
        assert (status, set(said)) == (422, {"error"})
    header = {"content-type": "application/vnd.apache.parquet"}
    assert asked(running, "/predict", raw=b"PAR1", headers=header)[0] == 422
    mixed = {"x": [{"size": 1, "hue": "red"}, [1, 2, 3]]}
    assert asked(running, "/predict", mixed)[0] == 422


def test_the_example_is_a_record(running):
    health = asked(running, "/health")[1]
    assert [one["name"] for one in health["columns"]] == ["size", "hue"]
    api = asked(running, "/openapi.json")[1]
    content = api["paths"]["/predict"]["post"]["requestBody"]["content"]
    example = content["application/json"]["examples"]["model"]["value"]
    assert example["x"] == [{"size": 1.5, "hue": "blue"}]
    assert {"text/csv", "application/vnd.apache.parquet"} < set(content)
    assert asked(running, "/predict", example)[0] == 200
