"""The protocol card: one page with what a paper has to say, and nothing of this machine."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest

import engram
from engram.errors import RecordError
from engram.report.protocol_card import make_card, read_card
from engram.reproduce import compare_recipes, read_recipes
from engram.reproduce.protocol_differences import read_digest
from tests.refusals import refuses

FEW = {"epochs": 1, "device": "cpu", "together": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("card") / "out"
    stream = engram.class_incremental(engram.load("blobs"), classes_per_task=5, valid=0.1)
    engram.run(stream, method="ER", seeds=2, out=out, **FEW)
    engram.run(stream, method="EWC", seeds=[4], out=out, **FEW)
    return out


def test_it_says_what_a_reader_has_to_know(trained):
    text = make_card(trained).markdown()
    result = engram.read(trained)
    for words in (
        "class\\_incremental over blobs", "2 tasks", "head view: single", "0.1 of each task",
        "200 test rows (100, 100)", "no augmentation", "weights drawn from the seed",
        "Seeds of ER: 0, 1.", "Seeds of EWC: 4.", "batches of 64", "adam", "S1",
        f"Engram {engram.__version__}",
    ):  # fmt: skip
        assert words in text, words
    for recipe in result.recipes.values():
        assert recipe["identity"]["data"] in text
    shown = f"{result.select(label='ER').metric('average_accuracy').mean():.4f}"
    assert f"| ER | S1 | 2 | {shown} ± " in text
    order = result.items(*result.runs[0][::2]).names
    assert f"tasks separated by a bar: {', '.join(order[:5])} \\| {', '.join(order[5:])}." in text


def test_every_number_is_defined(trained):
    card = make_card(trained)
    words = {row[0] for _, rows in card.sections[-1].tables for row in rows}
    shown = [title for one in card.sections[4:6] for titles, _ in one.tables for title in titles]
    shown += [t for one in card.sections[3:4] for titles, _ in one.tables for t in titles]
    assert set(shown) - {"method", "stream", "runs"} <= words
    assert all(
        row[1] != "see docs/metrics.md" for _, rows in card.sections[-1].tables for row in rows
    )


@pytest.mark.parametrize("name", ["card.md", "card.html"])
def test_it_is_read_back_and_compared(name, trained, tmp_path):
    path = make_card(trained).write(tmp_path / name)
    assert compare_recipes(read_recipes(path), read_recipes(trained)) == []
    assert read_digest(path) == read_digest(trained) != ""
    other = tmp_path / "other"
    stream = engram.class_incremental(engram.load("blobs"), classes_per_task=5, valid=0.1)
    engram.run(stream, method="ER", seeds=2, out=other, **{**FEW, "epochs": 2})
    found = compare_recipes(read_recipes(path), read_recipes(other))
    assert "training.epochs" in {one.field for one in found}
    assert read_digest(path) != read_digest(other)
    recipe = next(iter((trained / "recipes").glob("*.yaml")))
    assert compare_recipes(read_recipes(recipe), read_recipes(path)) == []
    assert read_digest(recipe) == ""


def test_a_recipe_file_is_compared_with_a_preset(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("stream: {data: digits}\nmethod: ER\n")
    assert "stream.data" in {
        one.field for one in compare_recipes(read_recipes(path), read_recipes("rwalk/1"))
    }
    path.write_text("lr: 3\n")
    with refuses("recipe"):
        read_recipes(path)


def test_no_folder_of_this_machine_is_named(tmp_path):
    rng = np.random.default_rng(0)
    place = tmp_path / "private place"
    place.mkdir()
    np.savez(place / "mine.npz", x=rng.normal(size=(80, 4)).astype("f"), y=np.arange(80) % 4)
    data = engram.load(str(place / "mine.npz"))
    stream = engram.class_incremental(data, classes_per_task=2)
    engram.run(stream, method="ER", out=tmp_path / "out", **FEW)
    card = make_card(tmp_path / "out")
    for text in (card.markdown(), card.html()):
        assert "private" not in text
        assert str(tmp_path) not in text
        assert "mine.npz" in text


def test_names_cannot_break_out_of_the_page(tmp_path):
    label = "--> <script>alert(1)</script> | \x1b[2J"
    stream = engram.class_incremental(engram.load("blobs"), classes_per_task=5)
    engram.run(stream, method="ER", label=label, out=tmp_path / "out", **FEW)
    card = make_card(tmp_path / "out")
    for text in (card.markdown(), card.html()):
        assert "\x1b" not in text
        assert "<script>alert" not in text
    assert card.markdown().count("-->") == 1
    read_card(card.write(tmp_path / "card.html"))


def test_tuning_is_told_with_its_cost_and_rows(tmp_path):
    recipe = {"stream": {"data": "blobs", "valid": 0.2}, "method": "ER", "training": {"epochs": 1}}
    engram.search(recipe, {"lr": [0.01, 0.001]}, out=tmp_path, device="cpu")
    text = make_card(tmp_path).markdown()
    told = re.search(
        r"search of .*lr.* on validation rows of the first \d tasks, 2 trials, (\d+) steps", text
    )
    assert told
    assert int(told[1]) > 0


def test_a_damaged_directory_gets_no_card(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "copy")
    min((tmp_path / "copy").glob("results-*.tar")).unlink()
    with pytest.raises(RecordError, match="engram verify"):
        make_card(tmp_path / "copy")
    with refuses("path"):
        make_card(trained).write(tmp_path / "card.pdf")
