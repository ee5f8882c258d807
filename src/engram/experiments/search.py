"""`engram.search`: choose hyper-parameters on validation rows of the first tasks; `Search`, its
result, with the trials and their file.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engram.data import Data
from engram.engine.run_definition import check_exemplars
from engram.errors import (
    BadArgument,
    EngramError,
    RecordError,
    bad,
    check_choice,
    check_int,
    plural,
)
from engram.experiments import Callback, Plan, Recipe, execute
from engram.experiments.build_methods import build_method, method_label, plain_method
from engram.experiments.callbacks import StageHook, make_callback
from engram.experiments.changed_recipes import read_recorded_recipes
from engram.experiments.experiment_id import describe_stream
from engram.experiments.experiment_id import short_hash as hashed
from engram.experiments.overrides import expand_method, name_option_in_errors, set_key_in_all
from engram.experiments.plan import Planner, RecipePlanner
from engram.experiments.pools import find_pool
from engram.experiments.pools.pool import Work
from engram.experiments.recipe import Experiment, read_recipe
from engram.experiments.search_space import (
    SAMPLERS,
    Range,
    batch_size,
    has_optuna,
    read_ranges,
    require_optuna,
    spread_values,
    suggest,
)
from engram.html_repr import escape, html_table, join_blocks
from engram.io import read_json, write_json
from engram.methods.method import Method
from engram.records import Result, RunDirectory
from engram.records.display_names import ON_TEST
from engram.records.prediction_scoring import average_name
from engram.records.reading import combine, read
from engram.records.run_arrays import reduce_stages
from engram.renamed import accept_old_arguments
from engram.streams import make_search_stream
from engram.streams.incremental_streams import class_incremental
from engram.streams.stream import Stream
from engram.streams.validation_streams import SEARCH_ON

if TYPE_CHECKING:
    import pandas as pd

IN_PROCESS = ("together", "auto", "serial")  # pools that need no recipe to send elsewhere


@accept_old_arguments(again="rerun")
def search(
    what: Recipe | Mapping[str, Any] | str | Path | Stream | Data,
    ranges: Any,
    *,
    trials: int = 30,
    tasks: int | None = None,
    on: str = "valid",
    metric: str | None = None,
    batch: int = 0,
    sampler: str = "tpe",
    seed: int = 0,
    out: str | Path | None = None,
    device: str = "auto",
    pool: str = "together",
    workers: int = 0,
    address: str | None = None,
    data: str | None = None,
    compile: bool = False,
    deterministic: bool = False,
    exact: bool = False,
    checkpoint_every: float | str = "5m",
    callback: Callback | StageHook | str | None = None,
    deadline: float | None = None,
    rerun: bool = False,
    before: Callable[[], object] | None = None,
    **experiment: Any,
) -> Search:
    """Tune hyper-parameters on the validation rows of the first tasks.

    Trials are ordinary runs: those of equal shapes train in lockstep, and those that are finished
    in `out` are not run again, so the same call continues an interrupted search, or extends it
    with more `trials`. Test rows and later tasks are never read.

    Parameters
    ----------
    what
        A recipe (or its file, or a mapping), or a stream or data together with the arguments of
        `engram.run`: method, model, seeds, epochs, ...
    ranges
        What to vary, as ``--set`` names it, in ``LOW..HIGH``, ``LOW..HIGH:log`` or a list:
        ``{"lr": "1e-4..1e-1:log", "optimizer": ["sgd", "adam"]}``.
    tasks
        Number of first tasks to train on (None: three).
    on
        ``valid``; ``test`` chooses by test rows, which all results then state.
    metric
        Metric to select by (None: average accuracy, or the score of label sets).
    batch
        Trials proposed at once, which train together (0: up to 32, evenly). The first are spread
        over the full ranges, later ones are proposed by Optuna (extra ``search``).
    sampler, seed
        ``tpe`` or ``random``, and its seed.
    out, device, pool, workers, address, data, compile, deterministic, exact,
    checkpoint_every, deadline, rerun
        As in `engram.sweep`.
    before
        Called after all checks, before the first trial is trained.

    Examples
    --------
    >>> import engram
    >>> stream = engram.class_incremental(engram.load("blobs"), valid=0.2)
    >>> found = engram.search(stream, {"strength": "1..1e4:log"}, method="EWC", trials=3, tasks=2)
    >>> [one.values["strength"] for one in found.trials], found.chosen["strength"] > 0
    ([1.0, 100.0, 10000.0], True)
    """
    check_choice("on", on, SEARCH_ON)
    check_choice("sampler", sampler, SAMPLERS)
    size = batch_size(check_int("trials", trials, 1), check_int("batch", batch))
    subject = make_subject(what, experiment, tasks=tasks, on=on, root=data)
    varied = tuple(subject.check(one) for one in read_ranges(ranges))
    if size < trials or sampler != "tpe":
        require_optuna()
    train = find_pool(pool)
    if subject.stream is not None and pool not in IN_PROCESS:
        raise bad("pool", f"one of {', '.join(IN_PROCESS)} for a stream in memory", pool)

    def pooled(planned: Sequence[Sequence[Plan]], recipes: Sequence[Recipe]) -> Result:
        return train(Work(
            recipes=recipes, planned=planned, out=out, device=device, data=data, workers=workers,
            address=address,
            compile=compile, deterministic=deterministic, exact=exact,
            checkpoint_every=checkpoint_every,
            callback=make_callback(callback), deadline=deadline, rerun=rerun,
        ))  # fmt: skip

    going = _SearchLoop(
        subject=subject,
        ranges=varied,
        metric=metric,
        sampler=sampler,
        seed=check_int("seed", seed),
        out=None if out is None else Path(out),
        train=pooled,
    )
    going.check()
    if before is not None:
        before()
    return going.until(trials, size)


@dataclass(kw_only=True)
class _SearchLoop:
    """A search in progress."""

    subject: SearchSubject
    ranges: tuple[Range, ...]
    metric: str | None
    sampler: str
    seed: int
    out: Path | None
    train: Callable[[Sequence[Sequence[Plan]], Sequence[Recipe]], Result]
    trials: list[Trial] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    def check(self) -> None:
        """Raise if the directory or the experiment is unsuitable."""
        if self.out is not None and self.out.is_dir():
            read_recorded_recipes(RunDirectory(self.out, create=False))
        _, plans = self.subject.trial({})
        check_exemplars(plans[0].run)

    def until(self, wanted: int, size: int) -> Search:
        """Run batches of trials until there are `wanted` trials, or the deadline has passed."""
        began, file = time.monotonic(), self._file()
        batch, before = file.read()
        if not batch:
            batch = self._next(min(size, wanted))
        while batch:
            made = [self.subject.trial(one.values) for one in batch]
            planned = [plans for _, plans in made]
            named = [
                replace(one, recipe=plans[0].recipe, label=plans[0].label)
                for one, plans in zip(batch, planned, strict=True)
            ]
            file.write([*self.trials, *named], before)
            result = self.train(planned, [one for one, _ in made if isinstance(one, Recipe)])
            self._add(named, result)
            file.write(self.trials, before + time.monotonic() - began, metric=self.metric)
            if not all(one.is_finished for one in self.trials):
                break  # no time left
            batch = self._next(min(size, wanted - len(self.trials)))
        found = Search(
            ranges=self.ranges, trials=tuple(self.trials), metric=str(self.metric),
            tasks=self.subject.tasks, on=self.subject.on, result=self._result(),
            seconds=before + time.monotonic() - began, subject=self.subject, out=self.out,
        )  # fmt: skip
        if found.complete and any(one.value is not None for one in self.trials):
            file.write(self.trials, found.seconds, metric=self.metric, chosen=found.chosen)
        return found

    def _file(self) -> TrialFile:
        """Open the trial file of this search; its name depends on the question."""
        _, plans = self.subject.trial({})
        question = {
            "recipe": plans[0].recipe, "seeds": [plan.run.seed for plan in plans],
            "ranges": {one.key: one.plain() for one in self.ranges}, "tasks": self.subject.tasks,
            "on": self.subject.on, "sampler": self.sampler, "seed": self.seed,
        }  # fmt: skip
        return TrialFile(self.out, hashed({**question, "metric": self.metric}), question)

    def _add(self, batch: Sequence[Trial], result: Result) -> None:
        if self.metric is None:
            self.metric = average_name(result.figures[0])
        self.trials += add_results(batch, result, self.metric)
        self.results.append(result)

    def _result(self) -> Result:
        """Return the runs of all trials; a directory is read once for all of them."""
        runs = [run for one in self.results for run in one.runs]
        return combine(self.results) if self.out is None else read(self.out).of_runs(runs)

    def _next(self, count: int) -> list[Trial]:
        """Propose further trials; none if all values were tried."""
        if count < 1:
            return []
        if not self.trials and self.sampler == "tpe":
            values = spread_values(self.ranges, count, self.seed)
        elif has_optuna():
            sign = 1.0 if self.metric not in MINIMISED else -1.0
            told = [(t.values, None if t.value is None else sign * t.value) for t in self.trials]
            values = suggest(self.ranges, told, count, seed=self.seed, sampler=self.sampler)
        else:
            return []
        number, batch = len(self.trials), max((one.batch for one in self.trials), default=-1) + 1
        return [Trial(number=number + i, batch=batch, values=v) for i, v in enumerate(values)]


# The subject of a search: an experiment in which some values vary.


# not hyper-parameters
NOT_SEARCHED = ("seeds", "keep", "evaluate_unseen", "average", "label", "search")
NOT_IN_TRIALS = ("probes", "detectors", "outside")  # used with the chosen setting only
FIRST_TASKS = 3


class SearchSubject:
    """An experiment over a stream, cut for the search to its first tasks and validation rows.

    `content` is a recipe in plain values, without its stream section if `stream` is given.
    """

    def __init__(
        self, content: Mapping[str, Any], stream: Stream | None = None, *,
        tasks: int | None = None, on: str = "valid", root: str | None = None,
    ) -> None:  # fmt: skip
        self.content = {**content, "method": _method_mapping(content.get("method", "Finetune"))}
        self.stream, self.root, self.on = stream, root, on
        self._planner, self._recipes = Planner(root), RecipePlanner(root)
        count = len(stream if stream is not None else self._whole_stream())
        self.tasks = min(FIRST_TASKS, count) if tasks is None else tasks
        self._short = (
            None if stream is None else make_search_stream(stream, tasks=self.tasks, on=on)
        )

    def _whole_stream(self) -> Stream:
        return self._recipes.plan(Recipe.of(self._with({}, trial=True)))[0].run.stream

    def experiment(self, values: Mapping[str, Any], label: str = "") -> Experiment:
        """Return the experiment with these values over the whole stream, a `Recipe` if possible."""
        made = self._with(values, trial=False)
        made["label"] = label or made.get("label", "")
        return Recipe.of(made) if self.stream is None else Experiment.of(made)

    def trial(self, values: Mapping[str, Any]) -> tuple[Experiment, list[Plan]]:
        """Return the experiment of a trial, over the first tasks, and its plans."""
        made = self._with(values, trial=True)
        base = str(made.get("label") or _method_title(made["method"]))
        made["label"] = " ".join(
            [base, *(f"{last_part(k)}={format_value(v)}" for k, v in values.items())]
        )
        if self._short is not None:
            one = Experiment.of(made)
            return one, self._planner.plans(one, self._short)
        recipe = Recipe.of(made)
        cut = {**recipe.stream, "search": {"tasks": self.tasks, "on": self.on}}
        recipe = recipe.change(stream=cut)
        return recipe, self._recipes.plan(recipe)

    def check(self, one: Range) -> Range:
        """Check that the ends of a range are valid; make it whole if the field needs whole numbers.

        The field itself decides whether it takes fractions.
        """
        if one.key.removeprefix("stream.").split(".")[0] in (*NOT_SEARCHED, *NOT_IN_TRIALS):
            raise bad("ranges", "fields of the method, model, training or stream", one.key)
        for value in one.ends:
            self.experiment({one.key: value})
        if one.choices or one.whole or one.low % 1 or one.high % 1:
            return one
        try:
            self.experiment({one.key: one.low + 0.5})
        except BadArgument:
            return Range(key=one.key, low=one.low, high=one.high, log=one.log, whole=True)
        return one

    def _with(self, values: Mapping[str, Any], *, trial: bool) -> dict[str, Any]:
        made = {
            name: copy.deepcopy(part) if isinstance(part, (dict, list)) else part
            for name, part in self.content.items()
            if not (trial and name in NOT_IN_TRIALS)
        }
        if trial:
            made |= {"keep": "counts", "evaluate_unseen": False}  # the choice needs neither
        for key, value in values.items():
            with name_option_in_errors(f"range of {key}"):
                set_key_in_all([made], key, copy.deepcopy(value))
        if self.stream is not None and "stream" in made:
            raise bad("ranges", "no option of the stream, which is given as it is", list(values))
        return made


def last_part(key: str) -> str:
    """Return the last part of a key.

    Examples
    --------
    >>> last_part("EWC.strength")
    'strength'
    """
    return key.rsplit(".", 1)[-1]


def format_value(value: Any) -> str:
    """Format a value for a label."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def make_subject(
    what: Any, given: Mapping[str, Any], *, tasks: int | None, on: str, root: str | None
) -> SearchSubject:
    """Make the subject of a search from a recipe, or a stream and arguments of `engram.run`."""
    cut: dict[str, Any] = {"tasks": tasks, "on": on, "root": root}
    if isinstance(what, Data):
        what = class_incremental(what)
    if isinstance(what, Stream):
        if "search" in (what.origin.options if what.origin else ()):
            raise bad("stream", "a whole stream, the search takes its first tasks", what.name)
        named = ("method", "model", *NOT_SEARCHED[:-1], *NOT_IN_TRIALS)
        content = {k: v for k, v in given.items() if k in named}
        rest = {k: v for k, v in given.items() if k not in named}
        return SearchSubject({**content, "training": rest}, what, **cut)
    if given:
        raise bad(", ".join(given), "no value with a recipe, which already sets it", "something")
    if isinstance(what, Recipe):
        own = what.label != method_label(what.method)
        what = {k: v for k, v in what.plain().items() if own or k != "label"}
    elif isinstance(what, (str, Path)):
        what = read_recipe(what)
    elif not isinstance(what, Mapping):
        raise bad("what", "a recipe, its file, a stream or data", type(what).__name__)
    section = what.get("stream")
    if isinstance(section, Mapping) and section.get("search") is not None:
        raise bad("recipe", "a whole stream, the search takes its first tasks", "stream.search")
    return SearchSubject(what, **cut)


