"""`Recipe`: stream, model, method, training and seeds as one frozen, checked description, read
from and written to YAML. `Experiment` is a recipe without its stream.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from engram import streams
from engram.data import Data, load
from engram.engine.training import Training
from engram.errors import RecordError, bad, check_bool, check_choice, check_int, unknown
from engram.experiments.build_methods import build_method, method_label, plain_method
from engram.experiments.build_probes import build_detectors, build_probes, plain_probe
from engram.experiments.experiment_id import (
    ID_FORMAT,
    IDENTITY_PARTS,
    identify,
    options_hash,
    plain_model,
)
from engram.experiments.overrides import SECTIONS
from engram.experiments.plain_values import from_plain, to_plain
from engram.experiments.recipe_sections import (
    DEFAULT_MODEL,
    balance_options,
    check_model_section,
    check_orders,
    check_stream_section,
    scenario_options,
    search_options,
)
from engram.io import read_yaml_file
from engram.methods.method import Method
from engram.probes import Probe
from engram.probes.ood_data import OODData
from engram.records import KEEP
from engram.renamed import rename_fields
from engram.streams.stream import Stream
from engram.streams.task_orders import order_text

AVERAGES = ("micro", "macro")


@dataclass(frozen=True, eq=False, kw_only=True)
class Experiment:
    """Checked description of runs without a stream: method, model, training, seeds, probes.

    Examples
    --------
    >>> made = Experiment.of({"method": "ER", "seeds": 2, "training": {"lr": 0.1}})
    >>> made.label, made.seeds, made.training.lr
    ('ER', (0, 1), 0.1)
    """

    method: Method
    model: Any = DEFAULT_MODEL
    training: Training = field(default_factory=Training)
    seeds: tuple[int, ...] = (0,)
    keep: str = "scores"
    evaluate_unseen: bool = False
    average: str = "micro"
    label: str = ""
    probes: tuple[Probe, ...] = ()
    outside: Any = None  # data that is never trained on, or a mapping that names it
    tuning: Mapping[str, Any] | None = None  # the search that chose the values, and its cost

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Experiment:
        """Build an experiment from plain values or objects; the rest has defaults."""
        return cls(**check_experiment(content))


def check_experiment(content: Mapping[str, Any]) -> dict[str, Any]:
    """Check and complete the fields of an `Experiment`; errors name the wrong field."""
    method, detectors = build_method(content["method"]), build_detectors(content)
    keep = check_choice("keep", content.get("keep", "scores"), KEEP)
    if detectors and keep == "counts":
        expected = "labels, scores or parameters with detectors: scores are compared item by item"
        raise bad("keep", expected, keep)
    return {
        "method": method,
        "model": check_model_section(content.get("model", DEFAULT_MODEL)),
        "training": from_plain(Training, content.get("training", {}), path="training"),
        "seeds": read_seeds(content.get("seeds", 1)),
        "keep": keep,
        "evaluate_unseen": check_bool("evaluate_unseen", content.get("evaluate_unseen", False)),
        "average": check_choice("average", content.get("average", "micro"), AVERAGES),
        "label": check_label(content.get("label")) or method_label(method),
        "outside": check_ood_section(content.get("outside")),
        "tuning": check_tuning(content.get("tuning")),
        "probes": (*build_probes(content.get("probes") or ()), *detectors),
    }


def check_tuning(given: Any) -> dict[str, Any] | None:
    """Check the facts about a search, which stand beside the numbers of what it chose.

    Examples
    --------
    >>> check_tuning({"trials": 30, "runs": 90, "on": "valid", "tasks": 3})["runs"]
    90
    """
    if given is None:
        return None
    if not isinstance(given, Mapping) or not {"trials", "runs", "on", "tasks"} <= set(given):
        raise bad("tuning", "what a search writes: trials, runs, on, tasks, ...", given)
    return dict(given)


def check_label(value: Any) -> str:
    """Check the label under which runs are shown; in a recipe file it may be a number.

    Examples
    --------
    >>> check_label(None), check_label("mine"), check_label(2)
    ('', 'mine', '2')
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, (str, int, float))):
        raise bad("label", "a name", value)
    return "" if value is None else str(value)


