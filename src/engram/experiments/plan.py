"""`Plan`, one run with the names under which it is recorded, and the planners that make plans."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from engram.data import Data
from engram.engine.run_definition import Run
from engram.experiments.build_probes import key_probes, plain_probe
from engram.experiments.experiment_id import Identity, describe_order, identify
from engram.experiments.plain_values import to_plain
from engram.experiments.recipe import (
    Experiment,
    OODDataCache,
    Recipe,
    check_identity,
    plain_ood_section,
)
from engram.models.user_networks import is_built
from engram.probes import Probe
from engram.probes.ood_data import OODData
from engram.records.prediction_scoring import check_average
from engram.streams.stream import Stream
from engram.streams.task_orders import (
    ORDER_OPTIONS,
    all_task_orders,
    order_name,
    random_class_orders,
    reorder,
)

SHARED_WEIGHTS_NOTE = (
    "model: all {} seeds begin with the weights of the network that was given; seeds decide its "
    "head and what is drawn in training. Its class, or a factory, draws weights for each seed"
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """One run and the names under which its numbers are recorded.

    `until` is the number of stages to train, 0 for all; a later plan of the same run may go on.
    """

    run: Run
    content: Mapping[str, Any]  # the recipe as plain values
    recipe: str  # its id
    label: str
    order: str = ""
    keep: str = "scores"
    evaluate_unseen: bool = False
    average: str = "micro"
    probes: Mapping[str, Probe] = field(default_factory=dict)  # by name and hash of their source
    outside: OODData | None = None
    until: int = 0

    @property
    def stages(self) -> int:
        """The number of stages to train."""
        whole = len(self.run.stream)
        return min(self.until or whole, whole)

    @cached_property  # used at every step and stage of thousands of runs
    def key(self) -> tuple[str, int, str]:
        return self.recipe, self.run.seed, self.order


class Planner:
    """Makes plans; parts shared by experiments are identified once.

    Use it for one call only, since data and code may change between calls.

    Examples
    --------
    >>> from engram import class_incremental, load
    >>> made = Experiment.of({"method": "ER", "seeds": 2})
    >>> [plan.run.seed for plan in Planner().plans(made, class_incremental(load("blobs")))]
    [0, 1]
    """

    def __init__(self, root: str | None = None) -> None:
        self._outside = OODDataCache(root)
        self._known: dict[Any, Identity] = {}
        self._alive: list[Any] = []  # keeps objects alive, so that their ids stay unique

    def plans(self, one: Experiment, stream: Stream) -> list[Plan]:
        """Make one plan per seed; for a study, per order and seed.

        The plans of a study share one id: the recipe's own, unless that has an order, to which
        those of the study are relative.
        """
        check_average(one.average, sets=stream.labels == "set")
        if len(one.seeds) > 1 and is_built(one.model):
            warnings.warn(SHARED_WEIGHTS_NOTE.format(len(one.seeds)), stacklevel=3)
        own = describe_order(stream)
        section = one.orders if isinstance(one, Recipe) else None
        orders = None if section is None else study_streams(stream, section)
        identity = self._identity(one, stream, "" if orders is None else own)
        kept: dict[str, Any] = {"seeds": list(one.seeds), "keep": one.keep, "label": one.label}
        if one.evaluate_unseen:
            kept["evaluate_unseen"] = True
        if one.tuning is not None:
            kept["tuning"] = to_plain(one.tuning)
        if section is not None:
            kept["orders"] = dict(section)
        if one.probes:
            kept["probes"] = [plain_probe(probe) for probe in one.probes]
        outside = self._outside.find(one.outside, stream, one.probes)
        if outside is not None:
            kept["outside"] = plain_ood_section(one.outside)
        probes = key_probes(one.probes, outside)
        features = any("features" in probe.needs for probe in one.probes)
        unseen = one.evaluate_unseen or any("unseen" in probe.needs for probe in one.probes)
        content = {**identity.content, **kept}
        return [
            Plan(
                run=Run(stream=ordered, method=one.method, model=one.model, training=one.training,
                        seed=seed, features=features, unseen=unseen),
                content=content, recipe=identity.id, label=one.label, order=order, keep=one.keep,
                evaluate_unseen=one.evaluate_unseen,
                average=one.average, probes=probes, outside=outside,
            )
            for order, ordered in ({own: stream} if orders is None else orders).items()
            for seed in one.seeds
        ]  # fmt: skip

    def _identity(self, one: Experiment, stream: Stream, counted_from: str) -> Identity:
        """Identify an experiment over a stream."""
        parts = (one.method, one.model, one.training)
        made = stream.origin
        options = {} if made is None else made.options
        about = {k: v for k, v in options.items() if k not in ORDER_OPTIONS}
        key = (
            *map(id, parts), one.average, counted_from, stream.data.fingerprint(),
            id(stream) if made is None else (made.kind, repr(to_plain(about))),
        )  # fmt: skip
        if key not in self._known:
            self._alive += [*parts, stream]
            self._known[key] = identify(
                stream, method=one.method, model=one.model, training=one.training,
                average=one.average, counted_from=counted_from,
            )  # fmt: skip
        return self._known[key]


# Studies of orders.


TASK, CLASS = "t", "c"  # first letter of an order's text


def study_streams(stream: Stream, section: Mapping[str, Any]) -> dict[str, Stream]:
    """Return the streams of a study, in the orders of a checked section, by the orders' texts.

    Examples
    --------
    >>> from engram import class_incremental, load
    >>> stream = class_incremental(load("blobs", classes=4))
    >>> section = {"task_orders": "all", "class_orders": [[3, 0, 1, 2]], "order_seed": 0}
    >>> [(name, one.order) for name, one in study_streams(stream, section).items()]
    [('t0-1', (0, 1, 2, 3)), ('t1-0', (2, 3, 0, 1)), ('c3-0-1-2', (3, 0, 1, 2))]
    """
    seed = section["order_seed"]
    tasks = _list_task_orders(section["task_orders"], len(stream), seed)
    classes = _list_class_orders(section["class_orders"], stream.order, seed)
    found = {TASK + order_name(one): reorder(stream, task_order=one) for one in tasks}
    return found | {CLASS + order_name(one): reorder(stream, class_order=one) for one in classes}


def _list_task_orders(given: Any, tasks: int, seed: int) -> Sequence[Sequence[int]]:
    if given == "all":
        return all_task_orders(tasks)
    if isinstance(given, int):
        return random_class_orders(tasks, given, seed) if given else []
    return list(given)


def _list_class_orders(given: Any, classes: Sequence[int], seed: int) -> Sequence[Sequence[int]]:
    if not isinstance(given, int):
        return list(given)
    ids = sorted(classes)
    drawn = random_class_orders(len(ids), given, seed) if given else []
    return [[ids[i] for i in order] for order in drawn]


def make_plans(recipes: Sequence[Recipe], root: str | None = None) -> list[Plan]:
    """Make the plans of several recipes; equal data and streams are built once and shared."""
    return [plan for plans in make_plans_by_recipe(recipes, root) for plan in plans]


def make_plans_by_recipe(recipes: Sequence[Recipe], root: str | None = None) -> list[list[Plan]]:
    """Make plans as `make_plans` does, in one list per recipe."""
    planner = RecipePlanner(root)
    return [planner.plan(recipe) for recipe in recipes]


class RecipePlanner:
    """Makes the plans of recipes one by one, caching data and streams.

    Use it for one call only, like `Planner`.

    Examples
    --------
    >>> planner, content = RecipePlanner(), {"stream": {"data": "blobs"}}
    >>> made = [planner.plan(Recipe.of({**content, "method": name})) for name in ("ER", "LwF")]
    >>> made[0][0].run.stream is made[1][0].run.stream
    True
    """

    def __init__(self, root: str | None = None) -> None:
        self.root = root
        self._planner = Planner(root)
        self._loaded: dict[str, Data] = {}
        self._built: dict[str, Stream] = {}

    def plan(self, recipe: Recipe) -> list[Plan]:
        """Make the plans of a recipe."""
        source = repr((recipe.stream["data"], recipe.stream.get("data_options")))
        if source not in self._loaded:
            self._loaded[source] = recipe.data(self.root)
        where = repr(to_plain(recipe.stream))
        if where not in self._built:
            self._built[where] = recipe.build_stream(self._loaded[source])
        plans = self._planner.plans(recipe, self._built[where])
        check_identity(recipe, plans[0].recipe, plans[0].content)
        return plans
