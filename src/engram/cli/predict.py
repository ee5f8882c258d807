"""``engram predict``: ask a trained model about new inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli.options import Device, Root, Trust
from engram.spelling import plural

if TYPE_CHECKING:
    from engram.deploy import Learner
    from engram.deploy.inputs import Asked


def command(
    source: Annotated[
        Path, typer.Argument(metavar="DIR|MODEL", help="A run directory, or a model.engram.")
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data", "-d", metavar="PATH|NAME",
            help="A folder of images, an image, .npy, .npz, .csv or .parquet file, or a data "
            "set (its test rows).",
        ),
    ],
    label: Annotated[
        str | None, typer.Option(metavar="NAME", help="Method, if there are several.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed (default: the first).")] = None,
    order: Annotated[str | None, typer.Option(help="Order, in a study of orders.")] = None,
    task: Annotated[
        int | None, typer.Option(help="Task of the inputs, from 1, if tasks have separate heads.")
    ] = None,
    novelty: Annotated[
        bool, typer.Option("--novelty", help="Add a novelty score for each input.")
    ] = False,
    detector: Annotated[
        str | None, typer.Option(metavar="NAME", help="Novelty detector (default: the first).")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--proba", help="Add the probability of every class.")
    ] = False,
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Column to leave out. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE",
            help="CSV file to write (default: print).",
        ),
    ] = None,
    root: Root = None,
    device: Device = "auto",
    trust: Trust = False,
) -> None:  # fmt: skip
    """Predict labels of new inputs with the model of a run or a model file.

    Prints CSV: one line per input with its name, the predicted label and its probability.
    Unreadable images are reported and left out; the exit code is then 1.
    """
    from engram.cli.shell import FAILED, emit, say
    from engram.deploy.inputs import read_inputs
    from engram.disk import appearing, make_folders

    learner = open_model(source, label, seed, order, device, trust)
    about = learner.published.facts["inputs"]
    asked = read_inputs(data, about, drop=drop or (), root=str(root) if root else None)
    where = _task(learner, task)
    table = _table(learner, asked, where, probabilities)
    if novelty or detector is not None:
        table["novelty"] = learner.novelty(asked.x, detector=detector, task=where)
    text = table.to_csv(index=False)
    if out is None:
        emit(text)
    else:
        make_folders(out.parent)
        with appearing(out) as temporary:
            temporary.write_text(text, encoding="utf-8")
        say(f"{plural(len(table), 'prediction')} in {out}")
    if asked.truth is not None and learner.published.facts["labels"] == "single":
        _say_accuracy(learner, table, where)
    for problem in asked.lost:
        say(f"could not read: {problem}", style="yellow")
    if asked.lost:
        some = "1 image has" if len(asked.lost) == 1 else f"{len(asked.lost):,} images have"
        say(f"{some} no prediction, {len(table):,} do")
        raise typer.Exit(FAILED)


def _task(learner: Learner, task: int | None) -> int | None:
    """The task from 0; on the screen tasks are counted from 1."""
    from engram.errors import bad, whole

    last = learner.tasks
    if task is None:
        if learner.published.facts["head"] == "multi":
            expected = f"the task of the inputs, 1 to {last}: each task has its own head"
            raise bad("--task", expected, None)
        return None
    if whole("--task", task, 1) > last:
        raise bad("--task", f"a task from 1 to {last}", task)
    return task - 1


def _say_accuracy(learner: Learner, table: Any, task: int | None) -> None:
    """How many rows are right, of those that can be: a head knows the classes of its task."""
    from engram.cli.shell import say

    known, facts = table, learner.published.facts
    if task is not None:
        own = [facts["classes"][column] for column in facts["tasks"][task]["visible"]]
        known = table[table["truth"].isin(own)]
    if len(known):
        right = (known["label"].astype(str) == known["truth"]).mean()
        of = "" if task is None else f" of the classes of task {task + 1}"
        rows = plural(len(known), "labelled row")
        say(f"accuracy {right:.4f} on {rows}{of}")


def open_model(
    source: Path, label: str | None, seed: int | None, order: str | None, device: str, trust: bool
) -> Learner:
    """The learner of a model file, or of one run of a directory."""
    from engram.deploy import Learner
    from engram.errors import bad
    from engram.records import read

    if source.is_dir():
        return read(source).model(label, seed, order=order, device=device, trust=trust)
    if not source.exists():
        raise bad("DIR|MODEL", "a run directory or a model file", str(source))
    return Learner.load(source, device=device, trust=trust)


def _table(learner: Learner, asked: Asked, task: int | None, every: bool) -> Any:
    import pandas as pd

    found, share = learner.predict(asked.x, task=task), learner.predict_proba(asked.x, task=task)
    if learner.published.facts["labels"] == "set":
        found = ["|".join(map(str, one)) for one in found]
    table = pd.DataFrame({"input": asked.names, "label": found, "probability": share.max(1)})
    if asked.truth is not None:
        table.insert(2, "truth", asked.truth)
    if every:
        for place, name in enumerate(learner.classes_.tolist()):
            table[f"p({name})"] = share[:, place]
    return table
