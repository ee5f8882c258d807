"""Small trees in the official forms of the eight sets, with their quirks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from tests.data.pictures import fill, paint

COLOURS = ("red", "lime", "blue")


def flowers(root: Path) -> Path:
    """Nine images of three kinds, all counted from 1; image 9 is in no part."""
    base = root / "flowers102"
    for one in range(1, 10):
        fill(base / "jpg" / f"image_{one:05d}.jpg", COLOURS[one % 3], (30, 20))
    savemat(base / "imagelabels.mat", {"labels": np.array([[1 + one % 3 for one in range(1, 10)]])})
    parts = {"trnid": [[3, 1, 2]], "valid": [[4, 5]], "tstid": [[6, 8, 7]]}
    savemat(base / "setid.mat", {key: np.array(value, np.uint16) for key, value in parts.items()})
    return base


def scenes(root: Path) -> Path:
    """Names of files with a blank, Windows line ends, an image that no list has."""
    base = root / "indoorCVPR_09"
    lists: dict[str, list[str]] = {"Train": [], "Test": []}
    for i, scene in enumerate(("bar", "airport_inside")):
        for one in range(4):
            name = f"{scene} {one}.jpg"
            paint(base / "Images" / scene / name, 10 * i + one, (14, 12))
            if one:
                lists["Test" if one == 3 else "Train"].append(f"{scene}/{name}")
    for part, entries in lists.items():
        (base / f"{part}Images.txt").write_bytes("\r\n".join([*entries, ""]).encode())
    return base


def birds(root: Path) -> Path:
    base = root / "CUB_200_2011"
    images, labels, split, boxes = [], [], [], []
    for one in range(1, 7):
        kind = 1 + one % 2
        file = f"{kind:03d}.Bird/bird_{one}.jpg"
        picture = Image.new("RGB", (24, 20), "white")
        picture.paste("red", (4, 6, 14, 16))
        (base / "images" / file).parent.mkdir(parents=True, exist_ok=True)
        picture.save(base / "images" / file, quality=100, subsampling=0)
        images.append(f"{one} {file}")
        labels.append(f"{one} {kind}")
        split.append(f"{one} {int(one <= 4)}")
        boxes.append(f"{one} 4.0 6.0 10.0 10.0")
    kinds = ["1 001.Black_bird", "2 002.Red_bird"]
    lists = {"images": images, "image_class_labels": labels, "train_test_split": split,
             "bounding_boxes": boxes, "classes": kinds}  # fmt: skip
    for name, lines in lists.items():
        (base / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return base


def cars(root: Path) -> Path:
    base = root / "stanford_cars"
    names = np.array(["AM General Hummer SUV 2000", "Acura RL Sedan 2012"], object)
    (base / "devkit").mkdir(parents=True)
    savemat(base / "devkit" / "cars_meta.mat", {"class_names": names})
    fields = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")
    kind = [(field, object) for field in fields]
    for part, count, file in (
        ("train", 4, "cars_train_annos.mat"), ("test", 2, "cars_test_annos_withlabels.mat"),
    ):  # fmt: skip
        rows = np.empty((1, count), kind)
        for i in range(count):
            picture = Image.new("RGB", (24, 20), "white")
            picture.paste("blue", (4, 6, 14, 16))
            folder = base / f"cars_{part}"
            folder.mkdir(exist_ok=True)
            picture.save(folder / f"{i + 1:05d}.jpg", quality=100, subsampling=0)
            rows[0, i] = (5, 7, 14, 16, 1 + i % 2, f"{i + 1:05d}.jpg")
        savemat(base / "devkit" / file, {"annotations": rows})
    return base


def aircraft(root: Path) -> Path:
    """Variants of several words; every picture ends in a white banner of 20 rows."""
    base = root / "fgvc-aircraft-2013b" / "data"
    (base / "images").mkdir(parents=True)
    (base / "variants.txt").write_text("707-320\nCessna 172\n")
    for p, part in enumerate(("train", "val", "test")):
        entries = []
        for i, title in enumerate(("Cessna 172", "707-320")):
            image = f"{10 * p + i:07d}"
            picture = Image.new("RGB", (40, 52), "green")
            picture.paste("white", (0, 32, 40, 52))
            picture.save(base / "images" / f"{image}.jpg", quality=100, subsampling=0)
            entries.append(f"{image} {title}")
        (base / f"images_variant_{part}.txt").write_text("\n".join(entries) + "\n")
    return base.parent


PERSON = """<object><name>person</name><actions>{actions}</actions>
<bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox>
</object>"""


def actions(root: Path) -> Path:
    """Several persons on a picture, each with a line of its own; boxes with fractions."""
    base = root / "VOCdevkit" / "VOC2012"
    for part, year in (("train", 2010), ("val", 2011)):
        entries = []
        for one in range(3):
            stem = f"{year}_{one:06d}"
            picture = Image.new("RGB", (48, 32), "white")
            picture.paste("red", (0, 0, 16, 16))
            picture.paste("blue", (32, 16, 48, 32))
            (base / "JPEGImages").mkdir(parents=True, exist_ok=True)
            picture.save(base / "JPEGImages" / f"{stem}.jpg", quality=100, subsampling=0)
            people = [
                PERSON.format(actions="<reading>1</reading><running>0</running>",
                              box=(1.4, "1", 16, 16)),
                PERSON.format(actions="<running>1</running><other>0</other>", box=(33, 17, 48, 32)),
                PERSON.format(actions="<phoning>1</phoning><walking>1</walking>", box=(1, 1, 9, 9)),
            ]  # fmt: skip
            (base / "Annotations").mkdir(exist_ok=True)
            text = f"<annotation><folder>VOC2012</folder>{''.join(people)}</annotation>"
            (base / "Annotations" / f"{stem}.xml").write_text(text)
            entries += [f"{stem} {number}" for number in (1, 2, 3)][: 2 + (one == 0)]
        (base / "ImageSets" / "Action").mkdir(parents=True, exist_ok=True)
        (base / "ImageSets" / "Action" / f"{part}.txt").write_text("\n".join(entries) + "\n")
    return base


def letters(root: Path) -> Path:
    """Of every letter five pictures of any shape; digits and poor pictures beside them."""
    base = root / "chars74k"
    for number in range(1, 63):
        for one in range(5):
            name = f"Sample{number:03d}/img{number:03d}-{one:05d}.png"
            fill(base / "English/Img/GoodImg/Bmp" / name, (4 * number, 50 * one, 0), (9, 8 + one))
    fill(base / "English/Img/BadImg/Bmp/Sample011/img011-00099.png", "red")
    fill(base / "English/Fnt/Sample011/img011-00001.png", 0, (12, 12), "L")
    return base


def digits(root: Path) -> Path:
    """Rows, columns, channels, pictures; the digit 0 is written as 10."""
    base = root / "svhn"
    base.mkdir()
    for part, count in (("train", 20), ("test", 10)):
        y = np.arange(count) % 10
        x = np.zeros((32, 32, 3, count), np.uint8)
        x[3, 5, 1] = y
        savemat(base / f"{part}_32x32.mat", {"X": x, "y": np.where(y == 0, 10, y)[:, None]})
    return base


ALL = (flowers, scenes, birds, cars, aircraft, actions, letters, digits)
