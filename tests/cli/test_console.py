"""Errors are one line, exit codes mean something, results and remarks go to their own streams."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from dataclasses import fields
from types import SimpleNamespace

import pytest

from engram import methods, streams
from engram.cli import COMMANDS, console, options
from engram.engine.training import Training
from engram.errors import BadArgument
from engram.experiments.recipe_sections import stream_options
from engram.models.build import COMMON_OPTIONS, model_options, models
from tests.cli.conftest import SMALL
from tests.forks import command_line


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
        (["run", *SMALL, "--device", "cpu:x"], "device: expected cpu, or cpu:0"),
        (["run", *SMALL, "--keep", "all"], "keep: unknown name 'all'"),
        (["run", *SMALL, "--log", "tensorbord"], "did you mean 'tensorboard'"),
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


def test_names_between_colons_are_printed_as_they_are(capsys):
    console.say("evil.py:M: the directory names code")
    assert capsys.readouterr().err == "evil.py:M: the directory names code\n"


@pytest.mark.parametrize(
    "args", [["--debug", "run", "-d", "digts"], ["run", "-d", "digts", "--debug"]]
)
def test_debug_shows_the_error_wherever_it_stands(engram, args):
    assert isinstance(engram(*args, code=1).exception, BadArgument)


def test_a_mistake_is_one_line_and_exit_code_2_of_the_process(tmp_path):
    """With --debug: `test_debug_shows_the_traceback_of_user_code`."""
    short = command_line(tmp_path, "run", "-d", "digts")
    assert (short.returncode, short.stdout) == (2, "")
    assert len(short.stderr.splitlines()) == 1


def test_misspelt_commands_and_options_get_near_names(engram):
    assert "'run'" in engram("rnu", code=2).stderr
    assert "--metod, did you mean --method?" in engram("run", "--metod", "ER", code=2).stderr


def test_options_that_are_not_near_are_not_offered(engram):
    said = engram("run", "--epochs", "3", code=2).stderr
    assert "No such option: --epochs. Fields of a recipe: --set epochs=VALUE" in said
    assert "--set lr=VALUE" in engram("run", "--learning-rate", "1", code=2).stderr
    assert "did you mean --device cuda?" in engram("run", "--gpu", code=2).stderr
    assert "did you mean" not in engram("run", "--pool", "serial", code=2).stderr
    assert "--set" not in engram("metrics", "--epochs", "3", code=2).stderr


def test_an_option_that_was_renamed_names_the_new_one(engram):
    said = engram("reproduce", "--together", "4", code=2).stderr
    assert "--together, it is called --group-size here" in said
    said = engram("sweep", "--no-together", code=2).stderr
    assert "--no-together, it is called --pool serial here" in said


def test_an_option_of_another_command_names_it(engram):
    said = engram("run", "--grid", "lr=1", code=2).stderr
    assert "No such option: --grid, it is one of engram sweep\n" in said
    assert "--set" not in engram("run", "--workers", "2", code=2).stderr
    assert "one of engram run and engram sweep" in engram("resume", "--rerun", code=2).stderr
    assert "it is one of" not in engram("report", "--grid", "lr=1", code=2).stderr


@pytest.mark.parametrize("args", [["run", "--data"], ["metrics", "x", "--stage"]])
def test_an_option_without_its_value_is_named(engram, args):
    assert f"Option '{args[-1]}' requires an argument." in engram(*args, code=2).stderr
    said = engram("metrics", "x", "--matrix=1", code=2).stderr
    assert "Option '--matrix' does not take a value." in said


def test_version_and_help(engram):
    from engram import __version__

    assert engram("--version").stdout == f"engram {__version__}\n"
    module = [sys.executable, "-m", "engram", "--version"]
    assert subprocess.check_output(module, text=True) == f"engram {__version__}\n"
    shown = engram("--help").stdout
    assert "..." not in shown.split("Commands:")[1]  # no line is cut
    for command in (*(name for name, *_ in COMMANDS), "data"):
        assert f"\n  {command} " in shown
        assert "Usage" in engram(command, "--help").stdout


def test_names_are_completed_as_they_are_without_imports():
    from engram.data.named_sets import NAMED_SETS
    from engram.records.experiment_trackers import TOOLS

    assert options.list_names("methods") == methods.__all__
    assert options.list_names("models") == list(models())
    assert options.list_names("streams") == list(streams.SCENARIOS)
    assert options.list_names("data") == list(NAMED_SETS)
    assert options.list_names("tools") == list(TOOLS)
    assert options.complete_streams("rot") == ["rotated"]


def test_a_shell_completes_values_of_options(tmp_path):
    code = """import sys
sys.argv[0] = "engram"
from engram.cli import main
try: main()
finally: assert "torch" not in sys.modules  # a key stroke must not take seconds"""
    asked = {"_ENGRAM_COMPLETE": "complete_bash", "COMP_CWORD": "3"}
    asked["COMP_WORDS"] = "engram run --method EW"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True,
        cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.split() == ["EWC", "EWCpp"], done.stderr


