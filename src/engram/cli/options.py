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
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Device.")]
Compile = Annotated[
    bool,
    typer.Option("--compile", help="Compile training steps; pays off in long runs."),
]
Deterministic = Annotated[
    bool,
    typer.Option("--deterministic", help="Bit-identical results on CUDA too; slower."),
]
CheckpointEvery = Annotated[
    str,
    typer.Option(metavar="TIME", help="Interval of checkpoints within a task: 90s, 5m."),
]
Again = Annotated[
    bool,
    typer.Option("--again", help="Rerun what is finished; the old results no longer count."),
]
Budget = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Stop after 90s, 10m, 1h30m; continue with engram resume."),
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log", metavar="tensorboard|wandb|mlflow",
        help="Send the results of every finished stage to another tool. Repeatable.",
        autocompletion=complete.tools,
    ),
]  # fmt: skip
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT|auto",
        help="Ray cluster that this machine belongs to (default: start one here).",
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder with data sets by name (default: ENGRAM_DATA)."),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="KEY=VALUE",
        help="Set a value: epochs=5, lr=0.01, EWC.strength=10, memory.total=200, "
        "model.hidden=[64], stream.seed=1. Repeatable.",
    ),
]  # fmt: skip
RecipeFile = Annotated[Path | None, typer.Argument(metavar="RECIPE.yaml", help="A recipe file.")]
DataSet = Annotated[
    str | None,
    typer.Option(
        "--data", "-d", metavar="NAME|PATH", autocompletion=complete.data_sets,
        help="Data set: a name, a file, a folder or module:function.",
    ),
]  # fmt: skip
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", autocompletion=complete.models,
        help="Network: a name, your own as module:Class or file.py:Class, or timm/NAME.",
    ),
]  # fmt: skip
Scenario = Annotated[
    str | None,
    typer.Option(
        metavar="KIND", autocompletion=complete.streams,
        help="Scenario (default: class_incremental, 2 classes per task).",
    ),
]  # fmt: skip
Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="COLUMN",
        help="Label column of a table (.csv, .parquet), or the file with the labels of an "
        ".npy; if repeated, one column of 0 and 1 per class.",
    ),
]  # fmt: skip
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method", "-m", metavar="NAME", autocompletion=complete.methods,
        help="Method: a name, your own as module:Class, or A+B. Repeat to compare.",
    ),
]  # fmt: skip
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds", "-n", metavar="N|LIST", help="Number of seeds, or a list of seeds: 4,5,6."
    ),
]
Directories = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run directories.")]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Allow the directory's own code (module:Class) to run."),
]
