"""``engram learn``: a model, or a store of versions, learns a further task."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli.options import Device, Root, Trust

if TYPE_CHECKING:
    from engram.deploy import Learner


def learn(
    source: Annotated[
        Path, typer.Argument(metavar="MODEL|STORE", help="A model.engram, or a store of versions.")
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data", "-d", metavar="PATH|NAME",
            help="A .csv, .tsv or .parquet file, or other data (its training rows).",
        ),
    ],
    label: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Column of the classes (default: that of the first table)."
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="KEY=VALUE", help="Option of data that are no table. Repeatable."
        ),
    ] = None,
    note: Annotated[str, typer.Option(help="Words for the record of a version.")] = "",
    no_gate: Annotated[
        bool, typer.Option("--no-gate", help="Serve a version whatever the gate would say.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="File to write (default: MODEL itself)."),
    ] = None,
    root: Root = None,
    device: Device = "auto",
    trust: Trust = False,
) -> None:  # fmt: skip
    """Learn the rows of a table or of other data as a further task, and replace the model file.

    The file is replaced as a whole, or stays as it was. A store makes a version, which its gate
    accepts or refuses; the exit code is 1 if it is refused.
    """
    from engram.cli.console import FAILED, say
    from engram.deploy import Learner, ModelStore
    from engram.deploy.model_store import is_store
    from engram.errors import bad, plural

    store = is_store(source)
    if not store and not source.is_file():
        raise bad("MODEL|STORE", "a model file or a store of versions", str(source))
    if store and out is not None:
        raise bad("--out", "no value with a store, which has the version", str(out))
    for name, value in {"--note": note, "--no-gate": no_gate}.items():
        if value and not store:
            raise bad(name, "no value with a model file: it is for stores", value)
    if store:
        versions = ModelStore(source, device=device, trust=trust)
        served = versions.learner
        rows = _read_rows(data, served, label, options, root)
        with _show_steps() as progress:
            made = versions.learn(**rows, note=note, check=not no_gate, progress=progress)
        for one in made.checks:
            say(f"{'passed' if one.passed else 'refused'}  {one.rule}: {one.text}")
        if made.accepted:
            _say_new_classes(served, versions.learner)
        say(f"{source}: {made}")
        if not made.accepted:
            raise typer.Exit(FAILED)
        return
    _refuse_served(source)
    before = os.stat(source)
    learner = Learner.load(source, device=device, trust=trust)
    rows = _read_rows(data, learner, label, options, root)
    old, kept, began = learner.copy(), learner.kept_rows(), time.perf_counter()
    with _show_steps() as progress:
        learner.learn(**rows, progress=progress)
    count = learner.snapshot.facts["tasks"][-1]["rows"]
    held = "" if not learner.calibration else " (and others held out for alarms)"
    say(
        f"{data}: {plural(count, 'row')}{held} learnt as task {learner.tasks} in "
        f"{time.perf_counter() - began:.1f} s"
    )
    _say_new_classes(old, learner)
    if kept is not None:
        accuracy = [one.score(kept.x, kept.y) for one in (old, learner)]
        say(
            f"accuracy on {plural(len(kept.x), 'row')} of earlier tasks ({kept.where}): "
            f"{accuracy[0]:.3f} -> {accuracy[1]:.3f}"
        )
    target = source if out is None else out
    if out is None:
        _refuse_served(source)
        now = os.stat(source)
        if (now.st_ino, now.st_mtime_ns) != (before.st_ino, before.st_mtime_ns):
            expected = "the file that was read (learn again; nothing was written)"
            raise bad(str(source), expected, "another one, written meanwhile")
    say(f"{learner.save(target)}")


def _read_rows(
    data: str, learner: Learner, label: list[str] | None, options: list[str] | None,
    root: Path | None,
) -> dict[str, Any]:  # fmt: skip
    """Rows to learn, as arguments of `learn`: a table for the schema of a model, or data."""
    from engram.data import load
    from engram.deploy.unlabelled_inputs import TABLES, read_table
    from engram.errors import bad
    from engram.io import parse_key_value

    about = learner.snapshot.facts["inputs"]
    chosen = dict(parse_key_value(text) for text in options or ())
    named = "tokenizer" in about or bool(about["columns"])
    if named and Path(data).is_file() and Path(data).name.lower().endswith(TABLES):
        if chosen:
            expected = "no value for a table: the first one decided how it is read"
            raise bad("--set", expected, ", ".join(chosen))
        return {"x": read_table(Path(data)), "label": label or None}
    if label:
        chosen["label"] = label[0] if len(label) == 1 else label
    return {"x": load(data, root=root, **chosen)}


def _say_new_classes(before: Learner, now: Learner) -> None:
    from engram.cli.console import say

    fresh = [str(one) for one in now.classes_ if one not in before.classes_]
    say(f"new classes: {', '.join(fresh)}" if fresh else "no new classes")


def _refuse_served(path: Path) -> None:
    """Raise for a file that a service would overwrite."""
    from engram.errors import bad
    from engram.records.locks import Claims

    folder = path.resolve().with_name(path.resolve().name + ".queue")
    if folder.is_dir() and not Claims(folder).free("serve"):
        raise bad("MODEL", "a file that no service has in hand (POST /learn asks it)", str(path))


@contextmanager
def _show_steps() -> Iterator[Callable[[int, int], None] | None]:
    """Show steps of training as a bar, on a terminal."""
    from rich.progress import Progress

    from engram.cli.console import messages_console

    console = messages_console()
    if not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("learning")
        yield lambda steps, of: bar.update(task, completed=steps, total=of)
