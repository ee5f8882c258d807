"""Commands that train: run, sweep, search, resume, demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli import options
from engram.cli.console import emit, say
from engram.cli.options import (
    Address,
    Assignments,
    Budget,
    CheckpointEvery,
    Compile,
    DataSet,
    Deterministic,
    Device,
    Exact,
    Label,
    Limit,
    Log,
    Methods,
    Model,
    Out,
    Pool,
    RecipeFile,
    RecipeFiles,
    Rerun,
    Root,
    Scenario,
    Seed,
    Seeds,
    Trust,
    Workers,
    check_pool,
)
from engram.errors import EngramError, RecordError, bad, unknown

if TYPE_CHECKING:
    from engram.cli.console import Request
    from engram.records import Result


def run(
    recipes: RecipeFiles = None,
    data: DataSet = None,
    label: Label = None,
    method: Methods = None,
    model: Model = None,
    stream: Scenario = None,
    assignments: Assignments = None,
    seeds: Seeds = None,
    seed: Seed = None,
    limit: Limit = None,
    task_orders: Annotated[
        str | None,
        typer.Option(
            "--task-orders", metavar="all|N", help="Study N orders of the tasks, or all of them."
        ),
    ] = None,
    class_orders: Annotated[
        int | None,
        typer.Option("--class-orders", metavar="N", help="Study N orders of the classes."),
    ] = None,
    out: Out = None,
    root: Root = None,
    device: Device = "auto",
    keep: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="What to keep: counts|labels|scores|parameters."),
    ] = None,
    evaluate_unseen: Annotated[
        bool,
        typer.Option(
            "--evaluate-unseen",
            help="After every task, also score those to come (forward transfer).",
        ),
    ] = False,
    together: Annotated[
        bool,
        typer.Option(
            "--together/--no-together",
            help="Train runs in lockstep where that is faster.",
        ),
    ] = True,
    probe: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:CLASS",
            help="Your own measurement after every stage; finished runs are only measured.",
        ),
    ] = None,
    detectors: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Novelty detectors to evaluate after every stage."),
    ] = None,
    outside: Annotated[
        str | None,
        typer.Option(
            "--ood",
            metavar="NAME|PATH",
            help="Outside set (never trained on) for tuning detectors.",
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="Tune detectors after the first task, against --ood."),
    ] = False,
    compile: Compile = False,
    deterministic: Deterministic = False,
    exact: Exact = False,
    checkpoint_every: CheckpointEvery = "5m",
    rerun: Rerun = False,
    budget: Budget = None,
    log: Log = None,
    trust: Trust = False,
) -> None:  # fmt: skip
    """Train one or more methods on a stream and show accuracy and forgetting.

    Finished stages are kept: repeat the command, or use engram resume, to continue an
    interrupted run. Exit code 1: all runs diverged.

    DIR repeats recorded runs in another directory and compares the numbers, --label and --seed
    choose some of them. What was recorded (DIR/recipes/*.yaml, DIR/requests/*.yaml) runs as it is.
    """
    from engram.cli import execution
    from engram.cli.console import Request
    from engram.cli.execution import refuse_diverged, run_request, search_request
    from engram.experiments.overrides import set_values

    asked = list[Request]()
    wanted: dict[str, Any] = {
        "data": data, "methods": method or (), "model": model, "stream": stream, "seeds": seeds,
        "seed": seed, "keep": keep, "probes": probe or (), "outside": outside,
        "detectors": execution.detector_specs(detectors, tune), "evaluate_unseen": evaluate_unseen,
        "orders": execution.read_orders(task_orders, class_orders), "limit": limit,
    }  # fmt: skip
    plain: list[dict[str, Any]] = []
    repeated: list[Path] = []
    paths: list[Path | None] = [*recipes] if recipes else [None]
    for path in paths:
        if path is not None and path.is_dir():
            found = list_recorded_runs(path, label or (), trust=trust)
            plain += execution.change_contents(found, **wanted)
            repeated.append(path)
        elif path is not None and Request.is_one(path):
            if any(wanted.values()) or label or assignments:
                raise bad(str(path), "no other values, since a request runs as it is", "some")
            asked.append(_ask_again(Request.read(path), device, together, log))
        else:
            plain += execution.make_contents(recipe=path, columns=label or (), **wanted)
    for assignment in assignments or ():
        set_values(plain, assignment)
    if plain:
        roots = [str(root.absolute())] if root else []
        asked.append(Request(
            recipes=plain, root=roots[0] if roots else None, device=device,
            pool="auto" if together else "serial", compile=compile,
            deterministic=deterministic, exact=exact, checkpoint_every=checkpoint_every,
            log=log or [],
        ))  # fmt: skip
    if repeated and out is None:
        out = Path("runs") / f"{'-'.join(one.resolve().name for one in repeated)}-rerun"
    results = []
    for request in asked:
        if request.search is not None:
            results.append(search_request(request, out, budget=budget))
        else:
            results.append(run_request(request, out, rerun=rerun, budget=budget))
    for path in repeated:
        execution.compare_with_recorded(results[-1], path)
    refuse_diverged(results)


def _ask_again(request: Request, device: str, together: bool, log: Sequence[str] | None) -> Request:
    """Return a recorded request, on another device if one is named."""
    changes: dict[str, Any] = {} if device == "auto" else {"device": device}
    changes |= {} if together else {"pool": "serial"}
    changes |= {} if log is None else {"log": list(log)}
    return replace(request, **changes)


def list_recorded_runs(
    directory: Path, labels: Sequence[str] = (), *, trust: bool = False
) -> list[dict[str, Any]]:
    """List the recipes of a run directory as those of files; of some labels or ids, if given."""
    from engram.cli.execution import allow_own_code

    words = ["run", str(directory), *(word for one in labels for word in ("--label", one))]
    with allow_own_code(words, trust):
        found = [one for request in make_requests(directory) for one in request.recipes]
    known = {str(one["label"]) for one in found}
    for label in labels:
        if label not in known:
            raise unknown("--label", label, known)
    return [one for one in found if not labels or str(one["label"]) in labels]


# ``engram sweep``.


def sweep(
    recipes: Annotated[
        list[Path] | None, typer.Argument(metavar="RECIPE.yaml...", help="Recipe files.")
    ] = None,
    data: DataSet = None,
    label: Label = None,
    method: Methods = None,
    model: Model = None,
    stream: Scenario = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid", "-g", metavar="KEY=V1,V2,...",
            help="Values to run: lr=0.1,0.01. If repeated, every combination.",
        ),
    ] = None,
    pool: Pool = "together",
    workers: Workers = 0,
    address: Address = None,
    assignments: Assignments = None,
    seeds: Seeds = None,
    seed: Seed = None,
    limit: Limit = None,
    out: Out = None,
    root: Root = None,
    device: Device = "auto",
    compile: Compile = False,
    deterministic: Deterministic = False,
    exact: Exact = False,
    checkpoint_every: CheckpointEvery = "5m",
    rerun: Rerun = False,
    budget: Budget = None,
    log: Log = None,
) -> None:  # fmt: skip
    """Run several recipes, or one over a grid of values; equal shapes train in lockstep."""
    from engram.cli import execution
    from engram.cli.console import Request
    from engram.cli.execution import refuse_diverged, run_request
    from engram.errors import bad
    from engram.experiments.overrides import Content, set_values

    check_pool(pool, workers, address)
    if not recipes and data is None:
        raise bad("engram sweep", "a RECIPE.yaml, or --data with a name or path", "neither")
    plain: list[Content] = []
    files: list[Path | None] = [*recipes] if recipes else [None]
    for path in files:
        plain += execution.make_contents(
            recipe=path, data=data, methods=method or (), model=model, stream=stream, seeds=seeds,
            seed=seed, limit=limit, columns=label or (),
        )  # fmt: skip
    for assignment in assignments or ():
        set_values(plain, assignment)
    request = Request(
        recipes=execution.expand_grid(plain, grid or ()),
        root=str(root.absolute()) if root else None,
        device=device,
        pool=pool,
        workers=workers,
        address=address,
        compile=compile,
        deterministic=deterministic,
        exact=exact,
        checkpoint_every=checkpoint_every,
        log=log or [],
    )
    refuse_diverged([run_request(request, out, rerun=rerun, budget=budget)])


# ``engram search``.


def search(
    recipe: RecipeFile = None,
    data: DataSet = None,
    label: Label = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method", "-m", metavar="NAME", autocompletion=options.complete_methods,
            help="Method: a name, your own as module:Class, or A+B.",
        ),
    ] = None,
    model: Model = None,
    stream: Scenario = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--set-range", "-r", metavar="KEY=LOW..HIGH[:log]",
            help="What to vary: lr=1e-4..1e-1:log, memory.total=50..500, optimizer=sgd,adam. "
            "Repeatable.",
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Number of settings to try.")] = 30,
    tasks: Annotated[
        int | None, typer.Option(help="Number of first tasks to train on (default: 3).")
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--select-on", metavar="valid|test",
            help="Rows to choose by; test marks the results.",
        ),
    ] = "valid",
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="Metric to choose by (default: accuracy).")
    ] = None,
    batch: Annotated[
        int, typer.Option(help="Trials per batch (0: up to 32).")
    ] = 0,
    sampler: Annotated[str, typer.Option(metavar="tpe|random", help="Sampler.")] = "tpe",
    search_seed: Annotated[int, typer.Option(help="Seed of the sampler.")] = 0,
    run: Annotated[
        bool, typer.Option("--run", help="Also run the chosen setting on the whole stream.")
    ] = False,
    pool: Pool = "together",
    workers: Workers = 0,
    address: Address = None,
    assignments: Assignments = None,
    seeds: Seeds = None,
    seed: Seed = None,
    limit: Limit = None,
    out: Out = None,
    root: Root = None,
    device: Device = "auto",
    compile: Compile = False,
    deterministic: Deterministic = False,
    exact: Exact = False,
    checkpoint_every: CheckpointEvery = "5m",
    budget: Budget = None,
    log: Log = None,
) -> None:  # fmt: skip
    """Tune hyper-parameters on validation rows of the first tasks.

    Trials are kept: the same command, or engram resume, continues where it stopped, and a larger
    --trials adds trials. Test rows and later tasks are not read.
    """
    from engram.cli import execution
    from engram.cli.console import Request
    from engram.cli.execution import search_request
    from engram.errors import bad
    from engram.experiments.overrides import set_values
    from engram.experiments.search_space import read_ranges

    check_pool(pool, workers, address)
    if recipe is None and data is None:
        raise bad("engram search", "a RECIPE.yaml, or --data with a name or path", "neither")
    read_ranges(ranges or [], "--set-range")
    plain = execution.make_contents(
        recipe=recipe, data=data, methods=[method] if method else (), model=model, stream=stream,
        seeds=seeds, seed=seed, limit=limit, columns=label or (),
    )  # fmt: skip
    for assignment in assignments or ():
        set_values(plain, assignment)
    asked = {
        "ranges": list(ranges or ()), "trials": trials, "tasks": tasks, "on": on, "metric": metric,
        "batch": batch, "sampler": sampler, "seed": search_seed, "run": run,
    }  # fmt: skip
    request = Request(
        recipes=plain, root=str(root.absolute()) if root else None, device=device, pool=pool,
        workers=workers, address=address, compile=compile, deterministic=deterministic,
        exact=exact, checkpoint_every=checkpoint_every, search=asked, log=log or [],
    )  # fmt: skip
    search_request(request, out, budget=budget)


# ``engram resume``.


def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory.")],
    device: Annotated[
        str | None,
        typer.Option(metavar="auto|cpu|cuda", help="Device (default: as before)."),
    ] = None,
    deterministic: Annotated[
        bool | None,
        typer.Option(
            "--deterministic/--no-deterministic",
            help="Bit-identical results on CUDA too (default: as before).",
        ),
    ] = None,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Interval of checkpoints within a task (default: as before)."
        ),
    ] = None,
    address: Address = None,
    budget: Budget = None,
    log: Log = None,
    trust: Trust = False,
) -> None:  # fmt: skip
    """Continue what was interrupted: only what is missing is trained.

    Several commands may have written to the directory; they are continued one by one. If one cannot
    be, a message says so, the others continue, and the exit code is 2.
    """
    from engram.cli.execution import allow_own_code

    if not directory.is_dir():
        raise bad("DIR", "an existing run directory", str(directory))
    how = {
        "device": device, "deterministic": deterministic, "checkpoint_every": checkpoint_every,
        "log": log,
        "address": address,
    }  # fmt: skip
    given: dict[str, Any] = {name: value for name, value in how.items() if value is not None}
    with allow_own_code(["resume", str(directory)], trust):
        _resume(directory, given, budget)


def _resume(directory: Path, how: Mapping[str, Any], budget: str | None) -> None:
    """Everything that was asked of a directory, each by itself."""
    from engram.cli.console import (
        BAD_INPUT,
        Request,
        describe_error,
        is_user_error,
        request_files,
        say,
    )
    from engram.cli.execution import refuse_diverged, run_request, search_request

    asked: Sequence[Any] = request_files(directory) or make_requests(directory)
    results, failures = [], 0
    for one in asked:
        try:
            request = one if isinstance(one, Request) else Request.read(one)
            again = replace(request, **how)
            carry_out = run_request if again.search is None else search_request
            results.append(carry_out(again, directory, same=True, budget=budget))
        except Exception as error:
            if len(asked) == 1 or not is_user_error(error):
                raise
            say(f"engram: {describe_error(error)}", style="red")
            failures += 1
    if failures:
        say(f"{failures} of {len(asked)} requests in {directory} could not be continued")
        raise typer.Exit(BAD_INPUT)
    refuse_diverged(results)


def make_requests(directory: Path) -> list[Request]:
    """The requests that the recipes of a directory amount to, where Python wrote them."""
    from engram.cli.console import Request
    from engram.experiments.changed_recipes import read_recorded_recipes
    from engram.records import RunDirectory

    folder = RunDirectory(directory, create=False)
    roots: dict[str | None, list[dict[str, Any]]] = {}
    orders: dict[str, dict[str, set[int]]] = {}
    for recipe, seed, order in folder.finished_runs():
        orders.setdefault(recipe, {}).setdefault(order, set()).add(seed)
    for name, content in read_recorded_recipes(folder).items():
        plain = _plain_recipe(directory, content)
        root = content["identity"].get("data_root")
        known = list_order_recipes(plain, orders.get(name, {}))
        roots.setdefault(root, []).extend(known)
    if not roots:
        raise RecordError(f"{directory}: contains no recipes; is it a run directory?")
    return [Request(recipes=recipes, root=root) for root, recipes in roots.items()]


def _plain_recipe(directory: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded recipe in plain values, if what it names can be had again."""
    from engram.experiments import Recipe
    from engram.experiments.build_methods import Untrusted

    try:
        recipe = Recipe.of(content)
        recipe.check_data_named()
    except Untrusted:
        raise
    except EngramError as error:
        raise _python_only_error(directory, str(error)) from error
    return recipe.plain()


def list_order_recipes(
    plain: dict[str, Any], begun: Mapping[str, set[int]]
) -> list[dict[str, Any]]:
    """The recipe, and as it was begun in other orders or with other seeds than its file names.

    Examples
    --------
    >>> plain = {"stream": {"data": "digits"}, "seeds": [0], "label": "ER"}
    >>> for one in list_order_recipes(plain, {"": {0, 1}, "t1-0": {0}}):
    ...     print(one["seeds"], one.get("orders"))
    [0] None
    [0, 1] None
    [0] {'task_orders': [[1, 0]], 'class_orders': []}
    """
    from engram.streams.task_orders import ORDER_OPTIONS, order_options, parse_order

    studied = {order: seeds for order, seeds in begun.items() if order[:1] in ("t", "c")
               and order[1:2].isdigit()}  # fmt: skip
    found = [plain]
    once = {name: value for name, value in plain.items() if name != "orders"}
    stream = {k: v for k, v in plain["stream"].items() if k not in ORDER_OPTIONS}
    for order, seeds in sorted(begun.items()):
        if order not in studied:
            section = {**stream, **order_options(order)}
            found.append({**once, "stream": section, "seeds": sorted(seeds)})
    for some in sorted({tuple(sorted(one)) for one in studied.values()}):
        own_orders = [order for order, seeds in studied.items() if seeds == {*some}]
        section = {
            f"{kind}_orders": [
                [*parse_order(one[1:])] for one in sorted(own_orders) if one[0] == kind[0]
            ]
            for kind in ("task", "class")
        }
        found.append({**once, "orders": section, "seeds": list(some)})
    return found


def _python_only_error(directory: Path, why: str) -> RecordError:
    return RecordError(
        f"{directory}: was written from Python, and {why}; to continue it, make the same call "
        f"again with out={str(directory)!r}"
    )


# ``engram demo``: the whole way from data to a report, in under two minutes.


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


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Run directory.")
    ] = Path("runs/demo"),
) -> None:  # fmt: skip
    """Train six methods on handwritten digits in five tasks, three seeds; table and report."""
    from engram.cli import execution, result_display
    from engram.cli.console import Request
    from engram.cli.execution import train_request
    from engram.report import build, from_result

    say("Ten handwritten digits arrive two at a time. How many are still recognised at the end?")
    recipes = [
        {
            "stream": {"data": DATA}, "method": method, "training": dict(TRAINING),
            "seeds": SEEDS, "label": method["name"],
        }
        for method in METHODS
    ]  # fmt: skip
    # Three small runs on a few CPU cores are faster one by one than in lockstep.
    request = Request(recipes=recipes, pool="serial")
    result = train_request(request, execution.build_recipes(recipes), out)
    page = build(from_result(result), out / "report.html", title="Engram demo")
    result_display.print_outcome(result, out, page=page)
    emit("\n" + interpret_result(result))


def interpret_result(result: Result) -> str:
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
