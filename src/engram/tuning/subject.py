"""What is searched over: an experiment, with other values in some of its places."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engram.data import Data
from engram.errors import BadArgument, bad
from engram.methods.base import Method
from engram.recipes import Plan, Recipe
from engram.recipes.assign import complaints_about, named, put_all
from engram.recipes.experiment import Experiment
from engram.recipes.names import build_method, method_label, plain_method
from engram.recipes.plan import Planner, RecipePlanner
from engram.recipes.recipe import read_recipe
from engram.streams import for_search
from engram.streams.core import Stream
from engram.streams.incremental import class_incremental
from engram.tuning.ranges import Range

FIXED = ("seeds", "keep", "average", "label", "search")  # no hyper-parameters
MEASURED = ("probes", "detectors", "outside")  # not in trials: they are for the chosen setting
FIRST_TASKS = 3


class Subject:
    """An experiment over a stream, cut for the search: its first tasks, judged on validation rows.

    `content` is a recipe in plain values, or without its stream where `stream` is one in memory.
    """

    def __init__(
        self, content: Mapping[str, Any], stream: Stream | None = None, *,
        tasks: int | None = None, on: str = "valid", root: str | None = None,
    ) -> None:  # fmt: skip
        self.content = {**content, "method": _plain(content.get("method", "Finetune"))}
        self.stream, self.root, self.on = stream, root, on
        self._planner, self._recipes = Planner(root), RecipePlanner(root)
        count = len(stream if stream is not None else self._whole_stream())
        self.tasks = min(FIRST_TASKS, count) if tasks is None else tasks
        self._short = None if stream is None else for_search(stream, tasks=self.tasks, on=on)

    def _whole_stream(self) -> Stream:
        return self._recipes.of(Recipe.of(self._with({}, trial=True)))[0].run.stream

    def experiment(self, values: Mapping[str, Any], label: str = "") -> Experiment:
        """The experiment with these values, over the whole stream: a Recipe where it can be one."""
        made = self._with(values, trial=False)
        made["label"] = label or made.get("label", "")
        return Recipe.of(made) if self.stream is None else Experiment.of(made)

    def trial(self, values: Mapping[str, Any]) -> tuple[Experiment, list[Plan]]:
        """The experiment of a trial, over the first tasks, and its runs."""
        made = self._with(values, trial=True)
        base = str(made.get("label") or _name(made["method"]))
        made["label"] = " ".join([base, *(f"{short(k)}={shown(v)}" for k, v in values.items())])
        if self._short is not None:
            one = Experiment.of(made)
            return one, self._planner.plans(one, self._short)
        recipe = Recipe.of(made)
        cut = {**recipe.stream, "search": {"tasks": self.tasks, "on": self.on}}
        recipe = recipe.change(stream=cut)
        return recipe, self._recipes.of(recipe)

    def check(self, one: Range) -> Range:
        """The range, of whole numbers where only those will do; refused where an end will not do.

        Whether a field takes fractions is asked of the field.
        """
        if one.key.removeprefix("stream.").split(".")[0] in (*FIXED, *MEASURED):
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
            if not (trial and name in MEASURED)
        }
        if trial:
            made["keep"] = "counts"  # the choice needs no predictions
        for key, value in values.items():
            with complaints_about(f"range of {key}"):
                put_all([made], key, copy.deepcopy(value))
        if self.stream is not None and "stream" in made:
            raise bad("ranges", "no option of the stream, which is given as it is", list(values))
        return made


def short(key: str) -> str:
    """The last part of a key.

    Examples
    --------
    >>> short("EWC.strength")
    'strength'
    """
    return key.rsplit(".", 1)[-1]


def shown(value: Any) -> str:
    """A value in a label."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def subject_of(
    what: Any, given: Mapping[str, Any], *, tasks: int | None, on: str, root: str | None
) -> Subject:
    """The subject of a search: a recipe, or a stream and what `engram.run` takes beside it."""
    cut: dict[str, Any] = {"tasks": tasks, "on": on, "root": root}
    if isinstance(what, Data):
        what = class_incremental(what)
    if isinstance(what, Stream):
        if "search" in (what.origin.options if what.origin else ()):
            raise bad("stream", "a whole stream, the search takes its first tasks", what.name)
        named = ("method", "model", "seeds", "keep", "average", "label", *MEASURED)
        content = {k: v for k, v in given.items() if k in named}
        rest = {k: v for k, v in given.items() if k not in named}
        return Subject({**content, "training": rest}, what, **cut)
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
    return Subject(what, **cut)


def _name(method: Mapping[str, Any]) -> str:
    """What a method is called in labels, whatever its values."""
    parts = [_name(part) for part in method.get("parts", ())]
    return " + ".join(parts) or str(method["name"]).rsplit(":", 1)[-1]


def _plain(method: Any) -> Any:
    """A method as a mapping, so that values can be put into it."""
    if not isinstance(method, Method):
        return named(method)
    plain = plain_method(method)
    try:
        same = build_method(plain) == method
    except BadArgument:
        same = False
    if not same:
        raise bad("method", "one of a class that can be imported, and of plain values", method)
    return plain
