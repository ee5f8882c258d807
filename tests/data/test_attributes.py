"""Facts about rows that a user gives: by name, by a function of the file, and for the split."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import engram
from engram.data import Data
from tests.refusals import refuses

Image = pytest.importorskip("PIL.Image")
WHO = ["Eve", "Ada", "Bob", "Cid", "Dan"]


@pytest.fixture
def faces(tmp_path):
    """Two classes, five subjects: the red of an image is the subject's number, its green counts."""
    for label in ("happy", "sad"):
        for k, who in enumerate(WHO):
            for n in range(3):
                file = tmp_path / "faces" / label / f"{who}_{n}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (8, 8), (k, n, 200)).save(file)
    return tmp_path / "faces"


def subject(file):
    return {"subject": file.stem.split("_")[0], "take": int(file.stem[-1])}


@pytest.mark.parametrize("values", [list, tuple, np.array, pd.Series])
def test_names_become_numbers_in_any_container(values):
    data = Data.from_arrays(np.eye(5), [0, 1, 0, 1, 0], attributes={"who": values(WHO)})
    assert data.attribute_names == {"who": tuple(sorted(WHO))}
    assert data.attributes["who"].tolist() == [sorted(WHO).index(one) for one in WHO]
    ages = Data.from_arrays(np.eye(5), [0] * 5, attributes={"age": values([7, 9, 7, 8, 8])})
    assert ages.attributes["age"].tolist() == [7, 9, 7, 8, 8]
    assert ages.attributes["age"].dtype == torch.long


def test_names_keep_an_order_that_is_given():
    names = {"age": ("young", "old")}
    given = {"attributes": {"age": ["old", "young"]}, "attribute_names": names}
    assert Data.from_arrays(np.eye(2), [0, 1], **given).attributes["age"].tolist() == [1, 0]
    given["attributes"] = {"age": ["old", "jung"]}
    with pytest.raises(ValueError, match=r"attributes\['age'\]: unknown name 'jung'.*Valid: old"):
        Data.from_arrays(np.eye(2), [0, 1], **given)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a"], "expected 2 values, one for each row, got 1"),
        ("ab", "expected 2 values, one for each row, got 'ab'"),
        (["a", None], "in all rows, got 'None in row 1'"),
        ([1, "b"], "in all rows, got \"'b' in row 1\""),
        ([0.5, 1.5], "whole numbers, in all rows, got '0.5 in row 0'"),
    ],
)
def test_what_is_no_attribute_is_refused(values, message):
    with pytest.raises(ValueError, match=f"attributes\\['who'\\]: .*{message}"):
        Data.from_arrays(np.eye(2), [0, 1], attributes={"who": values})


def test_a_field_is_a_tensor():
    rows = torch.arange(2)
    with pytest.raises(ValueError, match=r"attributes\['who'\]: expected a tensor of whole numb"):
        Data(x=torch.eye(2), y=rows[:, None], train=rows, test=rows, classes=("a", "b"),
             attributes={"who": np.array(["a", "b"])})  # fmt: skip


@pytest.mark.parametrize("lazy", [False, True])
def test_folders_are_told_apart_by_subject(faces, lazy):
    data = Data.from_folder(faces, attributes=subject, test_by="subject", lazy=lazy)
    who = data.attributes["subject"]
    red, green = (torch.as_tensor(np.asarray(data.x[:]))[:, c, 0, 0] for c in (0, 1))
    names = [WHO[int(one)] for one in red]
    assert [data.attribute_names["subject"][i] for i in who.tolist()] == names
    assert data.attributes["take"].equal(green.long())
    assert len(data.test) == 6  # one of five subjects, all rows
    assert not set(who[data.train].tolist()) & set(who[data.test].tolist())
    assert len(data.train) + len(data.test) == len(data)


def test_parts_and_files_that_are_left_out_keep_their_facts(faces, tmp_path):
    whole = tmp_path / "parts"
    for part in ("test", "train", "val"):
        for file in sorted(faces.rglob("*.png")):
            place = whole / part / file.relative_to(faces)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())
    (whole / "train" / "happy" / "Bob_1.png").write_bytes(b"no image")
    data = Data.from_folder(whole, attributes=subject, repair="drop")
    names = [data.attribute_names["subject"][i] for i in data.attributes["subject"].tolist()]
    assert names == [WHO[int(one)] for one in data.x[:, 0, 0, 0]]
    assert len(data) == 89
    with pytest.raises(ValueError, match="test_by: expected None where test rows are given"):
        Data.from_folder(whole, attributes=subject, repair="drop", test_by="subject")


def test_functions_that_tell_too_little(faces):
    with pytest.raises(ValueError, match=r"gives a dict with facts by name.*'Ada_0' for .*Ada_0"):
        Data.from_folder(faces, attributes=lambda file: file.stem)
    with pytest.raises(ValueError, match=r"with the keys \['a'\] for each file, got .*'b'.*Eve_0"):
        Data.from_folder(faces, attributes=lambda f: {"b" if "Eve" in f.stem else "a": 1})


def test_test_by_needs_an_attribute_with_values():
    x, y = np.eye(4), [0, 1, 0, 1]
    with refuses("test_by", near="subject"):
        Data.from_arrays(x, y, attributes={"subject": [0, 0, 1, 1]}, test_by="sujet")
    with pytest.raises(ValueError, match="test_by: expected None for data without attributes"):
        Data.from_arrays(x, y, test_by="subject")
    with pytest.raises(ValueError, match="two values or more, got \"'subject' with 1\""):
        Data.from_arrays(x, y, attributes={"subject": [3] * 4}, test_by="subject")
    pair = Data.from_arrays(x, y, attributes={"subject": [0, 0, 1, 1]}, test_by="subject")
    assert len(pair.test) == len(pair.train) == 2


def test_tables_take_names_too():
    frame = pd.DataFrame({"size": range(10), "kind": ["cat", "dog"] * 5})
    who = [WHO[i // 2] for i in range(10)]
    data = Data.from_frame(frame, label="kind", attributes={"who": who}, test_by="who")
    size = data.x[:, 0].long()
    assert [data.attribute_names["who"][i] for i in data.attributes["who"].tolist()] == [
        who[int(i)] for i in size
    ]
    assert len(data.test) == 2


def test_groups_of_ones_own_faces(faces):
    data = Data.from_folder(faces, attributes=subject, test_by="subject")
    stream = engram.domain_incremental(data, by="take")
    result = engram.run(stream, method="Finetune", model="mlp", iterations=2, device="cpu")
    (held,) = {data.attribute_names["subject"][i] for i in data.attributes["subject"][data.test]}
    assert list(result.group_accuracy(by="subject").columns) == [held]
