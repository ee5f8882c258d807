"""Differences in protocol between runs, or between runs and a paper's preset."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engram.errors import BadArgument, EngramError, RecordError, bad
from engram.experiments import Recipe
from engram.experiments.build_methods import forbid_user_code
from engram.io import read_yaml_file
from engram.records import RunDirectory, read
from engram.reproduce.table_registry import find_table
from engram.streams import find_scenario

Plain = Mapping[str, Any]

# Kinds of fields, the most important first, and why differences matter.
KINDS = {
    "data": "Data, classes and tasks define the problem: other ones make numbers incomparable.",
    "loss": "Which logits compete in training determines how strongly old classes are suppressed.",
    "length": "Longer training learns the new task better and forgets the old ones more.",
    "memory": "Rehearsal gains accuracy with the size of the memory and how often it is replayed.",
    "method": "A different method, strength or variant is a different row of the table.",
    "optimiser": "Learning rate, batch size and resets change how far weights move in a task.",
    "model": "Capacity and architecture change both accuracy and forgetting.",
    "seeds": "Fewer or different seeds change the mean by chance and the width of the interval.",
    "other": "It affects how results are computed, though rarely by much.",
}
_NOT_COMPARED = {"label", "keep", "stream.head", "stream.name", "stream.tasks", "stream.rows",
          "stream.domains", "stream.view", "stream.new"}  # fmt: skip
_LENGTH_FIELDS = {
    "epochs", "iterations", "steps_per_epoch", "first_task_scale", "patience", "restore_best",
}  # fmt: skip
_ABSENT = "not set"


@dataclass(frozen=True)
class Difference:
    """A field with different values, for one or several recipes of the first side."""

    kind: str
    field: str
    ours: Any
    theirs: Any
    recipes: tuple[str, ...]  # labels of the first side
    against: tuple[str, ...] = ()  # labels of the second side with which they were compared

    @property
    def why(self) -> str:
        """Explain in one sentence why the difference matters."""
        return KINDS[self.kind]

    @property
    def values(self) -> tuple[str, str]:
        """Both values as text."""
        return _format_value(self.ours), _format_value(self.theirs)

    @property
    def words(self) -> str:
        """The difference as a phrase."""
        return "{}: {} here, {} there".format(self.field, *self.values)


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def difference_kind(field: str) -> str:
    """Return the kind of a dotted field.

    Examples
    --------
    >>> (
    ...     difference_kind("training.scope"),
    ...     difference_kind("method.memory.total"),
    ...     difference_kind("training.lr"),
    ... )
    ('loss', 'memory', 'optimiser')
    """
    section, _, rest = field.partition(".")
    first = rest.split(".")[0]
    if section == "training":
        if first in ("scope", "loss"):
            return "loss"
        if first in _LENGTH_FIELDS:
            return "length"
        return "other" if first in ("evaluate_every", "evaluate_rows", "precision") else "optimiser"
    if section == "method":
        return "memory" if "memory" in rest.split(".") or first in ("mix", "size") else "method"
    return {"stream": "data", "model": "model", "seeds": "seeds"}.get(section, "other")


def read_recipes(name: str | os.PathLike[str]) -> list[Plain]:
    """Read the recipes of a run directory, a recipe file, a protocol card, or a paper's table.

    Examples
    --------
    >>> len(read_recipes("rwalk/1"))  # 26 rows, of which both heads share six, and four references
    24
    """
    # imported here because listing tables needs no pandas
    from engram.report.protocol_card import CARD_SUFFIXES, read_card

    path = Path(name)
    if path.is_dir():
        folder = RunDirectory(path, create=False)
        found: list[Plain] = [folder.recipe(one) for one in folder.recipes()]
        if not found:
            raise bad("run", "a run directory with recipes", str(path))
        return found
    if path.is_file() and path.suffix.lower() in CARD_SUFFIXES:
        return list(read_card(path)["recipes"].values())
    if path.is_file() and path.suffix.lower() in (".yaml", ".yml"):
        content = read_yaml_file("recipe", path)
        several = content.get("recipes") if isinstance(content, Mapping) else None  # a request
        recipes = several if isinstance(several, list) else [content]
        if not all(isinstance(one, Mapping) and {"stream", "method"} <= {*one} for one in recipes):
            raise bad("recipe", "a file with a recipe, or with a list of recipes", str(path))
        return recipes
    if path.exists() or os.sep not in str(name) or str(name).count("/") > 1:
        expected = "a run directory, a recipe file (.yaml), a card (.md, .html) or PAPER/TABLE"
        raise bad("run", expected, str(name))
    try:
        table = find_table(str(name))
    except BadArgument as error:
        raise BadArgument(
            f"run: {str(name)!r} is neither a directory nor a table of a paper ({error}); "
            "engram reproduce lists the tables"
        ) from None
    return [recipe.plain() for recipe in table.recipes]


def read_digest(name: str | os.PathLike[str]) -> str:
    """Return the hash of the numbers of a run directory or card; "" for what has none."""
    from engram.report.protocol_card import CARD_SUFFIXES, digest_numbers, read_card

    path = Path(name)
    if path.is_file() and path.suffix.lower() in CARD_SUFFIXES:
        return str(read_card(path)["digest"])
    if path.is_dir():
        try:
            return digest_numbers(read(path))
        except RecordError:  # nothing is finished yet
            return ""
    return ""


def compare_recipes(ours: Sequence[Plain], theirs: Sequence[Plain]) -> list[Difference]:
    """Compare every recipe with the nearest one of the other side, most important first.

    Examples
    --------
    >>> base = {"stream": {"data": "digits"}, "method": "ER", "training": {"epochs": 1}}
    >>> [one.words for one in compare_recipes([base], [base | {"training": {"epochs": 5}}])]
    ['training.epochs: 1 here, 5 there']
    """
    right = [(_flatten(one), _label(one)) for one in theirs]
    merged: dict[tuple[str, str, str], Difference] = {}
    for content in ours:
        label = _label(content)
        pairs, other = _find_nearest(_flatten(content), label, right)
        for field, (a, b) in pairs.items():
            key = (field, repr(a), repr(b))
            old = merged.get(key, Difference(difference_kind(field), field, a, b, ()))
            if label not in old.recipes:
                names, others = (*old.recipes, label), (*old.against, other)
                merged[key] = replace(old, recipes=names, against=others)
    return sorted(merged.values(), key=_rank)


def _find_nearest(
    mine: dict[str, Any], label: str, right: Sequence[tuple[dict[str, Any], str]]
) -> tuple[dict[str, tuple[Any, Any]], str]:
    """Find the nearest recipe; returns the differences and its label."""
    names = {label.partition(" ")[0], mine.get("method.name")}
    # the name of a paper's row comes before its strength and data set
    each = [
        (_find_differences(mine, flat), other, other.partition(" ")[0] in names)
        for flat, other in right
    ]
    pairs, other, _ = min(each, key=lambda one: _distance(one[0], one[2]))
    return pairs, other


def _rank(one: Difference) -> tuple[int, int, int, str]:
    names = one.field in ("stream.data", "stream.kind", "method.name", "model.name")
    return list(KINDS).index(one.kind), -names, -len(one.recipes), one.field


def _label(content: Plain) -> str:
    return str(content.get("label") or _method_name(content))


def _method_name(content: Plain) -> str:
    method = content.get("method", "")
    return str(method.get("name", "")) if isinstance(method, Mapping) else str(method)


def _flatten(content: Plain) -> dict[str, Any]:
    """Flatten a recipe to dotted fields, with defaults filled in if it can be built."""
    whole = {k: v for k, v in content.items() if k in _known_sections()}
    stream = whole.get("stream") or {}
    stream = dict(stream) if isinstance(stream, Mapping) else {"data": stream}
    try:
        clean = {k: v for k, v in stream.items() if k != "head"}
        with forbid_user_code("reading runs no code"):  # such a recipe is compared as it is
            whole = Recipe.of({**whole, "stream": clean}).plain()
        scenario = find_scenario(whole["stream"]["kind"])
        whole["stream"] = {**(scenario.__kwdefaults__ or {}), **whole["stream"]}
    except EngramError:
        pass  # of a stream made in Python: compared as it is
    whole = {**whole, "model": _with_name(whole.get("model", "mlp"))}
    flat = {k: v for k, v in _walk_leaves(whole) if k not in _NOT_COMPARED and v is not None}
    if flat.get("training.scope") == "auto":
        kind, head = flat.get("stream.kind"), stream.get("head")
        multi = head == "multi" or kind == "task_incremental"
        flat["training.scope"] = "own" if multi else "seen"
    if isinstance(flat.get("seeds"), list):
        flat["seeds"] = ", ".join(map(str, flat["seeds"]))
    return flat


def _known_sections() -> tuple[str, ...]:
    from engram.experiments.overrides import SECTIONS

    return SECTIONS


def _with_name(section: Any) -> Any:
    return section if isinstance(section, Mapping) else {"name": section}


def _walk_leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _walk_leaves(value, f"{prefix}{key}.")
        elif key == "parts" and isinstance(value, list):
            for place, part in enumerate(value):
                yield from _walk_leaves(_with_name(part), f"{prefix}part{place}.")
        else:
            yield f"{prefix}{key}", value


def _find_differences(
    mine: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Find fields that differ; of different methods, only names and memories are compared."""
    found = {}
    apart = mine.get("method.name") != other.get("method.name")
    for field in dict.fromkeys([*mine, *other]):
        a, b = mine.get(field, _ABSENT), other.get(field, _ABSENT)
        own = field.startswith("method.") and field != "method.name"
        if a == b or (apart and own and difference_kind(field) != "memory"):
            continue
        found[field] = (a, b)
    return found


def _distance(pairs: Mapping[str, Any], alike: bool) -> tuple[int, ...]:
    """Rank distance: another method first, then another head or data, then the differences.

    A row with the same name is nearer: a paper's EWC may be our EWCpp.
    """
    named = 0 if "method.name" not in pairs else 1 if alike else 2
    heavy = ("stream.kind", "stream.data", "method.variant", "method.strength")
    memory = any(difference_kind(field) == "memory" for field in pairs)
    return (named, *(int(field in pairs) for field in heavy), int(memory), len(pairs))
