"""Names of methods and streams in tables: short, and told apart only by what differs.

A label is presentation: what is trained does not depend on it. One that was given counts; one that
was made from the options of a method is made anew here, from the recipes that are shown together.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from engram.errors import bad, unknown

Recipe = Mapping[str, Any]

_SKIPPED = (  # facts of a recipe that name nothing: who asked, and where files lay
    "data_root", "data_in_memory", "asked", "name", "kind", "data", "search", "rows",
    "tasks",
)  # fmt: skip
_ALONE = ("policy", "head", "optimizer", "schedule", "precision", "form", "variant", "model")
_WORDS = {"memory.total": "memory {}", "memory.per_class": "memory {} per class",
          "memory.per_task": "memory {} per task", "memory.fraction": "memory {} of each task",
          "classes_per_task": "{} per task"}  # fmt: skip
_OPTION = re.compile(r" (\w+)=")


class DisplayNames:
    """Names of recipes that are shown together.

    Parameters
    ----------
    recipes
        Id to recipe, of those shown.
    written
        Label recorded with each recipe's numbers, for a recipe that has none.
    bases
        Names to tell apart, by id, in place of labels and methods.
    renamed
        Labels given afterwards, by id.

    Examples
    --------
    >>> small, large = (
    ...     {"method": {"name": "ER", "memory": {"total": n}}, "stream": {"data": "digits"}}
    ...     for n in (200, 500)
    ... )
    >>> DisplayNames({"a": small}).labels
    {'a': 'ER'}
    >>> DisplayNames({"a": small, "b": large}).labels
    {'a': 'ER (memory 200)', 'b': 'ER (memory 500)'}
    >>> other = {**small, "stream": {"data": "sets/birds.npz"}}
    >>> DisplayNames({"a": small, "b": other}).labels
    {'a': 'ER [digits]', 'b': 'ER [birds.npz]'}
    """

    def __init__(
        self,
        recipes: Mapping[str, Recipe],
        written: Mapping[str, str] | None = None,
        bases: Mapping[str, str] | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        self._recipes = recipes
        self._written = written or {}
        self._bases = bases or {}
        self.renamed = dict(renamed or {})

    @cached_property
    def stream_keys(self) -> dict[str, str]:
        """Id of each recipe to a text that is equal for equal streams."""
        return {one: stream_key(recipe) for one, recipe in self._recipes.items()}

    @cached_property
    def streams(self) -> dict[str, str]:
        """Id of each recipe to the name of its stream: the data set and what else differs."""
        first = {self.stream_keys[one]: recipe for one, recipe in self._recipes.items()}
        bases = {key: data_name(recipe) for key, recipe in first.items()}
        facts = {key: dict(_flatten("", _stream_facts(recipe))) for key, recipe in first.items()}
        names = _tell_apart(bases, facts, dict.fromkeys(first, ""), "{base}, {words}")
        return {one: names[key] for one, key in self.stream_keys.items()}

    @cached_property
    def methods(self) -> dict[str, str]:
        """Id of each recipe to the name of its method, the same on several streams."""
        bases = {one: self._base(one) for one in self._recipes}
        many: dict[str, list[str]] = {}
        for one, base in bases.items():
            many.setdefault(base, []).append(one)
        alike = [one for group in many.values() if len(group) > 1 for one in group]
        facts = {one: dict(_method_facts(self._recipes[one])) for one in alike}
        return _tell_apart(bases, facts, self.stream_keys, "{base} ({words})")

    @cached_property
    def labels(self) -> dict[str, str]:
        """Id of each recipe to a name that no other has: the method, with its stream if needed."""
        often: dict[str, int] = {}
        for name in self.methods.values():
            often[name] = often.get(name, 0) + 1
        return {
            one: name if often[name] == 1 else f"{name} [{self.streams[one]}]"
            for one, name in self.methods.items()
        }

    def rename(self, names: Mapping[str, str]) -> DisplayNames:
        """Return the same names but for those given, old to new; raises for an unknown one."""
        given = dict(self.renamed)
        for old, new in names.items():
            if not isinstance(new, str) or not new.strip():
                raise bad("rename", "a new name", new)
            meant = [one for one, name in self.labels.items() if name == old]
            meant = meant or [one for one, name in self.methods.items() if name == old]
            if not meant:
                raise unknown("rename", old, [*self.labels.values(), *self.methods.values()])
            given |= dict.fromkeys(meant, new)
        # the others keep their names, which are told apart already
        bases = {one: given.get(one, name) for one, name in self.methods.items()}
        return DisplayNames(self._recipes, self._written, bases, given)

    def only(self, wanted: Collection[str]) -> DisplayNames:
        """Return the names of some recipes, without the names of streams that are not needed."""
        return DisplayNames(
            {one: recipe for one, recipe in self._recipes.items() if one in wanted}, self._written,
            {one: name for one, name in self.methods.items() if one in wanted},
            {one: name for one, name in self.renamed.items() if one in wanted},
        )  # fmt: skip

    def _base(self, one: str) -> str:
        """Return the label that was given or, without one, the name of the method."""
        if one in self._bases:
            return self._bases[one]
        recipe = self._recipes[one]
        given = str(recipe.get("label") or self._written.get(one) or "")
        own = method_name(recipe)
        if own and (not given or is_automatic(given, recipe)):
            return own
        return given or one


ON_TEST = "chosen on test rows"  # added to the labels of settings that a search chose by them


def is_automatic(label: str, recipe: Recipe) -> bool:
    """Return whether a label is the method's name, alone or with options as ``key=value``.

    Examples
    --------
    >>> recipe = {"method": {"name": "EWC", "strength": 5.0}, "training": {"lr": 0.1}}
    >>> [is_automatic(label, recipe) for label in ("EWC", "EWC strength=5 lr=0.1", "EWC, mine")]
    [True, True, False]
    """
    if label.endswith(ON_TEST):  # which no table may hide
        return False
    names, parts = method_name(recipe).split(" + "), label.split(" + ")
    known = {word for key, _ in _recipe_options(recipe) for word in key.split(".")}
    return len(names) == len(parts) and all(
        part == name or (
            part.startswith(f"{name} ") and _OPTION.match(part, len(name)) is not None
            and {*_OPTION.findall(part)} <= known
        )
        for name, part in zip(names, parts, strict=True) if name
    ) and bool(names[0])  # fmt: skip


def method_name(recipe: Recipe) -> str:
    """Return the name of a recipe's method, of joined methods those of the parts.

    Examples
    --------
    >>> method_name({"method": {"name": "Join", "parts": [{"name": "ER"}, {"name": "mine:EWC"}]}})
    'ER + EWC'
    """
    method = recipe.get("method")
    if isinstance(method, Mapping):
        if isinstance(parts := method.get("parts"), Sequence):
            return " + ".join(method_name({"method": part}) for part in parts)
        method = method.get("name")
    return "" if method is None else str(method).rpartition(":")[2]


def stream_key(recipe: Recipe) -> str:
    """Return a text that is equal for recipes of equal streams; "" without a stream."""
    stream = recipe.get("stream")
    if stream is None:
        return ""
    plain = {k: v for k, v in stream.items() if v is not None} \
        if isinstance(stream, Mapping) else stream  # fmt: skip
    data = (recipe.get("identity") or {}).get("data", "")  # other data may have the same name
    return json.dumps([plain, data], sort_keys=True, default=str)


def data_name(recipe: Recipe) -> str:
    """Return the name of a recipe's data set, of a file without its folder; else of its stream.

    Examples
    --------
    >>> data_name({"stream": {"data": "photos/birds.npz", "kind": "joint"}})
    'birds.npz'
    """
    stream = recipe.get("stream")
    if not isinstance(stream, Mapping):
        return "" if stream is None else str(stream)
    found = stream.get("data") or stream.get("name") or stream.get("kind")
    return "" if found is None else _last_part(str(found))


def _last_part(text: str) -> str:
    """Return a path's last part; no folder of this machine belongs into a table."""
    return text.rstrip("/\\").replace("\\", "/").rpartition("/")[2]


