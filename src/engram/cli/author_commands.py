"""Commands for authors of methods, detectors and policies: check, new."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli.console import BAD_INPUT, FAILED, emit
from engram.cli.data_command import parse_options
from engram.cli.options import Label, Root, Trust
from engram.errors import EngramError, bad, check_choice, unknown

if TYPE_CHECKING:
    from torch import Tensor

    from engram.checks import CheckReport
    from engram.data import Data
    from engram.deploy.batch_invariance import BatchEffect

DATA_OPTION_HINT = "the data that --set and --label apply to"


def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:CLASS|NAME|DIR",
            help="A method, policy, probe, detector, network or scenario; or a run directory or "
            "model file.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="NAME|PATH", help="Data that a network reads."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODULE:NET|NAME",
            help="The network that a method is checked on, in place of toy networks.",
        ),
    ] = None,
    batches: Annotated[
        bool,
        typer.Option(
            "--batch-invariance",
            help="Only ask whether the scores of a row depend on the batch that it stands in.",
        ),
    ] = False,
    trust: Trust = False,
    root: Root = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="KEY=VALUE",
            help="An argument of a scenario; or with --data, an option of that data; or a field of "
            "the method: strength=10, memory.total=200. Repeatable.",
        ),
    ] = None,
    label: Label = None,
) -> None:  # fmt: skip
    """Test your own method, policy, probe, detector, network or scenario against the contract.

    With --model, a method is tested on your own network.

    Of a run directory or a model file, the kept models score rows one at a time, shuffled and with
    tasks mixed; so does any nn.Module with --batch-invariance. Rows are the test rows of --data, or
    made up. Exit code 1: a check failed; 2: the code under test raised an error.
    """
    if find_spec("engram.checks") is None:
        raise EngramError("this version has no contract suite (engram.checks)")
    kept = Path(target)
    if kept.is_dir() or kept.suffix == ".engram":
        rows = None if data is None else _choose_rows(data, root, options, label)
        report_batches(_kept_models(kept, rows, trust=trust))
        return
    if batches:
        rows = None if data is None else _choose_rows(data, root, options, label)
        report_batches({target: _check_module(target, rows)})
        return
    from engram.checks import check

    shape, tried = None, target
    if _names_scenario(target):
        _check_scenario(target, data, root, options, label)
        return
    if data is not None:
        from engram.data import load

        where = str(root) if root else None
        shape = load(data, root=where, **parse_options(options, label)).sample_shape
    elif label:
        raise bad("--data", DATA_OPTION_HINT, None)
    elif options:
        tried = make_method(target, options)
    _show_report(check(tried, sample_shape=shape, model=model))


def _show_report(report: CheckReport) -> None:
    """Print a report, and leave with its exit code."""
    emit(str(report))
    if any(one.raised for one in report.failed):  # the exit code of errors in user code
        raise typer.Exit(BAD_INPUT)
    if not report.passed:
        raise typer.Exit(FAILED)


def _names_scenario(target: str) -> bool:
    from engram.checks.check_suite import resolve_target
    from engram.checks.scenario_rules import is_scenario

    return is_scenario(resolve_target(target))


def _check_scenario(
    target: str,
    data: str | None,
    root: Path | None,
    options: list[str] | None,
    label: list[str] | None,
) -> None:
    """Check a scenario; --set gives its arguments, as in `engram run`."""
    from engram.checks import check
    from engram.data import load
    from engram.experiments.recipe_sections import scenario_options
    from engram.io import parse_key_value

    given = dict(parse_key_value(one) for one in options or ())
    found = None
    if data is not None:
        found = load(data, root=str(root) if root else None, **parse_options(None, label))
    chosen = scenario_options({"data": data or "clouds", "kind": target, **given})
    _show_report(check(target, data=found, options=chosen))


# Does a score depend on its batch?


def _choose_rows(
    name: str, root: Path | None, options: list[str] | None, label: list[str] | None
) -> tuple[Data, Tensor]:
    """Load data, and choose some of its test rows."""
    import torch

    from engram.data import load
    from engram.deploy.batch_invariance import MOST_ROWS, thin_rows

    found = load(name, root=str(root) if root else None, **parse_options(options, label))
    rows = torch.as_tensor(found.test)
    return found, thin_rows(rows, None, MOST_ROWS)[0] if len(rows) > MOST_ROWS else rows


def _kept_models(
    path: Path, given: tuple[Data, Tensor] | None, *, trust: bool
) -> dict[str, list[BatchEffect]]:
    """Check the models that a run directory has kept, or that of a file."""
    from engram.deploy import Learner
    from engram.deploy.batch_invariance import check_model_batches
    from engram.records import read

    models = {path.name: path}
    if path.is_dir():
        result, models = read(path), {}
        for run, label in zip(result.runs, result.run_labels, strict=True):
            if isinstance(kept := result.kept_model(run), Path):
                order = f", order {run.order}" if run.order else ""
                models[f"{label}, seed {run.seed}{order}"] = kept
        if not models:
            raise bad("DIR", "a run directory that has kept models (--keep scores)", str(path))
    x = groups = None
    if given is not None:
        (data, rows) = given
        x, groups = data.gather(rows), data.y[rows, 0]
    found = {}
    for name, file in models.items():
        learner = Learner.load(file, device="cpu", trust=trust)
        found[name] = check_model_batches(learner, x, groups)
    return found


def _check_module(target: str, given: tuple[Data, Tensor] | None) -> list[BatchEffect]:
    """Check a module of the user's, in eval mode."""
    import torch
    from torch import nn

    from engram.checks.check_suite import is_network, resolve_target
    from engram.checks.network_rules import SHAPES, make_candidate
    from engram.deploy.batch_invariance import check_network_batches, make_rows
    from engram.learner.feed import Feed

    found = resolve_target(target)
    if not is_network(found):
        raise bad("--batch-invariance", "a network, a run directory or a model file", target)
    shape = None if given is None else given[0].sample_shape
    try:  # as it is, with its own last layer; a name or a factory is built as runs do
        net = found if isinstance(found, nn.Module) else found()
    except TypeError:
        net = make_candidate(found, shape).net
    net.eval()
    if given is not None:
        data, chosen = given
        rows = Feed(data, device=torch.device("cpu"))(chosen)
        return check_network_batches(net, rows, data.y[chosen, 0])
    for usual in SHAPES:
        rows = make_rows({"shape": usual, "dtype": "float32"})
        try:
            with torch.no_grad():
                net(rows[:2])
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
            continue
        return check_network_batches(net, rows)
    tried = ", ".join(map(str, SHAPES))
    raise bad("--data", f"data that the network reads, since it reads none of {tried}", None)


