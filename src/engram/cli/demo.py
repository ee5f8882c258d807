"""``engram demo``: the whole way from data to a report, in under two minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli.shell import emit, say

if TYPE_CHECKING:
    from engram.records import Result

DATA = "digits"
METHODS: tuple[dict[str, Any], ...] = (
    {"name": "Finetune"},
    {"name": "EWC"},
    {"name": "LwF"},
    {"name": "ER", "memory": {"total": 100}},
    {"name": "ICaRL", "memory": {"total": 100}},
    {"name": "Joint"},
)
TRAINING = {"epochs": 10}
SEEDS = 3


def command(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Run directory.")
    ] = Path("runs/demo"),
) -> None:  # fmt: skip
    """Train six methods on handwritten digits in five tasks; print a table and write a report."""
    from engram.cli import arguments, show
    from engram.cli.request import Request
    from engram.cli.train import train
    from engram.report import build, from_result

    say("Ten handwritten digits, learnt two at a time. How well are the first ones remembered?")
    recipes = [
        {
            "stream": {"data": DATA}, "method": method, "training": dict(TRAINING),
            "seeds": SEEDS, "label": method["name"],
        }
        for method in METHODS
    ]  # fmt: skip
    # Three small runs on a few CPU cores are faster one by one than in lockstep.
    request = Request(recipes=recipes, pool="serial")
    result = train(request, arguments.build(recipes), out)
    page = build(from_result(result), out / "report.html", title="Engram demo")
    show.outcome(result, out, page=page)
    emit("\n" + interpretation(result))


def interpretation(result: Result) -> str:
    """What the numbers say, in words that follow from them."""
    table = result.summary()
    accuracy = table["average_accuracy"]
    lost = float(table["forgetting"]["Finetune"])
    rivals = accuracy.drop(["Finetune", "Joint"])
    best = str(rivals.idxmax())
    aware = result.view(head="multi").summary()["average_accuracy"]
    return (
        f"Plain training (Finetune) loses {100 * lost:.0f} points of accuracy on earlier tasks "
        f"and ends at {accuracy['Finetune']:.0%}. {best} keeps {rivals[best]:.0%}, "
        f"against {accuracy['Joint']:.0%} for training on all data seen so far (Joint).\n"
        f"With the task id given at test time (multi-head view), EWC reaches "
        f"{aware['EWC']:.0%} and Finetune {aware['Finetune']:.0%}."
    )
