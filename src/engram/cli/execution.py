"""Execution of run, sweep and search: build recipes from options, train with progress, print the
outcome. Imports torch, so commands import it inside functions.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import re
import shlex
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from engram.cli import result_display
from engram.cli.console import (
    ALL_DIVERGED,
    PROCESS_LOST,
    Request,
    exit_code,
    messages_console,
    results_console,
    say,
    stop_reason,
)
from engram.distributed import LostRank
from engram.engine.backend import resolve_device
from engram.errors import USER_MODULES, RecordError, bad, check_int, plural
from engram.experiments import Callback, Plan, Recipe
from engram.experiments.build_methods import (
    forbid_user_code,
    is_user_code_allowed,
    parse_method_name,
)
from engram.experiments.callbacks import (
    StageCount,
    describe_progress,
    find_log_tools,
    open_callback,
)
from engram.experiments.changed_recipes import read_recorded_recipes, refuse_changed
from engram.experiments.overrides import (
    Content,
    expand_method,
    name_option_in_errors,
    set_key_in_all,
)
from engram.experiments.plain_values import parse_duration
from engram.experiments.pools import find_pool
from engram.experiments.pools.pool import Work
from engram.experiments.recipe import read_recipe
from engram.experiments.search import FOLDER, Search, format_value, search
from engram.io import parse_key_values
from engram.process import is_main_process
from engram.records import Result, Rows, RunDirectory, read
from engram.records.display_names import ON_TEST

if TYPE_CHECKING:
    from rich.progress import Progress


def run_request(
    request: Request, out: Path | None = None, *, same: bool = False, rerun: bool = False,
    budget: str | None = None,
) -> Result:  # fmt: skip
    """Run a request in its directory and print the outcome; on Ctrl-C, what is kept.

    `same` raises for experiments that have changed since the directory was written; `rerun` repeats
    finished runs; after `budget`, training is saved and stops.
    """
    limit = None if budget is None else parse_duration(budget)
    with request.at_home():
        find_modules(request.folder)
        recipes = build_recipes(request.recipes)
    folder = out if out is not None else default_out(recipes)
    result = train_request(request, recipes, folder, same=same, rerun=rerun, budget=limit)
    if len(result) and is_main_process():
        result_display.print_outcome(result, folder)
        studied = [one for one in recipes if one.orders is not None]
        if studied:
            with request.at_home():
                result_display.print_order_study(result, studied, request.root)
    return result


def allow_own_code(command: Sequence[str], trust: bool) -> AbstractContextManager[None]:
    """Return a context in which user code named by a directory runs only if trusted."""
    line = shlex.join(["engram", *command, "--trust"])
    words = f"the directory refers to code outside Engram; to allow it to run: {line}"
    return nullcontext() if trust else forbid_user_code(words)


def refuse_diverged(results: Sequence[Result]) -> None:
    """Exit with an error if all runs diverged."""
    lost = sum(len(result.diverged) for result in results)
    if lost and lost == sum(map(len, results)):
        what = "the run" if lost == 1 else f"all {lost} runs"
        say(f"engram: {what} diverged; try a smaller learning rate", style="red")
        raise typer.Exit(ALL_DIVERGED)


def train_request(
    request: Request, recipes: Sequence[Recipe], folder: Path, *, same: bool = False,
    rerun: bool = False, budget: float | None = None,
) -> Result:  # fmt: skip
    """Train the unfinished runs, with progress."""
    parse_duration(request.checkpoint_every, "--checkpoint-every")
    find_log_tools(request.log)
    if request.pool != "ray":  # cluster nodes may have other devices
        resolve_device(request.device)
    target = folder.absolute()
    with request.at_home():
        find_modules(request.folder)
        work = Work(
            recipes=recipes, out=target, device=request.device, data=request.root,
            workers=request.workers, address=request.address, compile=request.compile, rerun=rerun,
            deterministic=request.deterministic, exact=request.exact,
            checkpoint_every=request.checkpoint_every,
        )  # fmt: skip
        plans = work.plans
        if target.is_dir() and is_main_process():  # checked before the request is written
            directory = RunDirectory(target, create=False)
            refuse_changed(plans, directory) if same else read_recorded_recipes(directory)
        if is_main_process():
            result_display.question(plans)
            request.write(target)
        began = time.monotonic()
        work.deadline = None if budget is None else began + budget
        try:
            with (
                show_progress() as bar,
                open_callback(
                    _ProgressAnnouncer(bar),
                    log=request.log if is_main_process() else [],
                    out=target,
                ) as callback,
            ):
                work.callback = callback
                result = find_pool(request.pool)(work)
        except KeyboardInterrupt as error:
            _report_stopped(stop_reason(error), _count_stages(plans, target), folder)
            raise typer.Exit(exit_code(error)) from None
        except LostRank as error:
            _report_stopped(
                f"A process of the job was lost ({error})", _count_stages(plans, target), folder
            )
            raise typer.Exit(PROCESS_LOST) from None
    late = work.deadline is not None and time.monotonic() > work.deadline
    stages = _count_stages(plans, target) if late else []
    if any(n < len(plan.run.stream) for plan, n in stages):
        _report_stopped("The time budget is used up", stages, folder)
    else:
        say(f"{plural(len(plans), 'run')} in {_parse_budget(time.monotonic() - began)}")
    return result


class _ProgressAnnouncer(Callback):
    """Prints how much was finished before, then passes all events on."""

    def __init__(self, inner: Callback) -> None:
        self.inner = inner
        self.note = inner.note  # type: ignore[method-assign]
        self.step, self.stage = inner.step, inner.stage  # type: ignore[method-assign]

    def begin(self, plans: Sequence[Plan], done: int) -> None:
        if done:
            say(f"already finished: {done} of {plural(len(plans), 'run')}")
        self.inner.begin(plans, done)


def _report_stopped(why: str, stages: Sequence[tuple[Plan, int]], folder: Path) -> None:
    """Print what is kept of runs, some of which are unfinished."""
    whole = sum(n >= len(plan.run.stream) for plan, n in stages)
    part = sum(0 < n < len(plan.run.stream) for plan, n in stages)
    inside = any((folder / "checkpoint" / "steps").glob("*"))
    say(
        f"\n{why}. Kept in {folder}: {whole} of {plural(len(stages), 'run')} complete, "
        f"{part} in part ({plural(sum(n for _, n in stages), 'stage')} in all"
        f"{', and the steps since' if inside else ''}).",
        style="yellow",
    )
    trust = " --trust" if USER_MODULES else ""  # user code was involved
    say(f"Continue:  engram resume {shlex.quote(str(folder))}{trust}")


def compare_with_recorded(result: Result, directory: Path) -> None:
    """Print whether repeated runs have the accuracies that a directory recorded of them."""
    before = read(directory)
    shared = [run for run in result.runs if run in before.runs]
    if not shared or not is_main_process():
        return
    mine, theirs = (one.of_runs(shared).matrix for one in (result, before))
    equal = [np.array_equal(a, b, equal_nan=True) for a, b in zip(mine, theirs, strict=True)]
    words = f"{sum(equal)} of {plural(len(shared), 'run')} have exactly the accuracies in"
    more = ""
    if not all(equal):
        more = f"; the largest difference is {np.nanmax(np.abs(mine - theirs)):.2g}"
    say(f"{words} {directory}{more}", style="" if all(equal) else "yellow")


def _count_stages(plans: Sequence[Plan], folder: Path) -> list[tuple[Plan, int]]:
    """Count the finished stages of each plan; a diverged run counts as complete."""
    directory = RunDirectory(folder, create=False)
    found = []
    for plan in plans:
        lost, stages = directory.diverged(*plan.key), len(plan.run.stream)
        found.append((plan, stages if lost else len(directory.finished(*plan.key))))
    return found


def _parse_budget(seconds: float) -> str:
    """Format seconds.

    Examples
    --------
    >>> _parse_budget(7.26), _parse_budget(131), _parse_budget(7300)
    ('7.3 s', '2 min 11 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60} min"


def find_modules(folder: str) -> None:
    """Let worker processes import the user's modules, if these may run."""
    if is_user_code_allowed() and folder not in sys.path:
        sys.path.append(folder)


# Recipes from options.


def make_contents(
    *, recipe: Path | None = None, data: str | None = None, methods: Sequence[str] = (),
    model: str | None = None, stream: str | None = None, seeds: str | None = None,
    seed: int | None = None, keep: str | None = None, probes: Sequence[str] = (),
    detectors: Sequence[Any] = (), outside: str | None = None, columns: Sequence[str] = (),
    evaluate_unseen: bool = False, orders: Content | None = None, limit: int | None = None,
) -> list[Content]:  # fmt: skip
    """Make one plain recipe per method, from a file or defaults and the options.

    Examples
    --------
    >>> [one["method"] for one in make_contents(data="digits", methods=["Finetune", "ER"])]
    [{'name': 'Finetune'}, {'name': 'ER'}]
    """
    if recipe is None and data is None:
        raise bad("engram run", "a RECIPE.yaml, or --data with a name or path", "neither")
    base: Content = {"stream": {}, "method": "Finetune"}
    if recipe is not None:
        base = read_recipe(recipe)
    return change_contents(
        [base], data=data, methods=methods, model=model, stream=stream, seeds=seeds, seed=seed,
        keep=keep, probes=probes, detectors=detectors, outside=outside, columns=columns,
        evaluate_unseen=evaluate_unseen, orders=orders, limit=limit,
    )  # fmt: skip


def change_contents(bases: Sequence[Content], **options: Any) -> list[Content]:
    """Return plain recipes changed by options of the command line, as in `make_contents`."""
    return [one for base in bases for one in _change_content(dict(base), **options)]


def _change_content(
    base: Content, *, data: str | None, methods: Sequence[str], model: str | None,
    stream: str | None, seeds: str | None, seed: int | None, keep: str | None,
    probes: Sequence[str], detectors: Sequence[Any], outside: str | None, evaluate_unseen: bool,
    orders: Content | None, limit: int | None, columns: Sequence[str] = (),
) -> list[Content]:  # fmt: skip
    section = base["stream"]
    base["stream"] = dict(section) if isinstance(section, Mapping) else {"data": section}
    changes = {"data": data, "kind": stream}
    base["stream"] |= {name: value for name, value in changes.items() if value is not None}
    more = label_option(columns) | ({} if limit is None else {"limit": limit})
    if more:
        base["stream"]["data_options"] = {**(base["stream"].get("data_options") or {}), **more}
    base["model"] = model if model is not None else base.get("model", "mlp")
    if keep is not None:
        base["keep"] = keep
    if evaluate_unseen:
        base["evaluate_unseen"] = True
    if probes:
        base["probes"] = [*(base.get("probes") or ()), *probes]
    if detectors:
        base["detectors"] = [*(base.get("detectors") or ()), *detectors]
    if outside is not None:
        base["outside"] = outside
    if orders is not None:
        base["orders"] = orders
    if seeds is not None or seed is not None:
        base["seeds"] = choose_seeds(seeds, seed)
    wanted = [parse_method_name(name) for name in methods] or [expand_method(base["method"])]
    if methods:
        base.pop("label", None)  # it described the file's method
    return [{**copy.deepcopy(base), "method": method} for method in wanted]


def label_option(columns: Sequence[str]) -> Content:
    """Return the data option that names one column of classes, or several.

    Examples
    --------
    >>> label_option(["kind"]), label_option([])
    ({'label': 'kind'}, {})
    """
    if not columns:
        return {}
    return {"label": columns[0] if len(columns) == 1 else list(columns)}


def detector_specs(names: str | None, tune: bool = False) -> list[Any]:
    """Parse comma-separated detectors; with `tune`, those with options to choose are tuned.

    Examples
    --------
    >>> detector_specs("Softmax, ODIN", tune=True)
    ['Softmax', {'name': 'Tuned', 'detector': 'ODIN'}]
    """
    from engram.novelty import detectors

    known, found = detectors(), [name.strip() for name in (names or "").split(",") if name.strip()]
    if names is not None and not found:
        raise bad("--detectors", "comma-separated names (engram list detectors)", names)
    if not tune:
        return list(found)
    able = [name for name in found if name in known and known[name].searched]
    if not able:
        others = ", ".join(name for name, one in known.items() if one.searched)
        raise bad("--tune", f"one of {others} among --detectors", names)
    return [{"name": "Tuned", "detector": name} if name in able else name for name in found]


def parse_seeds(text: str) -> int | list[int]:
    """Parse a number of seeds, or the seeds themselves.

    Examples
    --------
    >>> parse_seeds("3"), parse_seeds("4,5")
    (3, [4, 5])
    """
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise bad("--seeds", "a number of seeds, or a comma-separated list of seeds", text)
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else numbers


def read_orders(tasks: str | None, classes: int | None) -> Content | None:
    """Return the orders section for --task-orders and --class-orders; None without them.

    Examples
    --------
    >>> read_orders("all", None), read_orders(None, 5), read_orders(None, None)
    ({'task_orders': 'all'}, {'class_orders': 5}, None)
    """
    found: Content = {}
    if tasks is not None:
        if tasks != "all" and not tasks.isdigit():
            raise bad("--task-orders", "all, or a number of orders", tasks)
        found["task_orders"] = tasks if tasks == "all" else int(tasks)
    if classes is not None:
        found["class_orders"] = check_int("--class-orders", classes, 1)
    return found or None


def choose_seeds(seeds: str | None, seed: int | None) -> int | list[int]:
    """Choose the seeds of --seeds, or the one of --seed.

    Examples
    --------
    >>> choose_seeds("3", None), choose_seeds(None, 3)
    (3, [3])
    """
    if seed is None:
        return parse_seeds(str(seeds))
    if seeds is not None:
        raise bad("--seed", "one of --seed and --seeds", "both")
    return [check_int("--seed", seed)]


def expand_grid(recipes: Sequence[Content], axes: Sequence[str]) -> list[Content]:
    """Expand recipes by every combination of the axes ``key=value,value,...``.

    Examples
    --------
    >>> base = make_contents(data="digits", methods=["Finetune"])
    >>> [one["training"] for one in expand_grid(base, ["lr=0.1,0.01"])]
    [{'lr': 0.1}, {'lr': 0.01}]
    """
    keys, values = zip(*map(parse_key_values, axes), strict=True) if axes else ((), ())
    points = []
    for content in recipes:
        for choice in itertools.product(*values):
            point = copy.deepcopy(content)
            for key, value in zip(keys, choice, strict=True):
                with name_option_in_errors("--grid"):
                    set_key_in_all([point], key, copy.deepcopy(value))
            point["method"] = expand_method(point["method"])
            points.append(point)
    return points


def build_recipes(plain: Sequence[Content]) -> list[Recipe]:
    """Build checked recipes; equal labels get the differing values appended."""
    varied = _varied_options(plain)
    built = [_with_full_label(Recipe.of(one), one, varied) for one in plain]
    taken: dict[str, set[str]] = {}
    for one in built:
        taken.setdefault(one.label, set()).add(one.key)
    return [
        one if len(taken[one.label]) == 1 else one.change(label=f"{one.label} {extra}")
        for one, extra in zip(built, _differences(plain), strict=True)
    ]


def _varied_options(plain: Sequence[Content]) -> dict[str, set[str]]:
    """Find the options in which the recipes of a method differ, by its name."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for content in plain:
        if isinstance(own := content["method"], Mapping):
            by_name.setdefault(repr(own.get("name")), []).append(dict(_walk_leaves(own)))
    return {
        name: {
            key for key in {key for one in alike for key in one}
            if len({repr(one.get(key)) for one in alike}) > 1
        }
        for name, alike in by_name.items()
    }  # fmt: skip


def _with_full_label(
    recipe: Recipe, content: Content, varied: Mapping[str, Collection[str]]
) -> Recipe:
    """Add to a recipe's label the method's values in which recipes differ.

    Labels omit default values, which would leave a point of a grid without a name.
    """
    own = content["method"]
    if "label" in content or not isinstance(own, Mapping):
        return recipe
    shown = recipe.label
    for key, value in _walk_leaves(own):
        field, _, rest = key.partition(".")
        if key in varied[repr(own.get("name"))] and f"{field}=" not in shown:
            shown = f"{shown} {rest or field}={value}"
    return recipe if shown == recipe.label else recipe.change(label=shown)


def _differences(plain: Sequence[Content]) -> list[str]:
    """List the values outside the method in which recipes differ, as text."""
    flat = [dict(_walk_leaves({k: v for k, v in one.items() if k != "method"})) for one in plain]
    keys = dict.fromkeys(key for one in flat for key in one)
    varying = [key for key in keys if len({repr(one.get(key)) for one in flat}) > 1]
    return [
        " ".join(f"{key.split('.')[-1]}={one[key]}" for key in varying if key in one)
        for one in flat
    ]  # fmt: skip


def _walk_leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _walk_leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def default_out(recipes: Sequence[Recipe]) -> Path:
    """Return ``runs/<data>-<methods>-<hash>``, the same for the same recipes."""
    names = [type(one.method).__name__ for one in recipes]
    several = list(dict.fromkeys(names))
    shown = several if len(several) <= 3 else [*several[:2], f"{len(several) - 2}more"]
    data = Path(str(recipes[0].stream["data"])).stem or "data"
    mark = hashlib.sha256("".join(sorted({one.key for one in recipes})).encode()).hexdigest()[:6]
    return Path("runs") / re.sub(r"[^\w.-]+", "_", "-".join([data, *shown, mark]))


# Progress.


QUIET_EVERY = 15.0  # seconds between lines without a terminal
BAR_EVERY = 0.1  # seconds between updates of the bar


class ProgressMeter(Callback):
    """Shows progress as a bar with the remaining time, or as occasional lines."""

    def __init__(self, bar: Progress | None) -> None:
        self.bar = bar
        self.runs = 0
        self.finished = 0  # stages finished before this command
        self.work = StageCount([], 0)
        self._began = self._spoke = time.monotonic()

    def note(self, text: str) -> None:
        say(f"note: {text}", style="yellow")

    def begin(self, plans: Sequence[Plan], done: int) -> None:
        self.runs, self.finished = len(plans), done
        self.work = StageCount(plans, done)
        if self.bar is not None:
            for before in self.bar.task_ids:  # bars of an earlier batch
                self.bar.remove_task(before)
            task = self.bar.add_task("starting", total=self.work.total)
            self.bar.update(task, completed=self.work.before)

    def step(self, plans: Sequence[Plan], stage: int, done: int, total: int) -> None:
        if not self._due():  # steps of thousands of plans come too often to show
            return
        for plan in plans:
            self.work.reach(plan, stage + done / max(total, 1))
        self._show(plans, stage)

    def stage(self, plan: Plan, stage: int, rows: Rows) -> None:
        self.work.reach(plan, stage + 1.0)
        if "diverged" in rows.metrics:
            self.work.reach(plan, float(plan.stages))
        self._show([plan], stage)

    def _due(self) -> bool:
        every = QUIET_EVERY if self.bar is None else BAR_EVERY
        return time.monotonic() - self._spoke >= every

    def _show(self, plans: Sequence[Plan], stage: int) -> None:
        if not self._due():
            return
        self._spoke = now = time.monotonic()
        if self.bar is not None:
            self.bar.update(
                self.bar.task_ids[0],
                completed=self.work.done,
                description=describe_progress(plans, stage),
            )
        else:
            say(f"{self._share():.0%} done, about {self._left(now):.0f} s left")

    def _share(self) -> float:
        return self.work.done / max(self.work.total, 1.0)

    def _left(self, now: float) -> float:
        fresh = max(self.work.done - self.work.before, 1e-9)
        return (now - self._began) / fresh * (self.work.total - self.work.done)


@contextmanager
def show_progress() -> Iterator[ProgressMeter]:
    """Return a context with a progress callback, whose bar disappears at the end."""
    console = messages_console()
    if not console.is_terminal:
        yield ProgressMeter(None)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TaskProgressColumn as Share
    from rich.progress import TimeRemainingColumn as Left

    with Progress(
        BarColumn(24), Share(), TimeElapsedColumn(), TextColumn("left"), Left(),
        TextColumn("{task.description}", markup=False), console=console, transient=True,
    ) as bar:  # fmt: skip
        yield ProgressMeter(bar)


# Search.


CHOSEN_NAME = "chosen"  # file and folder of the chosen setting
MOST_SHOWN = 10  # best trials shown


def search_request(
    request: Request, out: Path | None = None, *, same: bool = False, budget: str | None = None
) -> Result:
    """Run the search of a request and print the choice; `same` continues an existing one.

    The recipe with the chosen values is written into the directory and, if requested,
    run on the whole stream.
    """
    limit = None if budget is None else time.monotonic() + parse_duration(budget)
    parse_duration(request.checkpoint_every, "--checkpoint-every")
    find_log_tools(request.log)
    (content,) = request.recipes
    with request.at_home():
        find_modules(request.folder)
        folder = out if out is not None else _search_directory(Recipe.of(content))
    target = folder.absolute()
    if same and not any((target / FOLDER).glob("*.json")):
        raise RecordError(f"{folder}: contains no search to continue")
    with request.at_home():
        try:
            found = _search(request, content, target, limit)
            _print_search(found, folder)
            result = _run_chosen(request, found, target, folder)
        except KeyboardInterrupt as error:
            say(f"\n{stop_reason(error)}. Kept in {folder}: all trials started so far.",
                style="yellow")  # fmt: skip
            say(_resume_hint(folder))
            raise typer.Exit(exit_code(error)) from None
    refuse_diverged([found.result])
    return result


def _search_directory(recipe: Recipe) -> Path:
    plain = default_out([recipe])
    return plain.with_name(f"{plain.name}-search")


def _search(
    request: Request, content: dict[str, Any], target: Path, deadline: float | None
) -> Search:
    asked = {k: v for k, v in (request.search or {}).items() if k != "run"}
    with show_progress() as bar, open_callback(bar, log=request.log, out=target) as callback:
        # the directory is created with the first trials, after all checks
        found = search(
            content, out=target, device=request.device, pool=request.pool, data=request.root,
            workers=request.workers, address=request.address, compile=request.compile,
            callback=callback,
            deterministic=request.deterministic, exact=request.exact,
            checkpoint_every=request.checkpoint_every,
            deadline=deadline, before=lambda: request.write(target), **asked,
        )  # fmt: skip
    return found


def _print_search(found: Search, folder: Path) -> None:
    """Print the best trials and the choice."""
    table = result_display.make_plain_table(
        "trial", *(one.key for one in found.ranges), found.metric, "seconds"
    )
    sign = -1 if found.maximize else 1
    known = [one for one in found.trials if one.value is not None]
    ranked = sorted(known, key=lambda one: (sign * (one.value or 0.0), one.number))
    for one in ranked[:MOST_SHOWN]:
        spread = float("nan") if one.std is None else one.std
        table.add_row(
            str(one.number), *(format_value(value) for value in one.values.values()),
            result_display.format_mean_std(one.value or 0.0, spread), f"{one.seconds:.1f}",
        )  # fmt: skip
    results_console().print(table)
    for line in str(found).splitlines():
        say(line.strip(), style="bold" if "chosen:" in line else "dim")
    if found.on == "test":
        say(f"warning: {ON_TEST}: its test accuracy is no longer unbiased", style="yellow")
    if not found.complete:
        say("Not finished.", style="yellow")
        say(_resume_hint(folder))


def _resume_hint(folder: Path) -> str:
    trust = " --trust" if USER_MODULES else ""  # code of the user's own was named
    return f"Continue:  engram resume {shlex.quote(str(folder))}{trust}"


def _run_chosen(request: Request, found: Search, target: Path, folder: Path) -> Result:
    """Write the chosen recipe, and run it if requested."""
    say(f"Trials:   {folder}")
    say(f"Report:   engram report {shlex.quote(str(folder))} -o report.html")
    if not found.complete or not any(one.value is not None for one in found.trials):
        return found.result
    recipe = found.recipe
    assert recipe is not None  # the search began with a recipe
    path = recipe.write(target / f"{CHOSEN_NAME}.yaml")
    if not (request.search or {}).get("run"):
        say(f"Run it on the whole stream:  engram run {shlex.quote(str(folder / path.name))}")
        return found.result
    return run_request(_full_request(request, recipe), target / CHOSEN_NAME)


def _full_request(request: Request, recipe: Recipe) -> Request:
    from dataclasses import replace

    return replace(request, recipes=[recipe.plain()], search=None, pool="auto")
