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
            metavar="A,B", help="First score finished runs with these (engram list detectors)."
        ),
    ] = None,
    stage: Annotated[
        int | None, typer.Option(help="After which task, from 1 (default: mean over all).")
    ] = None,
    false_alarms: Annotated[
        float | None, typer.Option(
            metavar="RATE", help="Instead show how many familiar items are flagged at this rate."
        ),
    ] = None,
    outside: Annotated[
        str | None, typer.Option(
            metavar="NAME|PATH", help="Outside set for tuning --detectors (default: as before)."
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Tune --detectors after the first task, against --outside."),
    ] = False,
    assignments: Annotated[
        list[str] | None, typer.Option(
            "--set", "-s", metavar="KEY=VALUE",
            help="An option of --detectors, KNN.k=5, or of the outside set, outside.limit=2000. "
            "Repeatable.",
        ),
    ] = None,
    device: Device = "auto",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV: every stage and metric.")] = False,
    trust: Trust = False,
) -> None:  # fmt: skip
    """Show how well detectors separate familiar inputs from new and from forgotten ones.

    With --detectors, finished runs are scored from what was kept of them (engram run --keep
    parameters); nothing is trained.
    """
    from engram.records import read
    from engram.records.tuning import tuned_in_words

    more = _More(detectors, outside, tune, assignments or ())
    for directory in directories if detectors is not None else ():
        _score(directory, more, device, trust)
    result = read(*directories)
    if false_alarms is not None:
        _print_alarms(result.false_alarms(false_alarms), stage, csv)
        return
    table = _at_stage(result.novelty(), stage)
    if csv:
        emit(table.assign(stage=table["stage"] + 1).to_csv(index=False))
        return
    _print(table, "mean over stages" if stage is None else f"after task {stage}")
    for line in tuned_in_words(result):
        emit(line)


def _print_alarms(table: pd.DataFrame, stage: int | None, csv: bool) -> None:
    from engram.cli.wide_table import show_table

    table = _at_stage(table, stage)
    table = table.assign(stage=table["stage"] + 1, task=table["task"] + 1)
    if csv:
        emit(table.to_csv(index=False))
        return
    names = [f"{one.detector} ({one.label}), task {one.task}" for one in table.itertuples()]
    shown = table[["frozen", "renewed"]].set_axis(names).groupby(level=0, sort=False).mean()
    when = "mean over stages" if stage is None else f"after task {stage}"
    show_table(f"false alarms, {when}", shown.rename_axis("detector"))


class _More:
    """Detectors that are to score finished runs, with their options and the outside set."""

    def __init__(
        self, detectors: str | None, outside: str | None, tune: bool, assignments: Sequence[str]
    ) -> None:
        from engram.cli.arguments import detector_specs
        from engram.errors import bad
        from engram.recipes.assign_parts import put_detector
        from engram.recipes.probing import build_detectors
        from engram.yaml_text import key_value

        for option, given in (("--tune", tune), ("--outside", outside), ("--set", assignments)):
            if given and detectors is None:
                raise bad(option, "--detectors with it", "none")
        self.outside = outside
        self.words = [*(["--detectors", detectors] if detectors else ())]
        self.words += [*(["--outside", outside] if outside else ()), *(["--tune"] if tune else ())]
        self.words += [word for one in assignments for word in ("--set", one)]
        content = {"detectors": detector_specs(detectors, tune)}
        pairs = [key_value(one) for one in assignments]
        self.of_outside = [one for one in pairs if one[0].startswith("outside.")]
        for key, value in pairs:
            if not key.startswith("outside.") and not put_detector(content, key, value):
                expected = "an option of the --detectors, as in KNN.k=5, or of the outside set"
                raise bad("--set", expected, key)
        self.detectors = build_detectors(content)  # given here, not found in the directory

    def of(self, recipe: dict[str, Any]) -> dict[str, Any]:
        """A plain recipe, measured by these alone."""
        import copy

        from engram.recipes.assign import put

        found = {**recipe, "detectors": self.detectors, "probes": ()}
        found["outside"] = (
            copy.deepcopy(recipe.get("outside")) if not self.outside else self.outside
        )
        for key, value in self.of_outside:
            put(found, key, value)
        return found


def _score(directory: Path, more: _More, device: str, trust: bool) -> None:
    """Measure what the detectors have not seen of a directory's runs."""
    from engram.cli import arguments
    from engram.cli.request import requests
    from engram.cli.resume import from_recipes
    from engram.cli.train import find_modules, trusted
    from engram.recipes import plans_of
    from engram.recipes.remeasure import remeasure
    from engram.records import RunDirectory

    with trusted(["novelty", str(directory), *more.words], trust):
        for request in requests(directory) or from_recipes(directory):
            find_modules(request.folder)
            plans = plans_of(
                arguments.build([more.of(one) for one in request.recipes]), request.root
            )
            remeasure(plans, RunDirectory(directory), device=device, together=None)


def _at_stage(table: pd.DataFrame, stage: int | None) -> pd.DataFrame:
    """The rows after the task with a number from 1, or all."""
    from engram.errors import bad, whole

    if stage is None:
        return table
    known = sorted({int(one) + 1 for one in table["stage"]})
    if whole("--stage", stage, 1) not in known:
        expected = f"a task after which detectors were evaluated, {known[0]} to {known[-1]}"
        raise bad("--stage", expected, stage)
    return table[table["stage"] == stage - 1]


def _print(table: pd.DataFrame, when: str) -> None:
    from engram.cli.wide_table import show_table

    over = table.groupby(["label", "detector", "metric"], sort=False)["mean"].mean()
    means = over.unstack(sort=False)
    means.index = [f"{detector} ({label})" for label, detector in means.index]
    shown = means[[name for name in SHORT if name in means]].rename(columns=SHORT)
    show_table(f"novelty, {when}", shown.rename_axis("detector"))
