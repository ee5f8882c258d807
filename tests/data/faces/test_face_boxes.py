"""Face boxes of iCV-MEFED and BAUM-1: from a table, from a detector, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import engram
from tests.refusals import refuses

FACE = 200  # brightness of the square that stands for a face; all else is dark


def paint_face(path, left, top):
    """A dark picture of 40 x 30 with a bright face of 12 x 12."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((30, 40, 3), 10, np.uint8)
    pixels[top : top + 12, left : left + 12] = FACE
    Image.fromarray(pixels).save(path)


def place(number):
    return 2 + number % 20, 3 + number % 11


def find_face(pixels):
    rows, columns = np.nonzero(pixels[..., 0] > 100)
    return (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) if len(rows) else None


def mefed(root):
    """The official layout: lists, and a folder of each subject."""
    for part, subjects in (("training", (1, 2)), ("testing", (3,))):
        lines = []
        for subject in subjects:
            for k, label in enumerate(("N_N", "1_5", "5_1")):
                number = 10 * subject + k
                paint_face(root / part / f"{subject:03d}" / f"{number:04d}.png", *place(number))
                lines.append(f"{subject:03d}/{number:04d}.png {label}")
        (root / f"{part}.txt").write_text("\n".join(lines))
    return [10 * subject + k for subject in (1, 2, 3) for k in range(3)]


def baum(root):
    """The official layout: a sheet, and a folder of frames for each clip."""
    lines = ["Clip Name,Emotion,Emotion code"]
    numbers = []
    for subject in range(1, 5):
        for code, state in ((1, "Anger"), (8, "Happiness")):
            clip = f"S{subject:03d}_{code:03d}"
            lines.append(f"{clip},{state},{code}")
            for frame in range(2):
                number = 20 * subject + code + frame
                file = root / "frames" / f"s{subject:03d}" / clip / f"frame{frame}.png"
                paint_face(file, *place(number))
                numbers.append((f"{clip}/frame{frame}.png", number))
    (root / "Annotations_BAUM1s.csv").write_text("\n".join(lines))
    return numbers


def is_face(data):
    """Whether a picture shows the face alone, [N]; its edge is smoothed."""
    return (np.asarray(data.x)[..., 1:-1, 1:-1] == FACE).all((1, 2, 3))


def write_boxes(file, boxes):
    lines = [f"{name},{left},{top},{left + 12},{top + 12}" for name, (left, top) in boxes]
    file.write_text("\n".join(["image,left,top,right,bottom", *lines]))
    return file


def test_boxes_of_a_table_cut_the_faces_of_icv_mefed(tmp_path):
    numbers = mefed(tmp_path / "icv_mefed")
    plain = engram.load("icv_mefed", root=tmp_path, size=8)
    assert not is_face(plain).any()
    file = write_boxes(tmp_path / "boxes.csv", [(f"{n:04d}.PNG", place(n)) for n in numbers[1:]])
    file.write_text(f"{file.read_text()}\n{numbers[0]:04d}.png,,,,\n999/9999.png,1,1,2,2\n")
    data = engram.load("icv_mefed", root=tmp_path, size=8, boxes=str(file))
    assert is_face(data).tolist() == [False] + [True] * 8  # no face was found in the first one
    assert data.x[0].equal(plain.x[0])
    assert "faces: 8 cut by a face box, 1 cut at the centre" in data.notes
    assert "1 line of boxes.csv without an image" in data.notes


def test_boxes_of_a_table_cut_the_frames_of_baum1(tmp_path):
    numbers = baum(tmp_path / "BAUM-1")
    boxes = [(name, place(number)) for name, number in numbers]
    file = write_boxes(tmp_path / "boxes.csv", boxes)
    assert is_face(engram.load("baum1", root=tmp_path, size=8, boxes=file)).all()
    write_boxes(file, [("frame0.png", (1, 1))])
    with pytest.raises(ValueError, match=r"line 2: expected a path that is long enough"):
        engram.load("baum1", root=tmp_path, size=8, boxes=file)


def test_a_detector_finds_the_faces_once(tmp_path):
    baum(tmp_path / "BAUM-1")
    seen = []

    def detect(pixels):
        seen.append(pixels.shape)
        return find_face(pixels)

    packed = tmp_path / "packed.npz"
    data = engram.load("baum1", root=tmp_path, size=8, boxes=detect, packed=packed)
    assert is_face(data).all()
    assert seen == [(30, 40, 3)] * 16
    again = engram.load("baum1", root=tmp_path, size=8, boxes=detect, packed=packed)
    assert len(seen) == 16
    assert again.fingerprint() == data.fingerprint()
    with refuses("packed"):  # those were cut by a detector
        engram.load("baum1", root=tmp_path, size=8, packed=packed)
    nothing = engram.load("baum1", root=tmp_path, size=8, boxes=lambda pixels: None)
    assert nothing.x.equal(engram.load("baum1", root=tmp_path, size=8).x)


def test_a_detector_by_name(tmp_path, monkeypatch):
    mefed(tmp_path / "icv_mefed")
    (tmp_path / "bright.py").write_text(
        "def find(pixels):\n"
        "    rows, columns = (pixels[..., 0] > 100).nonzero()\n"
        "    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1\n"
    )
    monkeypatch.chdir(tmp_path)
    assert is_face(engram.load("icv_mefed", root=tmp_path, size=8, boxes="bright.py:find")).all()


@pytest.mark.parametrize("line", ["0010.png,1,1,1,5", "0010.png,1,2,3", "0010.png,a,2,3,4",
                                  "../x.png,1,2,3,4", "0011.png,1,1,2,2"])  # fmt: skip
def test_lines_that_cannot_be_meant_are_refused(tmp_path, line):
    mefed(tmp_path / "icv_mefed")
    file = tmp_path / "boxes.csv"
    file.write_text(f"image,left,top,right,bottom\n0011.png,1,1,9,9\n{line}\n")
    with pytest.raises(ValueError, match=r"boxes.csv, line 3: expected"):
        engram.load("icv_mefed", root=tmp_path, size=8, boxes=file)


def fail(pixels):
    raise OSError("no weights")


@pytest.mark.parametrize("boxes", [3, "absent.csv", "math:pi", lambda pixels: (1, 2), fail])
def test_detectors_that_cannot_be_meant_are_refused(tmp_path, boxes):
    mefed(tmp_path / "icv_mefed")
    with refuses("boxes"):
        engram.load("icv_mefed", root=tmp_path, size=8, boxes=boxes, broken="drop")


def test_boxes_of_another_set_are_refused(tmp_path):
    mefed(tmp_path / "icv_mefed")
    file = write_boxes(tmp_path / "boxes.csv", [("elsewhere.png", (1, 1))])
    with pytest.raises(ValueError, match=r"boxes.csv: expected boxes of images such as 001/0010"):
        engram.load("icv_mefed", root=tmp_path, size=8, boxes=file)
