"""Options shared by several commands, with shell completion and checks."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from engram.errors import bad, check_int
from engram.experiments.pools import POOLS, find_pool

# Options of pools.


Pool = Annotated[
    str, typer.Option(metavar="|".join(POOLS), help=f"How to run: {'; '.join(POOLS.values())}.")
]
Workers = Annotated[
    int,
    typer.Option(
        help="Number of processes, or of concurrent groups on a cluster (0: one per core)."
    ),
]


def check_pool(pool: str, workers: int, address: str | None) -> None:
    """Raise for an unknown pool, or options that it does not take."""
    find_pool(pool, "--pool")
    check_int("--workers", workers)
    if address is not None and pool != "ray":
        raise bad("--address", f"--pool ray with it ({pool!r} does not use a cluster)", address)


# Shell completion. Names are read from source files, since importing torch takes seconds.


_PACKAGE = Path(__file__).parents[1]
# the file and variable that hold the names of a kind
_LISTS = {
    "methods": ("methods/__init__.py", "__all__"),
    "models": ("models/build.py", "_MODELS"),
    "streams": ("streams/__init__.py", "SCENARIOS"),
    "data": ("data/named_sets.py", "NAMED_SETS"),
    "tools": ("records/experiment_trackers.py", "TOOLS"),
}


def list_names(kind: str) -> list[str]:
    """List all names of a kind without importing.

    Examples
    --------
    >>> list_names("models")[:2]
    ['mlp', 'lenet']
    """
    file, variable = _LISTS[kind]
    tree = ast.parse((_PACKAGE / file).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        else:
            continue
        if isinstance(target, ast.Name) and target.id == variable and node.value is not None:
            return _read_names(node.value)
    return []


def _read_names(value: ast.expr) -> list[str]:
    """Read the strings of a list, the keys of a dict, or functions that make up a dict."""
    if isinstance(value, ast.Dict):
        return [str(k.value) for k in value.keys if isinstance(k, ast.Constant)]
    if isinstance(value, ast.DictComp):
        functions = value.generators[0].iter
        return [node.id for node in ast.walk(functions) if isinstance(node, ast.Name)]
    return [str(k.value) for k in ast.walk(value) if isinstance(k, ast.Constant)]


def complete_methods(incomplete: str) -> list[str]:
    """Complete methods; of ``A+B``, the last part.

    Examples
    --------
    >>> complete_methods("LwF+EWC")
    ['LwF+EWC', 'LwF+EWCpp']
    """
    before, plus, last = incomplete.rpartition("+")
    return [before + plus + name for name in sorted(list_names("methods")) if name.startswith(last)]


def complete_models(incomplete: str) -> list[str]:
    """Complete networks."""
    return _complete("models", incomplete)


def complete_streams(incomplete: str) -> list[str]:
    """Complete scenarios."""
    return _complete("streams", incomplete)


def complete_data_sets(incomplete: str) -> list[str]:
    """Complete data sets by name; the shell completes files."""
    return _complete("data", incomplete)


def complete_tools(incomplete: str) -> list[str]:
    """Complete logging tools."""
    return _complete("tools", incomplete)


def complete_assignments(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the keys of --set: fields of training, of the scenario, the model and the methods.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> line = SimpleNamespace(params={"method": ["EWC"], "stream": "permuted"})
    >>> complete_assignments(line, "str"), complete_assignments(line, "EWC.me")
    (['strength='], ['EWC.memory='])
    """
    given = ctx.params.get("method") or ["Finetune"]
    joined = [given] if isinstance(given, str) else given
    methods = [part for name in joined for part in str(name).split("+")]
    fields = {name: _fields_of("methods", name) for name in dict.fromkeys(methods)}
    named = [key for own in fields.values() for key in own]
    memory = [f"memory.{one}" for one in _fields_of("memory", "Memory")]
    kind, model = ctx.params.get("stream"), ctx.params.get("model")
    known = [
        *_fields_of("engine", "Training"), *named, *(memory if "memory" in named else ()),
        *(f"{name}.{key}" for name, own in fields.items() for key in own),
        *_arguments_of("streams", str(kind or "class_incremental")),
        *(f"model.{key}" for key in _arguments_of("models", str(model or "mlp"))),
        "keep", "average", "label", "data_options.limit",
    ]  # fmt: skip
    return [f"{key}=" for key in sorted({*known}) if key.startswith(incomplete)]


@cache
def _definitions(folder: str) -> dict[str, ast.ClassDef | ast.FunctionDef]:
    """Read the classes and functions that the files of a package define at their top."""
    trees = [ast.parse(path.read_bytes()) for path in sorted((_PACKAGE / folder).glob("*.py"))]
    every = (one for tree in trees for one in tree.body)
    return {one.name: one for one in every if isinstance(one, ast.ClassDef | ast.FunctionDef)}


def _fields_of(folder: str, name: str) -> list[str]:
    """List the fields of a dataclass, those of its bases first."""
    found = _definitions(folder).get(name)
    if not isinstance(found, ast.ClassDef):
        return []
    bases = [ast.unparse(base).rpartition(".")[2] for base in found.bases]
    names = [field for base in bases for field in _fields_of(folder, base)]
    for one in found.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            told = f"{ast.unparse(one.annotation)} {ast.unparse(one.value) if one.value else ''}"
            if "ClassVar" not in told and "init=False" not in told:
                names.append(one.target.id)
    return list(dict.fromkeys(names))


