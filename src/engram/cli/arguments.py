"""From options to plain recipes. Heavy: imported inside commands."""

from __future__ import annotations

import copy
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engram.errors import bad
from engram.recipes import Recipe
from engram.recipes.assign import Content, complaints_about, named, put_all
from engram.recipes.names import named_method
from engram.recipes.recipe import read_recipe
from engram.yaml_text import key_values


def contents(
    *, recipe: Path | None = None, data: str | None = None, methods: Sequence[str] = (),
    model: str | None = None, stream: str | None = None, seeds: str | None = None,
    keep: str | None = None, probes: Sequence[str] = (), detectors: Sequence[Any] = (),
    outside: str | None = None, columns: Sequence[str] = (),
) -> list[Content]:  # fmt: skip
    """One plain recipe per method: the file's, or the default one, with what the options change.

    Examples
    --------
    >>> [one["method"] for one in contents(data="digits", methods=["Finetune", "ER"])]
    [{'name': 'Finetune'}, {'name': 'ER'}]
    """
    if recipe is None and data is None:
        raise bad("engram run", "a RECIPE.yaml, or --data with a name or path", "neither")
    base: Content = {"stream": {}, "method": "Finetune"}
    if recipe is not None:
        base = dict(read_recipe(recipe))
    section = base["stream"]
    base["stream"] = dict(section) if isinstance(section, Mapping) else {"data": section}
    changes = {"data": data, "kind": stream}
    base["stream"] |= {name: value for name, value in changes.items() if value is not None}
    if columns:
        options = {**(base["stream"].get("data_options") or {}), **label_option(columns)}
        base["stream"]["data_options"] = options
    base["model"] = model if model is not None else base.get("model", "mlp")
    if keep is not None:
        base["keep"] = keep
    if probes:
        base["probes"] = [*(base.get("probes") or ()), *probes]
    if detectors:
        base["detectors"] = [*(base.get("detectors") or ()), *detectors]
    if outside is not None:
        base["outside"] = outside
    if seeds is not None:
        base["seeds"] = parse_seeds(seeds)
    wanted = [named_method(name) for name in methods] or [named(base["method"])]
    if methods:
        base.pop("label", None)  # it spoke of the file's own method
    return [{**copy.deepcopy(base), "method": method} for method in wanted]


def label_option(columns: Sequence[str]) -> Content:
    """The option of a table that names one column of classes, or several.

    Examples
    --------
    >>> label_option(["kind"]), label_option([])
    ({'label': 'kind'}, {})
    """
    if not columns:
        return {}
    return {"label": columns[0] if len(columns) == 1 else list(columns)}


def detector_specs(names: str | None, tune: bool = False) -> list[Any]:
    """Detectors from names with commas between; with `tune`, those that can be tuned are.

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
    """A number of seeds, or the seeds themselves.

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


def grid(recipes: Sequence[Content], axes: Sequence[str]) -> list[Content]:
    """Every recipe with every combination of the axes ``key=value,value,...``.

    Examples
    --------
    >>> base = contents(data="digits", methods=["Finetune"])
    >>> [one["training"] for one in grid(base, ["lr=0.1,0.01"])]
    [{'lr': 0.1}, {'lr': 0.01}]
    """
    keys, values = zip(*map(key_values, axes), strict=True) if axes else ((), ())
    points = []
    for content in recipes:
        for choice in itertools.product(*values):
            point = copy.deepcopy(content)
            for key, value in zip(keys, choice, strict=True):
                with complaints_about("--grid"):
                    put_all([point], key, copy.deepcopy(value))
            point["method"] = named(point["method"])
            points.append(point)
    return points


def build(plain: Sequence[Content]) -> list[Recipe]:
    """Checked recipes; equal labels of different recipes are told apart by what differs."""
    built = [_spelt_out(Recipe.of(one), one, plain) for one in plain]
    taken: dict[str, set[str]] = {}
    for one in built:
        taken.setdefault(one.label, set()).add(one.key)
    return [
        one if len(taken[one.label]) == 1 else one.change(label=f"{one.label} {extra}")
        for one, extra in zip(built, _differences(plain), strict=True)
    ]


def _spelt_out(recipe: Recipe, content: Content, plain: Sequence[Content]) -> Recipe:
    """The recipe with a label that has the values of its method in which recipes differ.

    By itself a label leaves defaults out, and in a grid over them a value would have no name.
    """
    own = content["method"]
    if "label" in content or not isinstance(own, Mapping):
        return recipe
    others = [one["method"] for one in plain if isinstance(one["method"], Mapping)]
    alike = [dict(_leaves(one)) for one in others if one.get("name") == own.get("name")]
    shown = recipe.label
    for key, value in _leaves(own):
        field, _, rest = key.partition(".")
        differs = len({repr(one.get(key)) for one in alike}) > 1
        if differs and f"{field}=" not in shown:
            shown = f"{shown} {rest or field}={value}"
    return recipe if shown == recipe.label else recipe.change(label=shown)


def _differences(plain: Sequence[Content]) -> list[str]:
    """The values outside the method in which recipes differ, as text."""
    flat = [dict(_leaves({k: v for k, v in one.items() if k != "method"})) for one in plain]
    keys = dict.fromkeys(key for one in flat for key in one)
    varying = [key for key in keys if len({repr(one.get(key)) for one in flat}) > 1]
    return [
        " ".join(f"{key.split('.')[-1]}={one[key]}" for key in varying if key in one)
        for one in flat
    ]  # fmt: skip


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def default_out(recipes: Sequence[Recipe]) -> Path:
    """``runs/<data>-<methods>-<hash>``: the same question gets the same directory."""
    names = [type(one.method).__name__ for one in recipes]
    several = list(dict.fromkeys(names))
    shown = several if len(several) <= 3 else [*several[:2], f"{len(several) - 2}more"]
    data = Path(str(recipes[0].stream["data"])).stem or "data"
    mark = hashlib.sha256("".join(sorted({one.key for one in recipes})).encode()).hexdigest()[:6]
    return Path("runs") / re.sub(r"[^\w.-]+", "_", "-".join([data, *shown, mark]))
