"""``engram data``: list, add, pack, verify, inspect, cache."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from engram.cli.console import FAILED, emit, say
from engram.cli.options import Label, Root
from engram.errors import BadArgument, plural

data_app = typer.Typer(
    help="List, add, pack, verify and inspect data sets; kept features.", no_args_is_help=True
)

Source = Annotated[str, typer.Argument(metavar="NAME|PATH", help="A name, file or folder.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE", help="Option of the data set: resize=[32,32]."
    ),
]


@data_app.command("list", epilog="Example: engram data list --root sets")
def list_(
    root: Root = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Include data sets whose files are missing.")
    ] = False,
) -> None:
    """List the data sets that can be loaded."""
    from engram.cli.console import results_console
    from engram.cli.result_display import make_plain_table
    from engram.data import datasets

    table = make_plain_table("name", "what", "where")
    for column in table.columns:
        column.justify = "left"
    for one in datasets(root):
        if one.available or everything:
            table.add_row(one.name, one.summary, one.place or "not found")
    results_console().print(table)
    if root is None:
        say("Other data sets are looked up in --root DIR or ENGRAM_DATA.", style="dim")


@data_app.command("add", epilog="Example: engram data add mine.npz mine --root sets")
def add(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="File or folder to read.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name to store it under.")],
    root: Root = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace a data set of that name.")
    ] = False,
    options: Options = None,
    label: Label = None,
) -> None:
    """Read a data set once and store it by name in the data root."""
    from engram import data

    say(f"wrote {data.add(path, name, root, replace=replace, **parse_options(options, label))}")
    where = "" if root is None else f" --root {shlex.quote(str(root))}"
    say(f"Use it with:  engram run --data {name}{where}")


@data_app.command("pack", epilog="Example: engram data pack photos photos.npz --set lazy=true")
def pack(
    source: Source,
    out: Annotated[Path, typer.Argument(metavar="FILE.npz", help="File to write.")],
    root: Root = None,
    options: Options = None,
    label: Label = None,
) -> None:
    """Write a data set to a single packed file."""
    from engram import data

    say(f"wrote {data.pack(source, out, root=root, **parse_options(options, label))}")


@data_app.command("verify", epilog="Example: engram data verify mine --root sets")
def verify(source: Source, root: Root = None, options: Options = None, label: Label = None) -> None:
    """Verify checksums, and look for problems."""
    from engram import data
    from engram.data.catalogue import search_root

    search_root(root)  # raises if the folder does not exist
    checks = data.verify(source, root=root, **parse_options(options, label))
    if checks[0].kind:  # nothing to verify is a user error, not a finding
        raise BadArgument(checks[0].found)
    for one in checks:
        emit(f"{one.verdict:4}  {one.what}: {one.found}")
    if not all(one.good for one in checks):
        raise typer.Exit(FAILED)


@data_app.command("inspect", epilog="Example: engram data inspect animals.csv --label kind")
def inspect(
    source: Source, root: Root = None, options: Options = None, label: Label = None
) -> None:
    """Show what a data set contains, and what to fix.

    Shape, rows per class and split, duplicates, imbalance, constant columns, scales, notes.
    """
    from engram import data
    from engram.cli.console import results_console
    from engram.cli.result_display import make_plain_table

    found = data.inspect(source, root=root, **parse_options(options, label))
    count = plural(len(found.counts), "class")
    emit(f"{found.name}: rows of {found.shape}, {found.dtype}, {count}")
    emit(f"fingerprint {found.fingerprint}")
    for key, values in found.attributes.items():
        emit(f"attribute {key}: {values} values")
    emit(found.repeated)
    for line in found.findings:
        emit(line)
    for note in found.notes:
        emit(f"note: {note}")
    table = make_plain_table("class", "train", "valid", "test")
    for name, counts in found.counts.items():
        table.add_row(name, *(str(counts[part]) for part in ("train", "valid", "test")))
    results_console().print(table)


@data_app.command("cache", epilog="Example: engram data cache --clear")
def cache(
    folder: Annotated[
        Path | None,
        typer.Option("--cache", metavar="DIR", help="The cache (default: ENGRAM_CACHE)."),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all features.")] = False,
) -> None:
    """List or clear the features of frozen networks that are kept on disk."""
    from datetime import datetime

    from engram.cli.console import results_console
    from engram.cli.result_display import make_plain_table
    from engram.data.feature_cache import CachePlace, FeatureCache, describe_cache

    place = CachePlace.find(None if folder is None else str(folder))
    if place is None:
        say("No features are kept: ENGRAM_CACHE is off.")
        return
    kept = FeatureCache(place.folder)
    if clear:
        say(f"removed {plural(kept.clear(), 'table')} from {place.folder}")
        return
    table = make_plain_table("data", "network", "features", "MB", "seconds", "last used")
    for one in kept.entries():
        shape = " x ".join(map(str, one.facts.get("shape", ())))
        network = str(one.facts.get("network", "damaged")).partition(";")[0]
        used = datetime.fromtimestamp(one.used).isoformat(" ", "minutes")
        table.add_row(
            str(one.facts.get("data", "")), network, f"{shape} {one.facts.get('dtype', '')}",
            f"{one.nbytes / 1e6:.1f}", str(one.facts.get("seconds", "")), used,
        )  # fmt: skip
    if table.row_count:
        results_console().print(table)
    emit(describe_cache(kept))


def parse_options(assignments: list[str] | None, label: list[str] | None = None) -> dict[str, Any]:
    """Parse options to keyword arguments.

    Examples
    --------
    >>> parse_options(["resize=[32, 32]", "verify=false"])
    {'resize': [32, 32], 'verify': False}
    """
    from engram.io import parse_key_value

    options = dict(parse_key_value(one.removeprefix("data_options.")) for one in assignments or ())
    if label:
        options["label"] = label[0] if len(label) == 1 else label
    return options
