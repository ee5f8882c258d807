"""Options that several commands have, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engram.cli import complete

Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="DIR", help="Run directory (default: runs/<name>)."),
]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Where to train.")]
Compile = Annotated[
    bool,
    typer.Option("--compile", help="Fuse a step's operations; pays in long runs."),
]
Deterministic = Annotated[
    bool,
    typer.Option("--deterministic", help="The same bits every time on CUDA, too; slower."),
]
CheckpointEvery = Annotated[
    str,
    typer.Option(metavar="TIME", help="How often runs are saved inside a task: 90s, 5m."),
]
Again = Annotated[
    bool,
    typer.Option("--again", help="Run anew what is finished; the old numbers no longer count."),
]
Budget = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Stop after 90s, 10m, 1h30m; engram resume continues."),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log", metavar="tensorboard|wandb|mlflow",
        help="Tell another tool of every stage when it is done. Repeatable.",
        autocompletion=complete.tools,
    ),
]  # fmt: skip
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT|auto",
        help="Ray cluster of which this machine is a node (default: one is started here).",
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Folder in which data sets are found by name (default: ENGRAM_DATA)."
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE",
        help="Change one value: epochs=5, lr=0.01, EWC.strength=10, memory.total=200, "
        "model.hidden=[64], stream.seed=1. Repeatable.",
    ),
]  # fmt: skip
RecipeFile = Annotated[Path | None, typer.Argument(metavar="RECIPE.yaml", help="A recipe file.")]
DataSet = Annotated[
    str | None,
    typer.Option(
        "--data", "-d", metavar="NAME|PATH", autocompletion=complete.data_sets,
        help="Data set: a name, file or folder, or module:function.",
    ),
]  # fmt: skip
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", autocompletion=complete.models,
        help="Network by name, own one as module:Class (or file.py:Class), timm/NAME.",
    ),
]  # fmt: skip
Scenario = Annotated[
    str | None,
    typer.Option(
        metavar="KIND", autocompletion=complete.streams,
        help="Scenario (default: class_incremental, 2 per task).",
    ),
]  # fmt: skip
Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="COLUMN",
        help="Column of a table (.csv, .parquet) with the classes, or the file of labels of an "
        ".npy; repeated: a column of 0 and 1 for each class.",
    ),
]  # fmt: skip
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method", "-m", metavar="NAME", autocompletion=complete.methods,
        help="Method by name, own one as module:Class, or A+B. Repeatable, to compare.",
    ),
]  # fmt: skip
Seeds = Annotated[
    str | None,
    typer.Option("--seeds", "-n", metavar="N|LIST", help="Number of seeds, or a list: 4,5,6."),
]
Directories = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run directories.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Run own methods and probes (module:Class) of the directory."),
]