def _arguments_of(folder: str, name: str) -> list[str]:
    """List the options of a scenario or a model, without the data or shape that it is made for."""
    known = _definitions(folder)
    found, first = known.get(name) or known.get(_model_classes().get(name, "")), 1
    if isinstance(found, ast.ClassDef):
        made = (one for one in found.body if isinstance(one, ast.FunctionDef))
        found, first = next((one for one in made if one.name == "__init__"), None), 2
    if found is None:
        return []
    return [one.arg for one in (*found.args.args[first:], *found.args.kwonlyargs)]


@cache
def _model_classes() -> dict[str, str]:
    """Read the name of the class, or of the function, that makes each model."""
    file, variable = _LISTS["models"]
    for node in ast.parse((_PACKAGE / file).read_bytes()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == variable:
            assert isinstance(node.value, ast.Dict)
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return {str(ast.literal_eval(key)): ast.unparse(made) for key, made in pairs if key}
    return {}


def _complete(kind: str, incomplete: str) -> list[str]:
    return [name for name in sorted(list_names(kind)) if name.startswith(incomplete)]


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
Exact = Annotated[
    bool,
    typer.Option("--exact", help="The same bits in every pool, each run by itself; slower."),
]
CheckpointEvery = Annotated[
    str,
    typer.Option(metavar="TIME", help="Interval of checkpoints within a task: 90s, 5m."),
]
Rerun = Annotated[
    bool,
    typer.Option("--rerun", help="Rerun what is finished; the old results no longer count."),
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
        autocompletion=complete_tools,
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
        "--set", "-s", metavar="KEY=VALUE", autocompletion=complete_assignments,
        help="Set a value: epochs=5, lr=0.01, EWC.strength=10, memory.total=200, "
        "model.hidden=[64], stream.seed=1. Repeatable.",
    ),
]  # fmt: skip
RecipeFile = Annotated[Path | None, typer.Argument(metavar="RECIPE.yaml", help="A recipe file.")]
RecipeFiles = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="RECIPE.yaml|DIR...",
        help="Recipe files; a run directory, whose runs are repeated; or files of its requests.",
    ),
]
DataSet = Annotated[
    str | None,
    typer.Option(
        "--data", "-d", metavar="NAME|PATH", autocompletion=complete_data_sets,
        help="Data set: a name, a file, a folder or module:function.",
    ),
]  # fmt: skip
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", autocompletion=complete_models,
        help="Network: a name, your own as module:Class or file.py:Class, or timm/NAME.",
    ),
]  # fmt: skip
Scenario = Annotated[
    str | None,
    typer.Option(
        metavar="KIND", autocompletion=complete_streams,
        help="Scenario (default: class_incremental, 2 classes per task).",
    ),
]  # fmt: skip
Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="COLUMN",
        help="Label column of a table (.csv, .parquet), or the file with the labels of an "
        ".npy; if repeated, one column of 0 and 1 per class. Of a run directory: the label of the "
        "runs to repeat.",
    ),
]  # fmt: skip
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method", "-m", metavar="NAME", autocompletion=complete_methods,
        help="Method: a name, your own as module:Class, or A+B. Repeat to compare.",
    ),
]  # fmt: skip
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds", "-n", metavar="N|LIST", help="Number of seeds, or a list of seeds: 4,5,6."
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", help="For quick trials: N rows of each part of the data."),
]
Seed = Annotated[int | None, typer.Option("--seed", help="One seed, where --seeds 3 means three.")]
Directories = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run directories.")]
Rename = Annotated[
    list[str] | None,
    typer.Option(
        "--rename", metavar="OLD=NEW", help="Show a label or method under another name. Repeatable."
    ),
]
DIGITS = 3
Decimals = Annotated[
    int | None, typer.Option("--decimals", metavar="N", help=f"Digits after the point ({DIGITS}).")
]


def check_decimals(value: int | None) -> int | None:
    """Check the number of digits to show, if one is given."""
    return None if value is None else check_int("--decimals", value, 0, 12)


def parse_renames(given: Sequence[str] | None) -> dict[str, str]:
    """Parse ``old=new``; the last sign of equality divides, as labels may contain one.

    Examples
    --------
    >>> parse_renames(["ER (memory 200)=ER", "EWC lr=0.1=EWC"])
    {'ER (memory 200)': 'ER', 'EWC lr=0.1': 'EWC'}
    """
    found = {}
    for text in given or ():
        old, sign, new = text.rpartition("=")
        if not (sign and old.strip() and new.strip()):
            raise bad("--rename", "OLD=NEW, two names", text)
        found[old.strip()] = new.strip()
    return found


def parse_names(option: str, text: str) -> list[str]:
    """Parse names with commas between them.

    Examples
    --------
    >>> parse_names("--columns", "average_accuracy, forgetting")
    ['average_accuracy', 'forgetting']
    """
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise bad(option, "names with commas between them", text)
    return list(dict.fromkeys(names))


Trust = Annotated[
    bool,
    typer.Option("--trust", help="Allow the directory's own code (module:Class) to run."),
]