def read_seeds(value: Any) -> tuple[int, ...]:
    """Read a number of seeds, or the seeds themselves, each once.

    Examples
    --------
    >>> read_seeds(3), read_seeds([4, 5])
    ((0, 1, 2), (4, 5))
    """
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return tuple(range(check_int("seeds", int(value), 1)))
    if not isinstance(value, (list, tuple, range)) or not value:
        raise bad("seeds", "a number of seeds, or a list of them", value)
    seeds = [int(seed) if isinstance(seed, np.integer) else seed for seed in value]
    found = tuple(check_int(f"seeds[{i}]", seed) for i, seed in enumerate(seeds))
    twice = sorted({seed for seed in found if found.count(seed) > 1})
    if twice:  # the same run would count twice in every mean
        raise bad("seeds", "every seed only once", f"{', '.join(map(str, twice))} more than once")
    return found


@dataclass(frozen=True, eq=False, kw_only=True)
class Recipe(Experiment):
    """Complete description of runs: stream, model, method, training and seeds.

    Recorded recipes (``DIR/recipes/ID.yaml``, `Result.recipes`) are recipes too: what they make is
    compared with the `identity` that was recorded, so that they give the same id or an error.

    Examples
    --------
    >>> recipe = Recipe.of({"stream": {"data": "digits"}, "method": "ER", "seeds": 3})
    >>> recipe.seeds, recipe.label
    ((0, 1, 2), 'ER')
    >>> Recipe.of(recipe.plain()).id == recipe.id
    True
    """

    stream: Mapping[str, Any]
    orders: Mapping[str, Any] | None = None  # of a study, see `engram.orders`
    identity: Mapping[str, Any] | None = None  # with which it was recorded

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Recipe:
        """Build a checked recipe from plain values, such as those of a recorded one."""
        _check_sections(content)
        stream, identity = content["stream"], content.get("identity")
        if identity is not None:
            stream = _recorded_stream(content)
        return cls(
            stream=check_stream_section(stream), orders=check_orders(content.get("orders")),
            identity=identity, **check_experiment(content),
        )  # fmt: skip

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """Read a recipe from a YAML file."""
        return cls.of(read_recipe(path))

    def plain(self) -> dict[str, Any]:
        """Return nested plain values, the inverse of `of`."""
        return {
            "stream": to_plain(self.stream), "model": to_plain(self.model),
            "method": plain_method(self.method), "training": to_plain(self.training),
            "seeds": list(self.seeds), "keep": self.keep, "average": self.average,
            "label": self.label,
            **({"evaluate_unseen": True} if self.evaluate_unseen else {}),
            **({"probes": [plain_probe(one) for one in self.probes]} if self.probes else {}),
            **({} if self.outside is None else {"outside": plain_ood_section(self.outside)}),
            **({} if self.orders is None else {"orders": to_plain(self.orders)}),
            **({} if self.tuning is None else {"tuning": to_plain(self.tuning)}),
            **({} if self.identity is None else {"identity": to_plain(self.identity)}),
        }  # fmt: skip

    def write(self, path: str | Path) -> Path:
        """Write the recipe as YAML."""
        from engram.io import write_yaml

        return write_yaml(path, self.plain())

    @property
    def id(self) -> str:
        """The id under which runs of the recipe are recorded: runs with equal ids are comparable.

        A hash of the experiment: contents of the data (loaded for this), source of user classes
        and all options; seeds, order, label, probes, outside set, `keep` and `evaluate_unseen` do
        not count.
        """
        return identify(
            self.build_stream(), method=self.method, model=self.model, training=self.training,
            average=self.average, counted_from=self.order if self.orders is not None else "",
        ).id  # fmt: skip

    @cached_property  # used thousands of times in a study of orders
    def key(self) -> str:
        """Hash of the recipe with names unresolved: it needs no data, but proves less than `id`."""
        stream = {
            **(streams.find_scenario(self.stream["kind"]).__kwdefaults__ or {}),
            **self.stream,
        }
        return options_hash({**self.plain(), "stream": stream, "model": plain_model(self.model)})

    @property
    def order(self) -> str:
        """The stream's explicit order, or number of a published one, as text; "" for none."""
        defaults = streams.find_scenario(self.stream["kind"]).__kwdefaults__ or {}
        return order_text({**defaults, **self.stream})

    def data(self, root: str | None = None) -> Data:
        """Load the recipe's data set; a recorded one is looked for where it lay, if that exists."""
        self.check_data_named()
        recorded = self.identity or {}
        if root is None and Path(str(recorded.get("data_root", ""))).is_dir():
            root = recorded.get("data_root")
        return load(self.stream["data"], root=root, **self.stream.get("data_options", {}))

    def check_data_named(self) -> None:
        """Raise if the recipe was recorded with data in memory, which no name finds again."""
        if self.identity is not None and self.identity.get("data_in_memory"):
            raise RecordError(
                f"recipe {self.label}: its data ({self.stream['data']!r}) were in memory; give "
                "them again, as in recipe.build_stream(data)"
            )

    def build_stream(self, data: Data | None = None, *, root: str | None = None) -> Stream:
        """Build the recipe's stream, over `data` if that is loaded already."""
        data = self.data(root) if data is None else data
        stream = streams.find_scenario(self.stream["kind"])(data, **scenario_options(self.stream))
        balanced = balance_options(self.stream)
        if balanced is not None:
            stream = streams.balance(stream, **balanced)
        if self.stream.get("online", False):
            stream = streams.online(stream, task_labels=self.stream.get("task_labels", True))
        cut = search_options(self.stream)
        return stream if cut is None else streams.make_search_stream(stream, **cut)

    def change(self, **values: Any) -> Recipe:
        """Return the recipe with some sections replaced.

        Examples
        --------
        >>> recipe = Recipe.of({"stream": {"data": "digits"}, "method": "ER"})
        >>> recipe.change(seeds=(4, 5)).seeds
        (4, 5)
        """
        return replace(self, **values)

    def in_order(self, order: Sequence[int]) -> Recipe:
        """Return the recipe with its classes in another order, which does not change its id.

        Examples
        --------
        >>> recipe = Recipe.of({"stream": {"data": "digits"}, "method": "ER"})
        >>> other = recipe.in_order((1, 0, 2))
        >>> other.order, other.id == recipe.id
        ('1-0-2', True)
        """
        found = self.change(stream={**self.stream, "order": list(order)})
        found.__dict__["key"] = self.key  # shared by all orders
        return found