def _method_title(method: Mapping[str, Any]) -> str:
    """Return the name of a method in labels, without its values."""
    parts = [_method_title(part) for part in method.get("parts", ())]
    return " + ".join(parts) or str(method["name"]).rsplit(":", 1)[-1]


def _method_mapping(method: Any) -> Any:
    """Convert a method to a mapping in which values can be set."""
    if not isinstance(method, Method):
        return expand_method(method)
    plain = plain_method(method)
    try:
        same = build_method(plain) == method
    except BadArgument:
        same = False
    if not same:
        raise bad("method", "one of a class that can be imported, and of plain values", method)
    return plain


# The result of a search.


MINIMISED = ("forgetting", "intransigence", "forgetting_bound")


@dataclass(frozen=True, eq=False, kw_only=True)
class Search:
    """Result of a search: the trials, the best of them, and their cost.

    Parameters
    ----------
    trials
        All trials in the order in which they were proposed.
    metric
        The metric by which they are compared, after the last of the first `tasks`.
    on
        The rows on which the metric is computed: ``valid`` or ``test``.
    result
        The runs of all trials, evaluated on validation rows: its accuracies are no test
        accuracies, unless `on` is ``test``.
    seconds
        Wall-clock time of the search, over all calls.
    """

    ranges: tuple[Range, ...]
    trials: tuple[Trial, ...]
    metric: str
    tasks: int
    on: str
    result: Result
    seconds: float
    subject: SearchSubject = field(repr=False)
    wanted: int = 0
    out: Path | None = None

    @property
    def maximize(self) -> bool:
        """Whether a higher value of the metric is better."""
        return self.metric not in MINIMISED

    @property
    def complete(self) -> bool:
        """Whether every trial is finished."""
        return all(one.is_finished for one in self.trials)

    @property
    def best(self) -> Trial:
        """The trial with the best value, the first of equal ones."""
        known = [one for one in self.trials if one.value is not None]
        if not known:
            raise EngramError("no trial of the search succeeded, so none can be chosen")
        sign = 1 if self.maximize else -1
        return max(known, key=lambda one: (sign * (one.value or 0.0), -one.number))

    @property
    def chosen(self) -> dict[str, Any]:
        """The values of the best trial."""
        return dict(self.best.values)

    @property
    def recipe(self) -> Recipe | None:
        """The recipe with the chosen values, over the whole stream; None for a stream in memory.

        It trains on the validation rows too, unless something else reads them (early stopping,
        detectors), and tells the search and its cost.
        """
        made = self._experiment()
        return made if isinstance(made, Recipe) else None

    def _experiment(self) -> Experiment:
        """Return the chosen experiment, a recipe if possible."""
        made = self.subject.experiment(self.chosen, self._label())
        facts = {
            **self.cost, "seconds": round(self.seconds, 1),
            "run_seconds": round(self.cost["run_seconds"], 1), "metric": self.metric,
            "on": self.on, "tasks": self.tasks, "ranges": {x.key: x.plain() for x in self.ranges},
        }  # fmt: skip
        made = replace(made, tuning=facts)
        if isinstance(made, Recipe) and not _reads_validation(made):
            section = {k: v for k, v in made.stream.items() if k != "valid"}
            made = replace(made, stream=section)
        return made

    def _label(self) -> str:
        if self.on != "test":
            return ""
        return f"{self.best.label}, {ON_TEST}"  # its numbers are biased

    def run(self, *, out: str | Path | None = None, **how: Any) -> Result:
        """Run the chosen setting on the whole stream, evaluated on its test rows.

        `how` as in `engram.run`: device, together, compile, deterministic, exact,
        checkpoint_every, callback, rerun.
        """
        made = self._experiment()
        if isinstance(made, Recipe):
            plans = RecipePlanner(self.subject.root).plan(made)
        else:
            assert self.subject.stream is not None
            stream = self.subject.stream
            stream = stream if _reads_validation(made) else _train_on_validation(stream)
            plans = Planner(self.subject.root).plans(made, stream)
        return execute(plans, out=out, **how).result()

    def table(self) -> pd.DataFrame:
        """Tabulate the trials: values, metric and cost."""
        import pandas as pd

        rows = [
            {
                "trial": one.number, **one.values, self.metric: one.value, "std": one.std,
                "diverged": one.diverged, "seconds": one.seconds, "steps": one.steps,
            }
            for one in self.trials
        ]  # fmt: skip
        return pd.DataFrame(rows).set_index("trial")

    def curve(self, key: str) -> pd.DataFrame:
        """Tabulate the metric against one of the values, sorted by it."""
        found: pd.DataFrame = self.table()[[key, self.metric, "std"]].sort_values(key)
        return found

    @property
    def cost(self) -> Mapping[str, float]:
        """Return numbers of trials, runs and steps, seconds of training, and wall-clock seconds."""
        return {
            "trials": len(self.trials), "runs": sum(one.runs for one in self.trials),
            "steps": sum(one.steps for one in self.trials),
            "run_seconds": sum(one.seconds for one in self.trials), "seconds": self.seconds,
        }  # fmt: skip

    def _equals(self) -> list[str]:
        """Describe the trials exactly as good as the best, of which the first is chosen."""
        ended = sum(one.value is not None for one in self.trials)
        equal = sum(one.value == self.best.value for one in self.trials)
        if equal == ended > 1:
            return [f"  all {ended} trials are equally good: what was varied makes no difference"]
        return [f"  {equal} of {ended} trials are equally good; the first one is chosen"] * (
            equal > 1
        )

    def __str__(self) -> str:
        rows = "TEST ROWS" if self.on == "test" else "validation rows"
        lines = [
            f"Search: {plural(len(self.trials), 'trial')} of {', '.join(map(str, self.ranges))}",
            f"  judged by {self.metric} on {rows} of the first {self.tasks} tasks",
        ]
        lost = sum(one.diverged > 0 for one in self.trials)
        open_ = sum(not one.is_finished for one in self.trials)
        lines += [f"  {lost} trials diverged"] * bool(lost)
        lines += [f"  {open_} trials are not finished"] * bool(open_)
        if any(one.value is not None for one in self.trials):
            best = self.best
            values = ", ".join(f"{key}={format_value(value)}" for key, value in best.values.items())
            spread = "" if best.std is None else f" ± {best.std:.3f}"
            lines.append(f"  chosen: {values} ({best.value:.3f}{spread})")
            lines += self._equals()
        cost = self.cost
        lines.append(
            f"  cost: {cost['runs']} runs, {cost['steps']:,} steps, {cost['run_seconds']:.1f} "
            f"seconds of training, {cost['seconds']:.1f} on the clock"
        )
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Show the summary, and the trials, the chosen one marked."""
        title, *lines = (line.strip() for line in str(self).splitlines())
        keys = list(dict.fromkeys(key for one in self.trials for key in one.values))
        chosen = self.best.number if any(one.value is not None for one in self.trials) else None
        rows = [
            [one.number, *(format_value(one.values.get(key, "-")) for key in keys),
             _outcome(one), one.steps, f"{one.seconds:.1f}",
             "chosen" if one.number == chosen else ""]
            for one in self.trials
        ]  # fmt: skip
        items = "".join(f"<li>{escape(line)}</li>" for line in lines)
        titles = ["trial", *keys, self.metric, "steps", "seconds", ""]
        return join_blocks(f"<p>{escape(title)}</p><ul>{items}</ul>", html_table(titles, rows))


def _outcome(trial: Trial) -> str:
    """Format the value of a trial with its spread, or say why there is none."""
    if trial.value is None:
        return "diverged" if trial.diverged else "not finished"
    return f"{trial.value:.3f}" + ("" if trial.std is None else f" ± {trial.std:.3f}")


def _reads_validation(one: Experiment) -> bool:
    """Whether training or a probe reads validation rows, so that they must stay apart."""
    return one.training.validates or bool(one.probes)


def _train_on_validation(stream: Stream) -> Stream:
    """Return the stream with the share of its training rows that was held out for the search."""
    if stream.origin is None or not stream.origin.options.get("valid"):
        return stream
    section = {k: v for k, v in describe_stream(stream).items() if k != "valid"}
    return Recipe.of({"stream": section, "method": "Finetune"}).build_stream(stream.data)


# Trials, and their file in a run directory.


FOLDER = "searches"
FORMAT = "engram-search-1"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Values that were tried, with the outcome.

    Parameters
    ----------
    value, std
        The metric, mean and standard deviation over seeds; no value if a run diverged or has not
        reached its last task.
    recipe
        The id under which its runs are recorded.
    """

    number: int
    batch: int
    values: dict[str, Any]
    recipe: str = ""
    label: str = ""
    value: float | None = None
    std: float | None = None
    runs: int = 0
    diverged: int = 0
    seconds: float = 0.0
    steps: int = 0

    @property
    def is_finished(self) -> bool:
        """Whether the trial has nothing left to train."""
        return self.value is not None or self.diverged > 0