def test_an_unwritable_directory_is_one_line(engram, tmp_path):
    (tmp_path / "file").write_text("")
    said = engram("run", *SMALL, "-o", "file", code=2).stderr.strip().splitlines()[-1]
    assert said.endswith("/file: is a file, not a folder")
    said = engram("run", *SMALL, "-o", "file/below", code=2).stderr.strip().splitlines()[-1]
    assert "/file/below: cannot create a folder there: " in said
    assert said.endswith("/file is a file")


def test_bugs_are_not_hidden(engram, monkeypatch):
    from engram.cli import execution

    def broken(**_):
        raise KeyError("a bug")

    monkeypatch.setattr(execution, "make_contents", broken)
    assert isinstance(engram("run", *SMALL, code=1).exception, KeyError)


def test_warnings_are_one_line(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with console.shorten_warnings():
            for _ in range(2):  # told once
                warnings.warn("two\nlines", stacklevel=1)
    assert capsys.readouterr().err == "warning: two lines\n"


# -- errors in a user's own code -------------------------------------------------------------------
OWN = """from dataclasses import dataclass
from engram import Method

{top}
@dataclass(frozen=True, kw_only=True)
class Mine(Method):
    strength: float = 1.0

    def {verb}(self, *args):
        {body}
"""
FAULTS = {
    "verb": (OWN.format(top="", verb="start", body="1 / 0"), 10, "ZeroDivisionError: division"),
    "loss": (OWN.format(top="", verb="loss", body="args[0].missing"), 10, "AttributeError: "),
    "fields": (OWN.format(top="", verb="__post_init__", body="raise KeyError(3)"), 10, "KeyError"),
    "import": (OWN.format(top="import no_such_module", verb="start", body=""), 10, "expected an"),
    "module": (OWN.format(top="import no_such_module", verb="start", body="pass"), 4, "No module"),
    "file": (OWN.format(top="open('no.npy')", verb="start", body="pass"), 4, "FileNotFoundError"),
    "syntax": (OWN.format(top="def (:", verb="start", body="pass"), 4, "SyntaxError: invalid"),
    "rows": (OWN.format(top="", verb="start", body="args[0].batch(args[1].test)"), 10, "test row"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_errors_in_user_code_are_one_line_with_file_and_line(fault, engram, tmp_path):
    text, line, message = FAULTS[fault]
    name = f"mine_with_a_fault_in_{fault}"  # each its own: modules stay imported
    (tmp_path / f"{name}.py").write_text(text)
    done = engram("run", *SMALL, "-m", f"{name}:Mine", code=2)
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith(f"engram: {name}.py:{line}: ")
    assert message in said
    assert "Traceback" not in done.output


def test_debug_shows_the_traceback_of_user_code(tmp_path):
    (tmp_path / "mine_to_debug.py").write_text(FAULTS["verb"][0])
    done = command_line(tmp_path, "run", *SMALL, "-m", "mine_to_debug:Mine", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_a_helper_of_user_code_is_user_code(engram, tmp_path):
    (tmp_path / "helper_of_mine.py").write_text("def halve(x):\n    raise RuntimeError('odd')\n")
    (tmp_path / "mine_with_helper.py").write_text(
        OWN.format(top="import helper_of_mine", verb="finish", body="helper_of_mine.halve(1)")
    )
    done = engram("run", *SMALL, "-m", "mine_with_helper:Mine", code=2)
    assert done.stderr.strip().endswith("engram: helper_of_mine.py:2: RuntimeError: odd")


@pytest.mark.parametrize("name", methods.__all__)
def test_the_keys_of_set_are_completed_as_the_code_has_them(name):
    line = SimpleNamespace(params={"method": [name]})
    found = {key.removesuffix("=") for key in options.complete_assignments(line, "")}
    own = {field.name for field in fields(getattr(methods, name)) if field.init}
    if name != "Join":
        assert {f"{name}.{key}" for key in own} <= found
        assert {key for key in found if key.startswith(f"{name}.")} == {f"{name}.{k}" for k in own}
    assert {field.name for field in fields(Training)} <= found


def test_keys_of_the_scenario_and_the_model_are_completed():
    for kind in streams.SCENARIOS:
        line = SimpleNamespace(params={"stream": kind})
        found = options.complete_assignments(line, "")
        asked = {f"{key}=" for key in stream_options(kind)}
        assert asked <= {*found}, kind
    for model in models():
        line = SimpleNamespace(params={"model": model, "method": ["ER"]})
        found = options.complete_assignments(line, "model.")
        known = {f"model.{key}=" for key in model_options(model) if key not in COMMON_OPTIONS}
        assert {*found} == known, model
    assert "memory.total=" in options.complete_assignments(line, "mem")
