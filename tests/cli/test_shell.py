"""Errors are one line, exit codes mean something, results and remarks go to their own streams."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from engram.cli import COMMANDS, shell
from engram.errors import BadArgument
from tests.cli.conftest import SMALL


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run"], "engram run: expected a RECIPE.yaml, or --data"),
        (["run", "-d", "digts"], "did you mean 'digits'"),
        (["run", *SMALL, "-m", "Fintune"], "did you mean 'Finetune'"),
        (["run", *SMALL, "--model", "mpl"], "did you mean 'mlp'"),
        (["run", *SMALL, "--stream", "class_incr"], "did you mean 'class_incremental'"),
        (["run", *SMALL, "-s", "epoch=3"], "did you mean 'epochs'"),
        (["run", *SMALL, "-s", "epochs"], "--set: expected key=value"),
        (["run", *SMALL, "-s", "epochs=0"], "epochs: expected a whole number of at least 1"),
        (["run", *SMALL, "--device", "gpu"], "device: unknown name 'gpu'"),
        (["run", *SMALL, "--keep", "all"], "keep: unknown name 'all'"),
        (["run", *SMALL, "--seeds", "x"], "--seeds: expected a number of seeds"),
        (["run", *SMALL, "--root", "nowhere", "-d", "mnist"], "root: expected a folder"),
        (["run", "nowhere.yaml"], "recipe: expected an existing YAML file"),
        (["metrics", "nowhere"], "expected an existing run directory"),
        (["report", "nowhere"], "expected an existing run directory"),
        (["list", "method"], "did you mean 'methods'"),
        (["data", "inspect", "digts"], "did you mean 'digits'"),
        (["data", "pack", "digits", "x.npz", "-s", "a=1"], "unknown name 'a'"),
    ],
)
def test_bad_input_is_one_line_and_code_2(engram, args, message):
    done = engram(*args, code=2)
    assert done.stdout == ""
    said = done.stderr.strip().splitlines()
    assert message in said[-1]
    assert said[-1].startswith("engram: ")
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    "args", [["--debug", "run", "-d", "digts"], ["run", "-d", "digts", "--debug"]]
)
def test_debug_shows_the_error_wherever_it_stands(engram, args):
    assert isinstance(engram(*args, code=1).exception, BadArgument)


def process(folder, *args):
    return subprocess.run(
        [sys.executable, "-m", "engram", *args], capture_output=True, text=True, cwd=folder
    )


def test_exit_codes_of_the_process(tmp_path):
    short = process(tmp_path, "run", "-d", "digts")
    assert (short.returncode, short.stdout) == (2, "")
    assert len(short.stderr.splitlines()) == 1
    long = process(tmp_path, "run", "-d", "digts", "--debug")
    assert long.returncode == 1
    assert "Traceback" in long.stderr
    assert "BadArgument: data: unknown name 'digts'" in long.stderr


def test_misspelt_commands_and_options_get_near_names(engram):
    assert "'run'" in engram("rnu", code=2).stderr
    assert "--method" in engram("run", "--metod", "ER", code=2).stderr


def test_version_and_help(engram):
    from engram import __version__

    assert engram("--version").stdout == f"engram {__version__}\n"
    shown = engram("--help").stdout
    assert "..." not in shown.split("Commands:")[1]  # no line is cut
    for command in (*(name for name, _, _ in COMMANDS), "data"):
        assert f"\n  {command} " in shown
        assert "Usage" in engram(command, "--help").stdout


def test_an_unwritable_directory_is_one_line(engram, tmp_path):
    (tmp_path / "file").write_text("")
    said = engram("run", *SMALL, "-o", "file", code=2).stderr.strip().splitlines()[-1]
    assert said.startswith("engram: ")
    assert "file" in said


def test_bugs_are_not_hidden(engram, monkeypatch):
    from engram.cli import asked

    def broken(**_):
        raise KeyError("a bug")

    monkeypatch.setattr(asked, "contents", broken)
    assert isinstance(engram("run", *SMALL, code=1).exception, KeyError)


def test_warnings_are_one_line(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with shell.short_warnings():
            warnings.warn("two\nlines", stacklevel=1)
    assert capsys.readouterr().err == "warning: two lines\n"
