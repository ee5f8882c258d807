"""Commands on a store of versions: store, versions, rollback."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engram.cli.console import emit
from engram.cli.options import Device, Trust

Store = Annotated[Path, typer.Argument(metavar="STORE", help="The folder of a store.")]


def store(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model.engram.")],
    folder: Annotated[Path, typer.Argument(metavar="STORE", help="A new folder.")],
    keep: Annotated[int, typer.Option(help="Versions whose models stay on disk.")] = 10,
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="KEY=VALUE",
            help="Change a rule of the gate: margin=0.02, level=0.01. Repeatable.",
        ),
    ] = None,
    no_gate: Annotated[bool, typer.Option("--no-gate", help="Accept all that is learnt.")] = False,
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Encrypt rows by the key in $ENGRAM_KEY.")
    ] = False,
    device: Device = "auto",
    trust: Trust = False,
) -> None:  # fmt: skip
    """Make a store from a model file: versions, a gate before each, and a way back."""
    from engram.cli.console import say
    from engram.deploy import Gate, Learner, ModelStore
    from engram.errors import bad
    from engram.experiments.plain_values import from_plain
    from engram.experiments.sealed_rows import KEY_VARIABLE, find_key
    from engram.io import parse_key_value

    key = find_key(None) if encrypt else None
    if encrypt and key is None:
        raise bad("--encrypt", f"a key in the environment variable {KEY_VARIABLE}", "none")
    changes = dict(parse_key_value(text) for text in rules or ())
    if no_gate and changes:
        raise bad("--set", "no value with --no-gate", ", ".join(changes))
    if not model.is_file():
        raise bad("MODEL", "a model file that a learner saved", str(model))
    gate = None if no_gate else from_plain(Gate, changes, path="--set")
    learner = Learner.load(model, device=device, trust=trust)
    made = ModelStore.create(folder, learner, gate=gate, keep=keep, key=key)
    say(f"{folder}: {made.current}")


def versions(
    folder: Store,
    diff: Annotated[
        tuple[int, int] | None, typer.Option(metavar="V W", help="Compare two versions.")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV: all columns.")] = False,
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """List the versions of a store: what was learnt, how it did, and what is served."""
    from engram.cli.wide_tables import print_table
    from engram.deploy import ModelStore
    from engram.report.table import frame_to_csv

    found = ModelStore(folder, device=device, trust=trust)
    if diff is not None:
        emit(str(found.diff(*diff)))
        return
    table = found.versions()
    if csv:
        emit(frame_to_csv(table))
        return
    shown = ["number", "parent", "state", "time", "rows", "before", "after", "note", "reason"]
    print_table(f"versions in {folder}", table[shown].set_index("number"))


def rollback(
    folder: Store,
    version: Annotated[int, typer.Argument(metavar="VERSION", help="Number of a version.")],
    device: Device = "auto",
    trust: Trust = False,
) -> None:
    """Serve an earlier version of a store again; later ones stay."""
    from engram.cli.console import say
    from engram.deploy import ModelStore

    found = ModelStore(folder, device=device, trust=trust)
    say(f"{folder}: {found.rollback(version)}")


def forget(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL|STORE", help="A model.engram, or a store of versions.")
    ],
    rows: Annotated[
        str | None,
        typer.Option("--rows", metavar="PATH", help="Rows to forget, as for predict --data."),
    ] = None,
    classes: Annotated[
        list[str] | None, typer.Option("--class", metavar="NAME", help="A class. Repeatable.")
    ] = None,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="New weights, from the rows that remain.")
    ] = False,
    note: Annotated[str, typer.Option(help="Words for the record of a store.")] = "",
    device: Device = "auto",
    trust: Trust = False,
) -> None:  # fmt: skip
    """Remove rows or classes from a model, and say what of them cannot be removed.

    Rows leave the memory and the calibration rows, in a store those of all versions. A class is not
    predicted until it is learnt again.
    """
    from engram.cli.console import say
    from engram.deploy import Learner, ModelStore
    from engram.deploy.model_store import is_store
    from engram.deploy.unlabelled_inputs import read_inputs
    from engram.errors import bad

    if rows is None and not classes:
        raise bad("--rows", "rows to forget, or --class", None)
    found = ModelStore(model, device=device, trust=trust) if is_store(model) else None
    if found is None and not model.is_file():
        raise bad("MODEL|STORE", "a model file or the folder of a store", str(model))
    learner = Learner.load(model, device=device, trust=trust) if found is None else found.learner
    x = None if rows is None else read_inputs(rows, learner.snapshot.facts["inputs"]).x
    labels = {str(one): one for one in learner.classes_.tolist()}
    wanted = [labels.get(name, name) for name in classes or ()] or None
    if found is None:
        removed = learner.forget(x, wanted, retrain=retrain)
        learner.save(model)
        say(f"{model}: {removed}")
    else:
        removed = found.forget(x, wanted, retrain=retrain, note=note)
        say(f"{model}, version {found.current.number}: {removed}")
