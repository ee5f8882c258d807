"""Carry out a request: check it, train, show what came out. Heavy: imported inside commands."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, chdir, nullcontext
from pathlib import Path

import typer

from engram.cli import arguments, show
from engram.cli.progress import meter
from engram.cli.request import Request
from engram.cli.shell import ALL_DIVERGED, LOST, exit_code, say, why_stopped
from engram.engine.backend import device_of
from engram.errors import OWN_MODULES
from engram.job import is_first
from engram.parallel import LostRank
from engram.pools import find_pool
from engram.pools.base import Work
from engram.recipes import Callback, Plan, Recipe
from engram.recipes.changes import recorded, refuse_changed
from engram.recipes.duration import seconds
from engram.recipes.followers import following, ready
from engram.recipes.names import own_code_may_run, without_own_code
from engram.records import Result, RunDirectory
from engram.spelling import plural


def run_request(
    request: Request, out: Path | None = None, *, same: bool = False, again: bool = False,
    budget: str | None = None,
) -> Result:  # fmt: skip
    """Run a request in its directory and print the outcome; Ctrl-C says what is kept.

    `same` refuses experiments that have changed since the directory was written; `again` runs anew
    what is finished; after `budget` training ends, and is saved where it was.
    """
    limit = None if budget is None else seconds(budget)
    recipes = arguments.build(request.recipes)
    folder = out if out is not None else arguments.default_out(recipes)
    result = train(request, recipes, folder, same=same, again=again, budget=limit)
    if len(result) and is_first():
        show.outcome(result, folder)
    return result


def trusted(command: Sequence[str], trust: bool) -> AbstractContextManager[None]:
    """While this lasts, code that a directory names runs only if the user trusts it."""
    line = shlex.join(["engram", *command, "--trust"])
    words = f"the directory refers to code outside Engram; to allow it to run: {line}"
    return nullcontext() if trust else without_own_code(words)


def refuse_diverged(results: Sequence[Result]) -> None:
    """End with an error where not one run is left that could be looked at."""
    lost = sum(len(result.diverged) for result in results)
    if lost and lost == sum(map(len, results)):
        what = "the run" if lost == 1 else f"all {lost} runs"
        say(f"engram: {what} diverged; try a smaller learning rate", style="red")
        raise typer.Exit(ALL_DIVERGED)


def train(
    request: Request, recipes: Sequence[Recipe], folder: Path, *, same: bool = False,
    again: bool = False, budget: float | None = None,
) -> Result:  # fmt: skip
    """Run what is not finished yet, with progress on the screen."""
    seconds(request.checkpoint_every, "--checkpoint-every")
    ready(request.log)
    if request.pool != "ray":  # whose nodes may have devices that are not here
        device_of(request.device)
    target = folder.absolute()
    home = chdir(request.folder) if Path(request.folder).is_dir() else nullcontext()
    with home:
        find_modules(request.folder)
        work = Work(
            recipes=recipes, out=target, device=request.device, data=request.root,
            workers=request.workers, address=request.address, compile=request.compile, again=again,
            deterministic=request.deterministic, checkpoint_every=request.checkpoint_every,
        )  # fmt: skip
        plans = work.plans
        if target.is_dir() and is_first():  # before the request is kept there
            directory = RunDirectory(target, create=False)
            refuse_changed(plans, directory) if same else recorded(directory)
        if is_first():
            show.question(plans)
            request.write(target)
        began = time.monotonic()
        work.deadline = None if budget is None else began + budget
        try:
            with (
                meter() as bar,
                following(
                    _Announcing(bar), log=request.log if is_first() else [], out=target
                ) as callback,
            ):
                work.callback = callback
                result = find_pool(request.pool)(work)
        except KeyboardInterrupt as error:
            _stopped(why_stopped(error), _stages(plans, target), folder)
            raise typer.Exit(exit_code(error)) from None
        except LostRank as error:
            _stopped(f"A process of the job was lost ({error})", _stages(plans, target), folder)
            raise typer.Exit(LOST) from None
    late = work.deadline is not None and time.monotonic() > work.deadline
    stages = _stages(plans, target) if late else []
    if any(n < len(plan.run.stream) for plan, n in stages):
        _stopped("The time budget is used up", stages, folder)
    else:
        say(f"{plural(len(plans), 'run')} in {_duration(time.monotonic() - began)}")
    return result


class _Announcing(Callback):
    """Says how much was finished before, then hands everything on."""

    def __init__(self, inner: Callback) -> None:
        self.inner = inner
        self.note = inner.note  # type: ignore[method-assign]
        self.step, self.stage = inner.step, inner.stage  # type: ignore[method-assign]

    def begin(self, plans: Sequence[Plan], done: int) -> None:
        if done:
            say(f"already finished: {done} of {plural(len(plans), 'run')}")
        self.inner.begin(plans, done)


def _stopped(why: str, stages: Sequence[tuple[Plan, int]], folder: Path) -> None:
    """Say what is kept of runs, some of which are not finished."""
    whole = sum(n >= len(plan.run.stream) for plan, n in stages)
    part = sum(0 < n < len(plan.run.stream) for plan, n in stages)
    inside = any((folder / "checkpoint" / "steps").glob("*"))
    say(
        f"\n{why}. Kept in {folder}: {whole} of {plural(len(stages), 'run')} complete, "
        f"{part} in part ({plural(sum(n for _, n in stages), 'stage')} in all"
        f"{', and the steps since' if inside else ''}).",
        style="yellow",
    )
    trust = " --trust" if OWN_MODULES else ""  # code of the user's own was named
    say(f"Continue:  engram resume {shlex.quote(str(folder))}{trust}")


def _stages(plans: Sequence[Plan], folder: Path) -> list[tuple[Plan, int]]:
    """Each plan, and how many of its stages are done; a run that diverged has no further ones."""
    directory = RunDirectory(folder, create=False)
    found = []
    for plan in plans:
        lost, stages = directory.diverged(*plan.key), len(plan.run.stream)
        found.append((plan, stages if lost else len(directory.finished(*plan.key))))
    return found


def _duration(seconds: float) -> str:
    """Seconds in words.

    Examples
    --------
    >>> _duration(7.26), _duration(131), _duration(7300)
    ('7.3 s', '2 min 11 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60} min"


def find_modules(folder: str) -> None:
    """Let worker processes import the user's own modules, where such may run."""
    if own_code_may_run() and folder not in sys.path:
        sys.path.append(folder)
