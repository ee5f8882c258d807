"""``engram open-world``: flag, have some labelled, learn, go on; against random flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from engram.cli.options import Assignments, Device, Label, Root, Seeds
from engram.cli.shell import emit


def command(
    data: Annotated[
        str, typer.Option("--data", "-d", metavar="NAME|PATH", help="Data set.")
    ],
    label: Label = None,
    detector: Annotated[
        str, typer.Option(metavar="NAME", help="Novelty detector (engram list detectors).")
    ] = "Softmax",
    method: Annotated[
        str, typer.Option("--method", "-m", metavar="NAME", help="Method.")
    ] = "ER",
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Network.")] = None,
    known: Annotated[int, typer.Option(help="Number of classes known at the start.")] = 4,
    classes_per_round: Annotated[int, typer.Option(help="New classes in each round.")] = 2,
    novel_share: Annotated[
        float, typer.Option(help="Share of the new classes' rows that arrive.")
    ] = 1.0,
    budget: Annotated[int, typer.Option(help="Labels per round.")] = 40,
    rate: Annotated[float, typer.Option(help="False-alarm rate that sets the threshold.")] = 0.1,
    assignments: Assignments = None,
    seeds: Seeds = None,
    outside: Annotated[
        str | None, typer.Option(metavar="NAME|PATH", help="Outside set for tuning the detector.")
    ] = None,
    root: Root = None,
    device: Device = "auto",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV: every round.")] = False,
) -> None:  # fmt: skip
    """Let a learner discover new classes, and compare with labelling at random.

    In each round, unlabelled rows arrive; those that the detector flags as novel are labelled,
    within the budget, and learnt.
    """
    from dataclasses import asdict

    from engram.cli import arguments
    from engram.cli.wide_table import show_table
    from engram.recipes import Recipe
    from engram.recipes.assign import set_values
    from engram.recipes.open_world import open_world
    from engram.recipes.probing import build_detectors
    from engram.spelling import plural

    plain = arguments.contents(
        data=data,
        methods=[method],
        model=model,
        seeds=seeds,
        columns=label or (),
        detectors=[detector],
        outside=outside,
    )
    for assignment in assignments or ():
        set_values(plain, assignment)
    _check(plain[0])
    (asked,) = build_detectors(plain[0])
    recipe = Recipe.of({k: v for k, v in plain[0].items() if k != "detectors"})
    world = open_world(
        recipe.data(str(root.absolute()) if root else None), known=known, budget=budget, rate=rate,
        classes_per_round=classes_per_round, novel_share=novel_share, detector=asked,
        method=recipe.method, seeds=recipe.seeds, model=recipe.model, device=device,
        outside=plain[0].get("outside"), **asdict(recipe.training),
    )  # fmt: skip
    if csv:
        emit(world.table.to_csv(index=False))
        return
    runs = f"mean over {len(recipe.seeds)} seeds" if len(recipe.seeds) > 1 else "one seed"
    found = world.summary()
    counts = [name for name in found if (found[name] % 1 == 0).all() and found[name].max() > 1]
    found = found.astype(dict.fromkeys(counts, int))
    rounds = plural(int(world.table["round"].max()), "round")
    show_table(f"open world after {rounds}, {runs}", found)


def _check(content: Mapping[str, Any]) -> None:
    """Values that the loop would not look at are refused."""
    from engram.errors import bad

    ours = ("method", "model", "training", "seeds", "detectors", "outside", "stream")
    wrong = [name for name in content if name not in ours]
    wrong += [
        f"stream.{name}" for name in content["stream"] if name not in ("data", "data_options")
    ]
    if len(content["detectors"]) != 1 or isinstance(content["detectors"], str):
        wrong.append("detectors")
    if wrong:
        expected = "values of method, model, training, data, the detector and the outside set"
        raise bad("--set", expected, wrong)
