"""iCV-MEFED on generated trees: lists, folders and names with labels."""

from __future__ import annotations

import pytest

import engram
from tests.data.pictures import paint

CODES = "1234567N"
PARTS = {"training": range(3), "validation": range(3, 4), "testing": range(4, 6)}


def entries():
    for part, subjects in PARTS.items():
        for subject in subjects:
            for k, dominant in enumerate(CODES):
                yield part, f"{subject:03d}", CODES[(k + subject) % 8], dominant


def write(root, form):
    lines = {part: ["image label"] for part in PARTS}
    for i, (part, subject, other, dominant) in enumerate(entries()):
        label = f"{other}_{dominant}"
        inside = {"lists": f"{subject}/{i}.JPG", "folders": f"{subject}/{label}/{i}.JPG",
                  "names": f"{subject}/{i}_{label}.jpg"}[form]  # fmt: skip
        paint(root / "icv_mefed" / part / inside, i, (30, 20))
        lines[part].append(f"{subject}\\{i}.JPG, {label.lower()}")
    if form == "lists":
        for part, text in lines.items():
            (root / "icv_mefed" / f"{part}.txt").write_text("\r\n".join(text) + "\r\n")
    return root


@pytest.mark.parametrize("form", ["lists", "folders", "names"])
def test_the_dominant_expression_is_the_class(tmp_path, form):
    data = engram.load("icv_mefed", root=write(tmp_path, form), size=16)
    assert data.classes == engram.data.EXPRESSIONS
    counts = [len(getattr(data, part)) for part in ("train", "valid", "test")]
    assert counts == [24, 8, 16]
    assert data.labels.bincount().tolist() == [6] * 8
    subject = data.attributes["subject"]
    names = data.attribute_names["subject"]
    assert {names[i] for i in subject[data.test].tolist()} == {"004", "005"}
    same = (data.attributes["complementary"] == data.attributes["complementary"][0]).sum()
    assert int(same) == 6
    assert not [note for note in data.notes if "subjects" in note]


def test_the_label_has_the_complementary_expression_first(tmp_path):
    write(tmp_path, "lists")
    data = engram.load("icv_mefed", root=tmp_path, size=16)
    names = data.attribute_names["complementary"]
    first = list(entries())[: len(data.train)]
    words = dict(zip(CODES, ("Anger", "Contempt", "Disgust", "Fearful", "Happiness", "Sadness",
                             "Surprised", "Neutral"), strict=True))  # fmt: skip
    for row, (_, _, other, dominant) in enumerate(first):
        assert data.classes[int(data.labels[row])] == words[dominant]
        assert names[int(data.attributes["complementary"][row])] == words[other]


def test_a_subject_of_both_parts_is_counted(tmp_path):
    write(tmp_path, "folders")
    paint(tmp_path / "icv_mefed" / "testing" / "000" / "1_1" / "x.png", 999)
    notes = engram.load("icv_mefed", root=tmp_path, size=16).notes
    told = "1 of 3 test subjects are training subjects as well"
    assert told in notes
    checks = engram.data.verify("icv_mefed", root=tmp_path, size=16)
    assert [one.found for one in checks if "subjects both" in one.what] == [told]


def test_unknown_labels_are_refused(tmp_path):
    write(tmp_path, "lists")
    file = tmp_path / "icv_mefed" / "training.txt"
    file.write_text("000/0.JPG 1_1\n000/1.JPG 1_9\n")
    with pytest.raises(ValueError, match=r"training.txt, line 2: expected an image and a label"):
        engram.load("icv_mefed", root=tmp_path)


def test_pictures_without_a_label_are_refused(tmp_path):
    write(tmp_path, "folders")
    paint(tmp_path / "icv_mefed" / "testing" / "005" / "strange.png", 1)
    with pytest.raises(ValueError, match=r"strange.png: expected a label such as"):
        engram.load("icv_mefed", root=tmp_path)


def test_lists_and_labels_that_cannot_be_meant_are_refused(tmp_path):
    write(tmp_path, "lists")
    file = tmp_path / "icv_mefed" / "training.txt"
    text = file.read_bytes()
    for more, told in ((b"000\\0.JPG N_N", "0.JPG: expected one label"),
                       (b"/etc/1.jpg N_N", "line 26: expected a file inside the data set"),
                       (b"\xe4.jpg N_N", "training.txt: expected text in UTF-8")):  # fmt: skip
        file.write_bytes(text + more)
        with pytest.raises(ValueError, match=told):
            engram.load("icv_mefed", root=tmp_path, size=16)
    paint(tmp_path / "icv_mefed" / "training" / "000" / "my face.jpg", 77)
    file.write_bytes(b"000/my face.jpg, 1_7\n" + b"\n".join(text.splitlines()[1:]))
    assert len(engram.load("icv_mefed", root=tmp_path, size=16).train) == 25


def test_a_label_in_the_name_that_is_not_the_folders_is_refused(tmp_path):
    write(tmp_path, "folders")
    paint(tmp_path / "icv_mefed" / "training" / "000" / "1_2" / "3_4.jpg", 78)
    with pytest.raises(ValueError, match=r"3_4.jpg: expected one label, got '3_4 and 1_2'"):
        engram.load("icv_mefed", root=tmp_path, size=16)


@pytest.mark.parametrize("form", ["lists", "folders"])
def test_parts_in_other_capitals(tmp_path, form):
    plain = engram.load("icv_mefed", root=write(tmp_path, form), size=16)
    for part in (tmp_path / "icv_mefed").iterdir():
        part.rename(part.with_name(part.name.capitalize()))
    assert engram.load("icv_mefed", root=tmp_path, size=16).fingerprint() == plain.fingerprint()
