"""``engram report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engram.cli.options import Directories
from engram.cli.shell import say
from engram.errors import bad
from engram.spelling import plural

PAGES = (".html", ".htm")


def command(
    directories: Directories,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="HTML file to write.")
    ] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    tables: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write every table as CSV, LaTeX and Markdown."),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write figures as SVG, PNG, PDF (extra: images)."),
    ] = None,
) -> None:  # fmt: skip
    """Write a self-contained HTML report on run directories; it needs no network."""
    from engram.report import build, from_directories, write_images, write_tables

    if out.suffix.lower() not in PAGES:
        expected = "a name that ends in .html (--images DIR writes figures, --tables DIR tables)"
        raise bad("--out", expected, str(out))
    inputs = from_directories(*directories)
    say(f"wrote {build(inputs, out, title=title)}")
    if tables is not None:
        say(f"wrote {len(write_tables(inputs, tables))} tables to {tables}")
    if images is not None:
        say(f"wrote {plural(len(write_images(inputs, images)), 'image')} to {images}")