def _stream_facts(recipe: Recipe) -> Mapping[str, Any]:
    stream = recipe.get("stream")
    if not isinstance(stream, Mapping):
        return {}
    kind = stream.get("kind", stream.get("name"))
    return {**({} if kind is None else {"model": kind}), **stream}  # shown without a word before


def _recipe_options(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    method = recipe.get("method")
    yield from _flatten("", method if isinstance(method, Mapping) else {})
    training = recipe.get("training")
    yield from _flatten("", training if isinstance(training, Mapping) else {})
    yield from _flatten("model", recipe.get("model"))
    yield from _flatten("average", recipe.get("average"))
    stream = recipe.get("stream")
    yield from _flatten("stream", stream if isinstance(stream, Mapping) else {})


def _method_facts(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """Iterate over what may distinguish two recipes of one method on one stream."""
    for key, value in _recipe_options(recipe):
        if not key.startswith("stream."):
            yield key, value
    model = recipe.get("model")
    if isinstance(model, Mapping) and "name" in model:
        yield "model", model["name"]


def _flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    last = path.rpartition(".")[2]
    if isinstance(value, Mapping):
        if last == "policy" and "name" in value:
            yield path, value["name"]
        for key, inner in value.items():
            yield from _flatten(f"{path}.{key}" if path else str(key), inner)
    elif isinstance(value, (list, tuple)) and any(isinstance(v, Mapping) for v in value):
        for number, inner in enumerate(value):
            yield from _flatten(f"{path}.{number}", inner)
    elif last not in _SKIPPED and value is not None:
        yield path, value


def _tell_apart(
    bases: Mapping[str, str], facts: Mapping[str, Mapping[str, Any]],
    places: Mapping[str, str], form: str,
) -> dict[str, str]:  # fmt: skip
    """Add what differs to names that occur twice in one place; where nothing does, a number.

    Facts that differ in one place are shown in all, so that a method has one name.
    """
    groups: dict[str, list[str]] = {}
    for one, base in bases.items():
        groups.setdefault(base, []).append(one)
    names: dict[str, str] = {}
    for base, members in groups.items():
        local: dict[str, list[str]] = {}
        for one in members:
            local.setdefault(places[one], []).append(one)
        differ: dict[str, None] = {}
        for near in local.values():
            if len(near) > 1:
                paths = dict.fromkeys(path for one in near for path in facts[one])
                differ |= {p: None for p in paths
                           if len({repr(facts[one].get(p)) for one in near}) > 1}  # fmt: skip
        for one in members:
            words = [_phrase(p, facts[one][p]) for p in differ if p in facts.get(one, {})]
            words = [word for word in words if word]
            told = ", ".join(words)
            names[one] = form.format(base=base, words=told).strip(", ") if told else base
    often = Counter((places[one], name) for one, name in names.items())
    taken: Counter[tuple[str, str]] = Counter()
    for one, name in names.items():
        if often[places[one], name] > 1:
            taken[places[one], name] += 1
            names[one] = f"{name} ({taken[places[one], name]})"
    return names


def _phrase(path: str, value: Any) -> str:
    """Say a value in a few words.

    Examples
    --------
    >>> [_phrase(*pair) for pair in [("memory.total", 200), ("lr", 0.1), ("scale", False)]]
    ['memory 200', 'lr 0.1', 'no scale']
    >>> _phrase("policy", "herding"), _phrase("model.hidden", [64, 64]), _phrase("csv", "/a/b.csv")
    ('herding', 'hidden 64-64', 'csv b.csv')
    """
    last = path.rpartition(".")[2]
    shown = last.replace("_", " ")
    if isinstance(value, bool):
        return shown if value else f"no {shown}"
    if isinstance(value, float):
        text = f"{value:g}"
    elif isinstance(value, (list, tuple)):
        text = "-".join(f"{one:g}" if isinstance(one, float) else str(one) for one in value)
    else:
        text = _last_part(str(value))
    for key, form in _WORDS.items():
        if path == key or path.endswith(f".{key}"):
            return form.format(text)
    return text if last in _ALONE and isinstance(value, str) else f"{shown} {text}".strip()
