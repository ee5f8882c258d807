"""Whatever stands in a recipe or behind --set: one line and exit code 2, or a result."""

from __future__ import annotations

import os
import random
import re
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engram import methods, streams
from engram.cli import app
from engram.engine.training import Training
from engram.models.build import model_options

MANY = int(os.environ.get("ENGRAM_TRIES", "80"))  # `make faults` tries a thousand
# Small enough that a call which turns out to be right costs little.
OPTIONS = "{classes: 4, per_class: 6, features: 4}"
TINY = ("-d", "blobs", "-s", f"stream.data_options={OPTIONS}", "-s", "model.hidden=[4]")
VALUES = (
    "", "null", "true", "-1", "0", "1", "2", "0.5", "1.5", "1e-3", "nan", ".inf", "-.inf", "1e400",
    "99999999999999999999", "[", "{a: 1", "'", "[1, 2]", "[-1]", "[]", "[null]", "[[1]]",
    "[1.5, x]",
    "{}", "{a: 1}", "{1: 2}", "{a: 1, a: 2}", "{name: ER}", "abc", "é", "2001-99-99", "2020-01-01",
    "0x_", "&a [*a]", "\x00", "@", "!!python/none", "!!binary aGk=", "'1'", "mlp", "ER",
)  # fmt: skip
STREAM = ("classes_per_task", "order", "seed", "valid", "first", "data", "kind", "data_options",
          "online", "tasks", "angles", "by", "hierarchy", "mix")  # fmt: skip
REST = ("model", "method", "stream", "training", "seeds", "keep", "average", "label", "a", "a.b",
        ".", "method.", "method.a.b", "training.lr.x", "model.name", "method.name", "keep.x",
        "memory.total", "memory.policy", "stream.data_options.spread", "ER.memory",
        "stream.data_options.classes")  # fmt: skip
SECTIONS = ("stream", "method", "model", "training", "seeds", "keep", "average", "label", "other")


def assert_keeps_its_word(args):
    done = CliRunner().invoke(app, [str(arg) for arg in args])
    said = (args, done.stderr, done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), said
    assert done.exit_code in (0, 2), said
    complaints = [line for line in done.stderr.splitlines() if line.startswith("engram: ")]
    assert len(complaints) == (done.exit_code == 2), said
    return done.exit_code


def assignment(chance):
    """A method by name, and ``key=value`` with a key that mostly exists."""
    method = chance.choice(methods.__all__)
    own = [f.name for f in fields(getattr(methods, method))]
    key = chance.choice([*own, *(f.name for f in fields(Training)), *model_options("mlp"), *STREAM,
                         *REST])  # fmt: skip
    return method, f"{key}={chance.choice(VALUES)}"


def test_wrong_values_behind_set_are_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENGRAM_DATA", raising=False)
    chance, codes = random.Random(3), []
    right = ["run", *TINY, "-m", "Finetune", "--stream", "class_incremental", "-s", "epochs=1"]
    assert assert_keeps_its_word(right) == 0  # the calls reach training, too
    for _ in range(MANY):
        method, text = assignment(chance)
        kind = chance.choice([*streams.SCENARIOS]) if chance.random() < 0.2 else "class_incremental"
        codes.append(
            assert_keeps_its_word(["run", *TINY, "-m", method, "--stream", kind, "-s", text])
        )
    assert codes.count(2) > MANY / 2


def recipe_text(chance):
    content = {
        "stream": f"{{data: blobs, data_options: {OPTIONS}}}", "method": "Finetune",
        "model": "{name: mlp, hidden: [4]}", "training": "{epochs: 1}",
    }  # fmt: skip
    wrong = chance.choice(VALUES)
    match chance.randrange(5):
        case 0:
            content[chance.choice(SECTIONS)] = wrong
        case 1:
            content["stream"] = f"{{data: blobs, data_options: {wrong}}}"
        case 2:
            content["stream"] = f"{{data: blobs, data_options: {OPTIONS}, kind: {wrong}}}"
        case 3:
            content["method"] = f"{{name: ER, {chance.choice(['memory', 'mix', 'x'])}: {wrong}}}"
        case 4:
            del content[chance.choice(list(content))]
    return "\n".join(f"{key}: {value}" for key, value in content.items())


def test_wrong_recipe_files_are_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chance = random.Random(5)
    for number in range(MANY // 2):
        path = Path(f"{number}.yaml")
        path.write_bytes(recipe_text(chance).encode(chance.choice(["utf-8"] * 5 + ["utf-16"])))
        assert_keeps_its_word([chance.choice(["run", "sweep"]), path])


@pytest.mark.parametrize("content", [b"", b"\x00\x01\xff", b"\xff\xfea\x00", b"- 1", b"just text"])
def test_files_that_are_no_recipes(engram, content):
    Path("file.yaml").write_bytes(content)
    for command in ("run", "sweep"):
        said = engram(command, "file.yaml", code=2).stderr
        assert said.startswith("engram: recipe file.yaml")
        assert len(said.splitlines()) == 1


@pytest.mark.parametrize("what", ["folder", "nowhere", "file", ""])
def test_folders_in_place_of_files_and_the_other_way_round(engram, what):
    Path("folder").mkdir()
    Path("file").write_bytes(b"\x00\xff")
    for args in (
        ["run", what], ["sweep", what], ["run", "-d", what], ["resume", what], ["metrics", what],
        ["report", what], ["diff", what, "rwalk/1"], ["data", "inspect", what],
        ["data", "verify", what], ["data", "pack", what, "x.npz"], ["data", "list", "--root", what],
        ["check", what or ":"],
    ):  # fmt: skip
        if args in (["data", "list", "--root", "folder"], ["data", "list", "--root", ""]):
            continue
        assert assert_keeps_its_word(args) == 2, args


def test_a_key_given_twice_is_refused_with_its_lines(engram):
    Path("r.yaml").write_text("stream: {data: blobs}\nmethod: ER\nseeds: 3\nmethod: Finetune\n")
    said = engram("run", "r.yaml", code=2).stderr
    assert "every key once, got 'method' twice, in lines 2 and 4" in said
    assert "every key once" in engram("run", "-d", "blobs", "-s", "memory={total: 1, total: 2}",
                                      "-m", "ER", code=2).stderr  # fmt: skip


def test_a_near_name_is_offered_only_if_it_is_near(engram):
    said = engram("run", *TINY, "-s", "strenght=3", code=2).stderr
    assert "did you mean 'strength', a field of " in said
    assert "EWC" in said
    said = engram("run", *TINY, "-s", "strength=3", code=2).stderr
    assert re.search(r"strength is a field of .*\bEWC\b.*, not of Finetune", said)
    assert "did you mean" not in engram("run", *TINY, "-s", "xqzw=3", code=2).stderr


def test_true_is_not_the_number_one(engram):
    assert "epochs" in engram("run", *TINY, "-s", "epochs=true", code=2).stderr
    assert "classes_per_task" in engram("run", *TINY, "-s", "classes_per_task=true", code=2).stderr


def test_a_method_that_was_set_can_be_set_further(engram):
    done = engram("run", *TINY, "-s", "method=ER", "-s", "ER.memory.total=4", "-o", "out")
    assert "4 items" in done.stdout
    said = engram("run", *TINY, "-s", "method=3", "-s", "lr=0.1", code=2).stderr
    assert "method: expected a name, or a mapping with a name, got 3" in said