# Recorded recipes.


PYTHON_ONLY = "was built in Python, so that no file can make it again"


def _recorded_stream(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stream section of a recorded recipe as one of a file.

    Raises for what was recorded by a name only, since a run of it would be another experiment.
    """
    stream, identity = content["stream"], content["identity"]
    if not isinstance(identity, Mapping):
        raise bad("recipe.identity", "what a run directory recorded, a mapping", identity)
    if not isinstance(stream, Mapping) or "kind" not in stream:
        raise RecordError(f"recipe: its stream {PYTHON_ONLY}")
    if identity.get("model_built"):
        raise RecordError(f"recipe: its model ({content.get('model')}) {PYTHON_ONLY}")
    outside = content.get("outside")
    if isinstance(outside, Mapping) and outside.get("in_memory"):
        raise RecordError(f"recipe: its outside data ({outside.get('data')!r}) {PYTHON_ONLY}")
    return {name: value for name, value in stream.items() if name != "head"}


def check_identity(recipe: Recipe, found: str, content: Mapping[str, Any]) -> None:
    """Raise if a recorded recipe makes another experiment than it did when it was recorded.

    A recipe whose options were edited is a new one, and not compared.
    """
    before, now = recipe.identity, content["identity"]
    if before is None or before.get("asked") != now["asked"]:
        return
    if before.get("form") != ID_FORMAT:
        raise RecordError(
            f"recipe {recipe.label}: was recorded by another version, which made ids in another "
            "way; without its section 'identity' it is run as a new one"
        )
    parts = [name for name in IDENTITY_PARTS if before.get(name) != now.get(name)]
    if parts:
        verb = "has" if len(parts) == 1 else "have"
        raise RecordError(
            f"recipe {recipe.label}: {' and '.join(IDENTITY_PARTS[name] for name in parts)} {verb} "
            f"changed since it was recorded, what it makes today is {found}; without its section "
            "'identity' it is run as a new one"
        )


def read_recipe(path: str | Path) -> dict[str, Any]:
    """Read the plain values of a recipe file, unchecked and without defaults."""
    content: dict[str, Any] = read_yaml_file("recipe", path)
    _check_sections(content, f" {path}", ": ")
    if isinstance(training := content.get("training"), Mapping):
        content["training"] = rename_fields(Training, training)
    return content


def _check_sections(content: Any, where: str = "", joint: str = ".") -> None:
    """Raise if content is no mapping of recipe sections; `where` is the file it comes from."""
    if not isinstance(content, Mapping):
        raise bad(f"recipe{where}", f"a mapping with sections {', '.join(SECTIONS)}", content)
    for name in content:
        if name not in (*SECTIONS, "identity"):
            raise unknown(f"recipe{where}", name, SECTIONS)
    for name in ("stream", "method"):
        if name not in content:
            raise bad(f"recipe{where}{joint}{name}", "a section (it has no default)", "nothing")


# The outside set of a recipe: rows that are never trained on, against which detectors are tuned.


OOD_FIELDS = ("data", "data_options", "limit")


def check_ood_section(given: Any) -> Any:
    """Check an outside section: data, or a mapping with its name or path; None for none.

    `limit` is the largest number of rows used, see `OODData`.

    Examples
    --------
    >>> check_ood_section("digits")
    {'data': 'digits'}
    """
    if given is None or isinstance(given, Data):
        return given
    if isinstance(given, (str, os.PathLike)):
        given = {"data": given}
    if not isinstance(given, Mapping):
        raise bad("outside", "data, or the name or path of a data set", given)
    for name in given:
        if name not in OOD_FIELDS:
            raise unknown("outside", name, OOD_FIELDS)
    source, options = given.get("data"), given.get("data_options") or {}
    if not isinstance(source, (str, os.PathLike)) or not str(source):
        raise bad("outside.data", "the name or path of a data set", source)
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise bad("outside.data_options", "a mapping of options of the data set", options)
    limit = check_int("outside.limit", given.get("limit", 0))
    return {
        "data": str(source), **({"data_options": dict(options)} if options else {}),
        **({"limit": limit} if limit else {}),
    }  # fmt: skip


def plain_ood_section(section: Any) -> Any:
    """Convert the section to plain values; data in memory becomes its name."""
    if not isinstance(section, Data):
        return to_plain(section)
    if section.source is None:
        return {"data": section.name, "in_memory": True}
    options = section.source.options
    return {"data": section.source.name, **({"data_options": to_plain(options)} if options else {})}


class OODDataCache:
    """Cache of outside sets, each loaded once."""

    def __init__(self, root: str | None = None) -> None:
        self.root = root
        self._known: dict[Any, OODData] = {}
        self._checked: dict[tuple[int, int], Any] = {}  # values keep the objects of the ids alive

    def find(self, section: Any, stream: Stream, probes: Iterable[Probe]) -> OODData | None:
        """Return the set, checked for the stream; raises if there is none and a probe needs it."""
        if section is None:
            for probe in probes:
                if probe.outside:
                    expected = f"an outside data set on which to tune {probe.name!r}"
                    raise bad("outside", expected, None)
            return None
        key = id(section) if isinstance(section, Data) else repr(section)
        if key not in self._known:
            self._known[key] = OODData(self._load(section, stream), _row_limit(section))
        found = self._known[key]
        if (id(found), id(stream.data)) not in self._checked:
            found.check(stream)
            self._checked[id(found), id(stream.data)] = found, stream.data
        return found

    def _load(self, section: Any, stream: Stream) -> Data:
        if isinstance(section, Data):
            return section
        root = self.root
        if root is None and stream.data.source is not None:
            root = stream.data.source.root
        return load(section["data"], root=root, **section.get("data_options", {}))


def _row_limit(section: Any) -> int:
    return 0 if isinstance(section, Data) else int(section.get("limit", 0))
