"""Carry out a search: check it, train, show what was chosen. Heavy: imported inside commands."""

from __future__ import annotations

import shlex
import time
from contextlib import chdir, nullcontext
from pathlib import Path
from typing import Any

import typer

from engram.cli import arguments, show
from engram.cli.progress import meter
from engram.cli.request import Request
from engram.cli.shell import exit_code, say, screen, why_stopped
from engram.cli.train import find_modules, refuse_diverged, run_request
from engram.errors import OWN_MODULES, RecordError
from engram.recipes import Recipe
from engram.recipes.duration import seconds
from engram.recipes.followers import following, ready
from engram.records import Result
from engram.tuning import Search, search
from engram.tuning.found import ON_TEST
from engram.tuning.subject import shown
from engram.tuning.trials import FOLDER

CHOSEN = "chosen"  # file and folder of the chosen setting
MOST_SHOWN = 10  # trials, the best ones


def search_request(
    request: Request, out: Path | None = None, *, same: bool = False, budget: str | None = None
) -> Result:
    """Search as a request says, and print what was chosen; `same` goes on with one that is there.

    The recipe with the chosen values is written into the directory; if the request says so, it is
    run on the whole stream, too.
    """
    limit = None if budget is None else time.monotonic() + seconds(budget)
    seconds(request.checkpoint_every, "--checkpoint-every")
    ready(request.log)
    (content,) = request.recipes
    folder = out if out is not None else _default_out(Recipe.of(content))
    target = folder.absolute()
    if same and not any((target / FOLDER).glob("*.json")):
        raise RecordError(f"{folder}: contains no search to continue")
    home = chdir(request.folder) if Path(request.folder).is_dir() else nullcontext()
    with home:
        find_modules(request.folder)
        try:
            found = _search(request, content, target, limit)
            _show(found, folder)
            result = _run_chosen(request, found, target, folder)
        except KeyboardInterrupt as error:
            say(f"\n{why_stopped(error)}. Kept in {folder}: all trials started so far.",
                style="yellow")  # fmt: skip
            say(_go_on(folder))
            raise typer.Exit(exit_code(error)) from None
    refuse_diverged([found.result])
    return result


def _default_out(recipe: Recipe) -> Path:
    plain = arguments.default_out([recipe])
    return plain.with_name(f"{plain.name}-search")


def _search(
    request: Request, content: dict[str, Any], target: Path, deadline: float | None
) -> Search:
    asked = {k: v for k, v in (request.search or {}).items() if k != "run"}
    with meter() as bar, following(bar, log=request.log, out=target) as callback:
        # the directory appears with the first trials, after all of it was checked
        found = search(
            content, out=target, device=request.device, pool=request.pool, data=request.root,
            workers=request.workers, address=request.address, compile=request.compile,
            callback=callback,
            deterministic=request.deterministic, checkpoint_every=request.checkpoint_every,
            deadline=deadline, before=lambda: request.write(target), **asked,
        )  # fmt: skip
    return found


def _show(found: Search, folder: Path) -> None:
    """The best trials and what is chosen."""
    table = show.plain_table("trial", *(one.key for one in found.ranges), found.metric, "seconds")
    sign = -1 if found.maximize else 1
    known = [one for one in found.trials if one.value is not None]
    ranked = sorted(known, key=lambda one: (sign * (one.value or 0.0), one.number))
    for one in ranked[:MOST_SHOWN]:
        spread = float("nan") if one.std is None else one.std
        table.add_row(
            str(one.number), *(shown(value) for value in one.values.values()),
            show.pair(one.value or 0.0, spread), f"{one.seconds:.1f}",
        )  # fmt: skip
    screen().print(table)
    for line in str(found).splitlines():
        say(line.strip(), style="bold" if "chosen:" in line else "dim")
    if found.on == "test":
        say(f"warning: {ON_TEST}: its test accuracy is no longer unbiased", style="yellow")
    if not found.complete:
        say("Not finished.", style="yellow")
        say(_go_on(folder))


def _go_on(folder: Path) -> str:
    trust = " --trust" if OWN_MODULES else ""  # code of the user's own was named
    return f"Continue:  engram resume {shlex.quote(str(folder))}{trust}"


def _run_chosen(request: Request, found: Search, target: Path, folder: Path) -> Result:
    """Write the chosen recipe down, and run it if that was asked for."""
    say(f"Trials:   {folder}")
    say(f"Report:   engram report {shlex.quote(str(folder))} -o report.html")
    if not found.complete or not any(one.value is not None for one in found.trials):
        return found.result
    recipe = found.recipe
    assert recipe is not None  # it came from one
    path = recipe.write(target / f"{CHOSEN}.yaml")
    if not (request.search or {}).get("run"):
        say(f"Run it on the whole stream:  engram run {shlex.quote(str(folder / path.name))}")
        return found.result
    return run_request(_whole(request, recipe), target / CHOSEN)


def _whole(request: Request, recipe: Recipe) -> Request:
    from dataclasses import replace

    return replace(request, recipes=[recipe.plain()], search=None, pool="auto")