def add_results(trials: Sequence[Trial], result: Result, metric: str) -> list[Trial]:
    """Return the trials with their outcomes taken from a result."""
    values, broken = result.metric(metric), set(result.diverged)
    frame, arranged = result._frame, result._arranged
    seconds, steps = (reduce_stages(frame, arranged, name, "sum") for name in ("seconds", "steps"))
    lost = np.array([run in broken for run in result.runs], dtype=bool)
    owner = np.array([run.recipe for run in result.runs], dtype=object)
    found = []
    for one in trials:
        mine = owner == one.recipe
        own, runs = values[mine], int(mine.sum())
        whole = runs > 0 and not np.isnan(own).any() and not lost[mine].any()
        found.append(replace(
            one, runs=runs, diverged=int(lost[mine].sum()),
            value=float(own.mean()) if whole else None,
            std=float(own.std(ddof=1)) if whole and runs > 1 else None,
            seconds=float(np.nansum(seconds[mine])), steps=int(np.nansum(steps[mine])),
        ))  # fmt: skip
    return found


class TrialFile:
    """The trials of a search, stored in its run directory; without one, in memory."""

    def __init__(self, out: Path | None, key: str, question: Mapping[str, Any]) -> None:
        self.path = None if out is None else out / FOLDER / f"{key}.json"
        self.question = dict(question)

    def read(self) -> tuple[list[Trial], float]:
        """Read the trials so far and the seconds that they took."""
        if self.path is None or not self.path.is_file():
            return [], 0.0
        content = read_json(self.path)
        if not isinstance(content, Mapping) or content.get("format") != FORMAT:
            raise RecordError(f"{self.path}: not a search of this version")
        try:
            return [Trial(**one) for one in content["trials"]], float(content["seconds"])
        except (KeyError, TypeError, ValueError) as problem:
            raise RecordError(f"{self.path}: not a valid search ({problem})") from problem

    def write(self, trials: Sequence[Trial], seconds: float, **found: Any) -> None:
        """Write the trials, the seconds and further facts."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT, **self.question, **found, "seconds": round(seconds, 3),
            "trials": [asdict(one) for one in trials],
        }  # fmt: skip
        write_json(self.path, content)
