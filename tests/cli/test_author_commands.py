"""Streams by the commands that are shown, and files to begin with."""

from __future__ import annotations

import shlex
import sys

import pytest

import engram as library
from engram.cli.author_commands import KINDS
from engram.streams import NEEDED
from tests.refusals import refuses

# class_incremental and task_incremental run in many tests, these nowhere else by their names
BY_NAME = (
    "domain_incremental", "permuted", "rotated", "hierarchical", "blurry", "new_instances", "joint",
)  # fmt: skip


@pytest.mark.parametrize("name", BY_NAME)
def test_a_stream_runs_by_the_command_that_is_shown(engram, tmp_path, name):
    shown = engram("list", "streams", name).output
    (line,) = (one for one in shown.splitlines() if one.startswith("  engram run"))
    for option in NEEDED.get(name, {}):
        assert f"{option} = (required)" in shown
        assert f"--set '{option}=" in line
    _, *words = shlex.split(line)
    engram(*words, "-s", "iterations=1", "-s", "hidden=[4]", "--device", "cpu", "-o", "runs",
           "--keep", "counts")  # fmt: skip
    (recipe,) = library.read(tmp_path / "runs").recipes.values()
    assert recipe["stream"]["kind"] == name
    assert set(NEEDED.get(name, {})) <= set(recipe["stream"])


def test_what_a_stream_needs_is_said_with_its_form(engram):
    said = engram("run", "--data", "digits", "--stream", "rotated", code=2).output
    assert "--set 'angles=[0, 30, 60]'" in said


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_passes_the_check(engram, tmp_path, kind):
    file = f"begun_{kind}_{tmp_path.name[-1]}.py"
    written = engram("new", kind, file, "--name", "Begun").output
    command = next(one for one in written.splitlines() if one.startswith("Check:"))
    assert "failed" not in engram(*shlex.split(command)[2:]).output
    again = engram("new", kind, file, code=2).output
    assert "a file that does not exist yet" in again
    module = file.removesuffix(".py")
    how = {
        "method": ("-m", f"{module}:Begun"),
        "detector": ("-m", "ER", "--detectors", f"{module}:Begun"),
        "policy": ("-m", "ER", "-s", f"memory.policy={module}:Begun", "-s", "memory.total=20"),
    }[kind]
    try:
        engram("run", "--data", "blobs", *how, "-s", "iterations=2", "--device", "cpu", "-o", "out")
        recipe = next(iter(library.read(tmp_path / "out").recipes.values()))
        assert f"{module}:Begun" in str(recipe)
    finally:
        sys.modules.pop(module, None)


def test_policies_of_recipes_have_options(engram):
    engram("new", "policy", "optional.py")
    policy = {"name": "optional:Optional", "temperature": 2}
    method = {"name": "ER", "memory": {"total": 20, "policy": policy}}
    try:
        recipe = library.Recipe.of({"stream": "blobs", "method": method})
        assert recipe.method.memory.policy.temperature == 2.0
        assert library.Recipe.of(recipe.plain()).method == recipe.method
        policy["temprature"] = policy.pop("temperature")
        with refuses("policy.Optional", near="temperature"):
            library.Recipe.of({"stream": "blobs", "method": method})
    finally:
        sys.modules.pop("optional", None)


def test_files_that_cannot_be_imported_are_refused(engram, tmp_path):
    assert "did you mean 'method'" in engram("new", "methods", "mine.py", code=2).output
    assert "that Python can import" in engram("new", "method", "my-method.py", code=2).output
    assert "that Python can import" in engram("new", "method", "class.py", code=2).output
    assert "a valid class name" in engram("new", "method", "a.py", "--name", "1", code=2).output
    assert "an existing folder" in engram("new", "method", "none/a.py", code=2).output
    assert not list(tmp_path.iterdir())
