"""`engram.search`: choose hyper-parameters on validation rows of the first tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engram.data import Data
from engram.engine.run import check_exemplars
from engram.errors import bad, choose, whole
from engram.pools import find_pool
from engram.pools.base import Work
from engram.recipes import Callback, Plan, Recipe
from engram.recipes.changes import recorded
from engram.recipes.identity import short as hashed
from engram.records import Result, RunDirectory
from engram.records.judging import average_name
from engram.records.reading import combine, read
from engram.streams.core import Stream
from engram.streams.tuning import SEARCH_ON
from engram.tuning.found import MINIMISED, Search
from engram.tuning.ranges import Range, ranges_of
from engram.tuning.sampling import (
    SAMPLERS,
    batch_size,
    has_optuna,
    need_optuna,
    spread,
    suggest,
)
from engram.tuning.subject import Subject, subject_of
from engram.tuning.trials import Trial, TrialFile, measured

IN_PROCESS = ("together", "auto", "serial")  # pools that need no recipe to send elsewhere


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
    checkpoint_every: float | str = "5m",
    callback: Callback | None = None,
    deadline: float | None = None,
    again: bool = False,
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
    out, device, pool, workers, address, data, compile, deterministic, checkpoint_every, deadline,
    again
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
    choose("on", on, SEARCH_ON)
    choose("sampler", sampler, SAMPLERS)
    size = batch_size(whole("trials", trials, 1), whole("batch", batch))
    subject = subject_of(what, experiment, tasks=tasks, on=on, root=data)
    varied = tuple(subject.check(one) for one in ranges_of(ranges))
    if size < trials or sampler != "tpe":
        need_optuna()
    train = find_pool(pool)
    if subject.stream is not None and pool not in IN_PROCESS:
        raise bad("pool", f"one of {', '.join(IN_PROCESS)} for a stream in memory", pool)

    def pooled(planned: Sequence[Sequence[Plan]], recipes: Sequence[Recipe]) -> Result:
        return train(Work(
            recipes=recipes, planned=planned, out=out, device=device, data=data, workers=workers,
            address=address,
            compile=compile, deterministic=deterministic, checkpoint_every=checkpoint_every,
            callback=callback, deadline=deadline, again=again,
        ))  # fmt: skip

    going = _Going(
        subject=subject, ranges=varied, metric=metric, sampler=sampler, seed=whole("seed", seed),
        out=None if out is None else Path(out), train=pooled,
    )  # fmt: skip
    going.check()
    if before is not None:
        before()
    return going.until(trials, size)


@dataclass(kw_only=True)
class _Going:
    """A search that is going on."""

    subject: Subject
    ranges: tuple[Range, ...]
    metric: str | None
    sampler: str
    seed: int
    out: Path | None
    train: Callable[[Sequence[Sequence[Plan]], Sequence[Recipe]], Result]
    trials: list[Trial] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)

    def check(self) -> None:
        """Complain about a directory or an experiment that will not do."""
        if self.out is not None and self.out.is_dir():
            recorded(RunDirectory(self.out, create=False))
        _, plans = self.subject.trial({})
        check_exemplars(plans[0].run)

    def until(self, wanted: int, size: int) -> Search:
        """Go on until so many trials are there, or there is no time left."""
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
            if not all(one.ended for one in self.trials):
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
        """The file of this search: another question has another."""
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
        self.trials += measured(batch, result, self.metric)
        self.results.append(result)

    def _result(self) -> Result:
        """The runs of all trials; a directory is read once, for its files are about all of them."""
        runs = [run for one in self.results for run in one.runs]
        return combine(self.results) if self.out is None else read(self.out).of_runs(runs)

    def _next(self, count: int) -> list[Trial]:
        """Further trials; none where enough are there, or all values were tried."""
        if count < 1:
            return []
        if not self.trials and self.sampler == "tpe":
            values = spread(self.ranges, count, self.seed)
        elif has_optuna():
            sign = 1.0 if self.metric not in MINIMISED else -1.0
            told = [(t.values, None if t.value is None else sign * t.value) for t in self.trials]
            values = suggest(self.ranges, told, count, seed=self.seed, sampler=self.sampler)
        else:
            return []
        number, batch = len(self.trials), max((one.batch for one in self.trials), default=-1) + 1
        return [Trial(number=number + i, batch=batch, values=v) for i, v in enumerate(values)]
