"""Rules for scenarios, functions from data to a stream, and for the views of their streams."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from engram.checks.check_report import BrokenRule, DoesNotApply, require
from engram.checks.equality_rules import random_states
from engram.checks.toy_runs import (
    CLOSE,
    EXACT,
    MODELS,
    all_finite,
    largest_gap,
    make_clouds,
    train_runs,
)
from engram.data import Data
from engram.engine.run_definition import Run
from engram.errors import BadArgument
from engram.methods.finetune import Finetune
from engram.streams import Stream, find_scenario
from engram.streams.input_views import view_from_description

PARTS = ("train", "valid", "post_valid", "test")
ROWS = 12  # of a view that is tried out


@dataclass(frozen=True)
class ScenarioCandidate:
    """A scenario to check: its function or name, with options, on some data."""

    maker: Callable[..., Stream]
    options: Mapping[str, Any] = field(default_factory=dict)
    data: Data = field(default_factory=make_clouds)

    def make(self, **options: Any) -> Stream:
        """Make a stream."""
        return self.maker(self.data, **{**self.options, **options})

    @cached_property
    def stream(self) -> Stream:
        """The stream that the options give."""
        return self.make()


def is_scenario(target: Any) -> bool:
    """Return whether a function takes data, as a scenario does.

    Examples
    --------
    >>> from engram.streams import rotated
    >>> is_scenario(rotated), is_scenario(len)
    (True, False)
    """
    if not inspect.isfunction(target):
        return False
    first = next(iter(inspect.signature(target).parameters.values()), None)
    return first is not None and (first.name == "data" or first.annotation in (Data, "Data"))


def check_makes_a_stream(one: ScenarioCandidate) -> None:
    """It makes a valid stream: rows exist, labels are shown, no test row is trained on."""
    try:
        found: Any = one.make()
    except BadArgument as error:
        raise BrokenRule(str(error)) from error
    require(isinstance(found, Stream), f"it returns {type(found).__name__}, not a Stream")


def check_the_same_again(one: ScenarioCandidate) -> None:
    """Called again with the same arguments it makes the same stream, and no generator is used."""
    before = random_states()
    again = one.make()
    require(random_states() == before, "it uses a global generator: draw with engram.keys")
    require(
        again.fingerprint() == one.stream.fingerprint(),
        "the same arguments make another stream: draw with engram.keys and an option `seed`",
    )


def check_data_stay_as_they_are(one: ScenarioCandidate) -> None:
    """It writes nothing into the data, and its rows are those of the data."""
    kept = replace(one.data, x=torch.as_tensor(one.data.x).clone(), y=one.data.y.clone())
    rows = one.data.train.clone(), one.data.test.clone()
    found = one.make()
    same = torch.equal(torch.as_tensor(one.data.x), torch.as_tensor(kept.x))
    same = same and torch.equal(one.data.y, kept.y)
    require(same, "it writes into the inputs or labels: work on copies, as in dataclasses.replace")
    same = all(
        torch.equal(*both) for both in zip(rows, (one.data.train, one.data.test), strict=True)
    )
    require(same, "it writes into the row numbers of the data: work on copies")
    mine = torch.cat([getattr(task, part) for task in found.tasks for part in PARTS])
    require(bool((mine < len(found.data)).all()), "rows beyond the data")


def check_test_rows_are_the_datas(one: ScenarioCandidate) -> None:
    """No row that the data call test is trained on, and none of its training rows is a test."""
    stream = one.stream
    if stream.data is not one.data and stream.data.fingerprint() != one.data.fingerprint():
        raise DoesNotApply("it makes data of its own")
    for k, task in enumerate(stream.tasks):
        leaked = int(torch.isin(task.train, one.data.test).sum())
        require(not leaked, f"task {k} trains on {leaked} test rows of the data")
        seen = int(torch.isin(task.test, one.data.train).sum())
        require(not seen, f"task {k} is tested on {seen} training rows of the data")


def check_every_task_can_be_judged(one: ScenarioCandidate) -> None:
    """Every task has training and test rows, and so has every class: to train where it opens."""
    data, tested = one.stream.data, torch.cat([task.test for task in one.stream.tasks])
    for k, task in enumerate(one.stream.tasks):
        require(len(task.train) > 0, f"task {k} has no training rows")
        require(len(task.test) > 0, f"task {k} has no test rows")
        for part, rows in (("training rows in it", task.train), ("test rows in any", tested)):
            missing = [c for c in task.new if not bool((data.y[rows] == c).any())]
            names = ", ".join(str(data.classes[c]) for c in missing[:5])
            require(not missing, f"task {k} opens {names}, which has no {part}")


def check_the_seed_decides(one: ScenarioCandidate) -> None:
    """If it takes a seed, other seeds make other streams."""
    if "seed" not in inspect.signature(one.maker).parameters:
        raise DoesNotApply("it takes no seed")
    found = {one.make(seed=seed).fingerprint() for seed in range(4)}
    require(len(found) > 1, "four seeds make one stream: fold the seed into every key")


def check_the_order_counts(one: ScenarioCandidate) -> None:
    """If it takes an order of classes, another order makes another stream of the same classes."""
    if "order" not in inspect.signature(one.maker).parameters:
        raise DoesNotApply("it takes no order")
    wanted = one.stream.order[::-1]
    try:
        found = one.make(order=list(wanted))
    except BadArgument as error:
        raise DoesNotApply(f"its order is not one of classes ({error})") from error
    require(set(found.order) == set(wanted), f"order={list(wanted)} gives other classes")
    require(
        found.fingerprint() != one.stream.fingerprint(), f"order={list(wanted)} changes nothing"
    )


def check_views_are_pure(one: ScenarioCandidate) -> None:
    """A view changes rows one by one, always alike, and its description makes it again."""
    view = one.stream.view
    if view is None:
        raise DoesNotApply("its stream has no view")
    count = len(one.stream)
    x = torch.as_tensor(one.stream.data.gather(one.stream.tasks[0].train[:ROWS])).double()
    stage = torch.arange(len(x)) % count
    kept = x.clone()
    whole = view(x, stage)
    require(torch.equal(x, kept), "the view writes into its inputs")
    require(whole.shape[0] == len(x), f"the view makes {tuple(whole.shape)} of {tuple(x.shape)}")
    require(whole.dtype == x.dtype, f"the view makes {whole.dtype} of {x.dtype}: keep the dtype")
    require(torch.equal(whole, view(x, stage)), "the view gives other rows the second time")
    alone = torch.cat([view(x[k : k + 1], stage[k : k + 1]) for k in range(len(x))])
    require(largest_gap(alone, whole) < CLOSE, "the view mixes rows: transform each by itself")

    def single(row: Tensor, task: Tensor) -> Tensor:
        made: Tensor = view(row[None], task[None])[0]
        return made

    try:
        mapped = torch.func.vmap(single)(x, stage)
    except Exception as error:  # the user's own code
        raise BrokenRule(f"the view cannot be mapped by torch.func.vmap: {error}") from error
    require(largest_gap(mapped, whole) < CLOSE, "the view gives other rows where it is mapped")
    try:
        again = view_from_description(view.describe())
    except Exception as error:
        raise BrokenRule(
            f"view.describe() does not make the view again ({error}): let its kind be "
            "module:Class, and its other values the arguments"
        ) from error
    require(
        again is not None and torch.equal(again(x, stage), whole),
        "view.describe() makes another view: name every value on which it depends",
    )


def check_trains(one: ScenarioCandidate) -> None:
    """An epoch of finetuning runs through all tasks, alone and beside another seed alike."""
    training = replace(EXACT, epochs=1)
    runs = [
        Run(stream=one.stream, method=Finetune(), model=MODELS["plain"], training=training, seed=s)
        for s in (0, 1)
    ]
    alone, together = train_runs(runs[:1]), train_runs(runs, together=True)
    require(len(alone) == len(one.stream), "the run ended before the last task")
    for key, after in alone.items():
        require(all_finite(after.vector), f"weights are not finite after task {key[1]}")
        away = largest_gap(together[key].vector, after.vector)
        require(away < CLOSE, f"task {key[1]} ends {away:.1e} apart beside another seed")


SCENARIO_CHECKS: tuple[Callable[[ScenarioCandidate], None], ...] = (
    check_makes_a_stream,
    check_the_same_again,
    check_data_stay_as_they_are,
    check_test_rows_are_the_datas,
    check_every_task_can_be_judged,
    check_the_seed_decides,
    check_the_order_counts,
    check_views_are_pure,
    check_trains,
)


def make_scenario(target: Any, data: Data | None, options: Mapping[str, Any]) -> ScenarioCandidate:
    """Make a candidate of a scenario or its name."""
    maker = find_scenario(target) if isinstance(target, str) else target
    given = {} if data is None else {"data": data}
    return ScenarioCandidate(maker, dict(options), **given)
