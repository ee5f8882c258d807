"""``engram novelty``: what detectors find familiar, from records, without training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli.options import Device, Directories, Trust
from engram.cli.shell import emit

if TYPE_CHECKING:
    import pandas as pd

SHORT = {
    "combined_auroc": "C.AUC", "recent_auroc": "R.AUC", "previous_auroc": "P.AUC",
    "mean_auroc": "mAUC", "aupr_in": "AUPR", "detection_error": "DER", "fpr95": "FPR95",
    "inside_forgotten_auroc": "In/Forg AUC", "inside_forgotten_detection_error": "In/Forg DER",
    "forgotten_outside_auroc": "Forg/Out AUC", "forgotten_outside_detection_error": "Forg/Out DER",
}  # fmt: skip


def command(
    directories: Directories,
    detectors: Annotated[
        str | None, typer.Option(
            metavar="A,B", help="Let these detectors score finished runs first (engram list)."
        ),
    ] = None,
    stage: Annotated[
        int | None, typer.Option(help="After which task, from 1 (default: mean over all).")
    ] = None,
    false_alarms: Annotated[
        float | None, typer.Option(
            metavar="RATE", help="Instead: how often inside items are called novel, at this rate."
        ),
    ] = None,
    outside: Annotated[
        str | None, typer.Option(
            metavar="NAME|PATH", help="Data by which --detectors are tuned (default: as before)."
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Tune --detectors after the first task, against --outside."),
    ] = False,
    device: Device = "auto",
    csv: Annotated[bool, typer.Option("--csv", help="As CSV: every stage and metric.")] = False,
    trust: Trust = False,
) -> None:  # fmt: skip
    """How well detectors tell what a model knows from what is new, and from what it forgot.

    Detectors that are named here score finished runs from what was kept of them
    (engram run --keep parameters); nothing is trained.
    """
    from engram.cli.arguments import detector_specs
    from engram.errors import whole
    from engram.records import read
    from engram.records.tuning import tuned_in_words

    if detectors is not None:
        for directory in directories:
            asked = ["novelty", str(directory), "--detectors", detectors]
            asked += [*(["--outside", outside] if outside else ()), *(["--tune"] if tune else ())]
            _score(directory, detector_specs(detectors, tune), outside, device, asked, trust)
    result = read(*directories)
    if false_alarms is not None:
        _print_alarms(result.false_alarms(false_alarms), stage, csv)
        return
    table = result.novelty()
    if csv:
        emit(table.assign(stage=table["stage"] + 1).to_csv(index=False))
        return
    if stage is not None:
        table = _at_stage(table, whole("--stage", stage, 1) - 1)
    _print(table, "mean over stages" if stage is None else f"after task {stage}")
    for line in tuned_in_words(result):
        emit(line)


def _print_alarms(table: pd.DataFrame, stage: int | None, csv: bool) -> None:
    from engram.cli.metrics import show_table
    from engram.errors import whole

    if stage is not None:
        table = _at_stage(table, whole("--stage", stage, 1) - 1)
    table = table.assign(stage=table["stage"] + 1, task=table["task"] + 1)
    if csv:
        emit(table.to_csv(index=False))
        return
    names = [f"{one.detector} ({one.label}), task {one.task}" for one in table.itertuples()]
    shown = table[["frozen", "renewed"]].set_axis(names).groupby(level=0, sort=False).mean()
    when = "mean over stages" if stage is None else f"after task {stage}"
    show_table(f"false alarms, {when}", shown.rename_axis("detector"))


def _score(
    directory: Path, names: Sequence[Any], outside: str | None, device: str, asked: Sequence[str],
    trust: bool,
) -> None:  # fmt: skip
    """Measure what the detectors have not seen of a directory's runs; `asked` says so in words."""
    from engram.cli import arguments
    from engram.cli.request import requests
    from engram.cli.resume import from_recipes
    from engram.cli.train import find_modules, trusted
    from engram.recipes import plans_of
    from engram.recipes.probing import build_detectors
    from engram.recipes.remeasure import remeasure
    from engram.records import RunDirectory

    made = build_detectors({"detectors": names})  # given here, not found in the directory
    more = {} if outside is None else {"outside": outside}
    with trusted(asked, trust):
        for request in requests(directory) or from_recipes(directory):
            find_modules(request.folder)
            recipes = [{**one, "detectors": made, "probes": (), **more} for one in request.recipes]
            plans = plans_of(arguments.build(recipes), request.root)
            remeasure(plans, RunDirectory(directory), device=device, together=None)


def _at_stage(table: pd.DataFrame, stage: int) -> pd.DataFrame:
    from engram.errors import bad

    known = sorted({int(one) + 1 for one in table["stage"]})
    if stage + 1 not in known:
        raise bad(
            "--stage", f"a task after which detectors scored, {known[0]} to {known[-1]}", stage + 1
        )
    return table[table["stage"] == stage]


def _print(table: pd.DataFrame, when: str) -> None:
    from engram.cli.metrics import show_table

    over = table.groupby(["label", "detector", "metric"], sort=False)["mean"].mean()
    means = over.unstack(sort=False)
    means.index = [f"{detector} ({label})" for label, detector in means.index]
    shown = means[[name for name in SHORT if name in means]].rename(columns=SHORT)
    show_table(f"novelty, {when}", shown.rename_axis("detector"))