def report_batches(found: Mapping[str, Sequence[BatchEffect]]) -> None:
    """Print batch effects by target, and leave with the exit code of a failed check."""
    failed = False
    for name, effects in found.items():
        wrong = [one for one in effects if not one.ok]
        failed |= bool(wrong)
        verdict = "scores depend on the batch" if wrong else "scores do not depend on the batch"
        emit(f"{name}: {verdict}")
        for one in effects:
            emit(f"  {'ok  ' if one.ok else 'FAIL'}  {one}")
    if failed:
        raise typer.Exit(FAILED)


def make_method(target: str, assignments: list[str]) -> Any:
    """Make a method by name, with some values set.

    Examples
    --------
    >>> make_method("BiC", ["variant=sigmoid", "BiC.memory.total=60"]).memory.total
    60
    """
    from engram.checks.check_suite import resolve_target
    from engram.experiments.build_methods import build_method
    from engram.experiments.overrides import option_after_name, set_key
    from engram.io import parse_key_value
    from engram.methods.method import Method

    kind = resolve_target(target)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise bad("--data", DATA_OPTION_HINT, None)
    content: dict[str, Any] = {"stream": {"data": "blobs"}, "method": {"name": target}}
    for assignment in assignments:
        key, value = parse_key_value(assignment)
        option = option_after_name(key, target) or key.removeprefix("method.")
        known, first = [field.name for field in fields(kind)], option.partition(".")[0]
        if first != option and first not in known:  # a section of a recipe, such as training
            raise unknown("--set", first, known)
        set_key(content, f"method.{option}", value)
    return build_method(content["method"])


# ``engram new``: write a template.


KINDS = ("method", "detector", "policy")


def new(
    kind: Annotated[str, typer.Argument(metavar="|".join(KINDS), help="What to write.")],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.py", help="File to write; existing files are not overwritten."
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(metavar="CLASS", help="Name of the class (default: from the file name)."),
    ] = None,
) -> None:
    """Write a working method, detector or policy, with comments on what to change."""
    check_choice("kind", kind, KINDS)
    path = python_file(file)
    label = class_name(path.stem) if name is None else name
    if not label.isidentifier() or keyword.iskeyword(label):
        raise bad("--name", "a valid class name, such as MyMethod", label)
    if not path.parent.is_dir():
        raise bad("FILE", "a file in an existing folder", str(path))
    text = template(kind).replace("{{ name }}", label)
    text = text.replace("{{ file }}", path.name).replace("{{ module }}", path.stem)
    try:
        with path.open("x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        raise bad("FILE", "a file that does not exist yet", str(path)) from None
    emit(f"Written: {path}\nCheck:   engram check {path}:{label}\nMore:    see the top of the file")


def template(kind: str) -> str:
    """Read a template, with placeholders for file, module and class."""
    return (files("engram.cli") / "templates" / f"{kind}.py.j2").read_text(encoding="utf-8")


def python_file(path: Path) -> Path:
    """Check that Python can import a file of this name, and return the path.

    Examples
    --------
    >>> python_file(Path("my_method")).name
    'my_method.py'
    """
    path = path if path.suffix else path.with_suffix(".py")
    good = path.suffix == ".py" and path.stem.isidentifier() and not keyword.iskeyword(path.stem)
    if not good:
        raise bad("FILE", "a name that Python can import, such as my_method.py", path.name)
    return path


def class_name(stem: str) -> str:
    """Derive a class name from a file name.

    Examples
    --------
    >>> class_name("my_method"), class_name("lwf2")
    ('MyMethod', 'Lwf2')
    """
    words = [word for word in re.split(r"_+", stem) if word]
    return "".join(word[0].upper() + word[1:] for word in words) or "Mine"
