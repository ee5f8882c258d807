"""From options to plain recipes. Heavy: imported inside commands."""

from __future__ import annotations

import copy
import difflib
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from engram.errors import BadArgument, bad, unknown
from engram.memory.budget import BUDGETS
from engram.recipes import Recipe, build_method, set_value
from engram.recipes.assign import SECTIONS
from engram.recipes.plain import to_plain

Content = dict[str, Any]


def contents(
    *, recipe: Path | None = None, data: str | None = None, methods: Sequence[str] = (),
    model: str | None = None, stream: str | None = None, seeds: str | None = None,
    keep: str | None = None, probes: Sequence[str] = (),
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
        base = read_content(recipe)
    section = base["stream"]
    base["stream"] = dict(section) if isinstance(section, Mapping) else {"data": section}
    changes = {"data": data, "kind": stream}
    base["stream"] |= {name: value for name, value in changes.items() if value is not None}
    base["model"] = model if model is not None else base.get("model", "mlp")
    if keep is not None:
        base["keep"] = keep
    if probes:
        base["probes"] = [*(base.get("probes") or ()), *probes]
    if seeds is not None:
        base["seeds"] = parse_seeds(seeds)
    wanted = [method_spec(name) for name in methods] or [_named(base["method"])]
    if methods:
        base.pop("label", None)  # it spoke of the file's own method
    return [{**copy.deepcopy(base), "method": method} for method in wanted]


def read_content(path: Path) -> Content:
    """The plain values of a recipe file, without defaults filled in; `build` checks them."""
    from engram.yaml_text import read_yaml_file

    content = read_yaml_file("recipe", path)
    if not isinstance(content, dict):
        raise bad(f"recipe {path}", f"a mapping with sections {', '.join(SECTIONS)}", content)
    for name in content:
        if name not in SECTIONS:
            raise unknown(f"recipe {path}", name, SECTIONS)
    for name in ("stream", "method"):
        if name not in content:
            raise bad(f"recipe {path}: {name}", "a section (it has no default)", "nothing")
    return content


def method_spec(text: str) -> Content:
    """The plain form of a method's name; ``A+B`` trains both at once.

    Examples
    --------
    >>> method_spec("ER+EWC")
    {'name': 'Join', 'parts': [{'name': 'ER'}, {'name': 'EWC'}]}
    """
    names = [name.strip() for name in text.split("+")]
    if len(names) == 1:
        return {"name": names[0]}
    return {"name": "Join", "parts": [{"name": name} for name in names]}


def _named(method: Any) -> Content:
    found = {"name": method} if isinstance(method, str) else method
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        raise bad("method", "a name, or a mapping with a name", method)
    parts = found.get("parts", [])
    if not isinstance(parts, list):
        raise bad("method.parts", "a list of methods", parts)
    return {**found, "parts": [_named(one) for one in parts]} if "parts" in found else found


def parse_seeds(text: str) -> int | list[int]:
    """A number of seeds, or the seeds themselves.

    Examples
    --------
    >>> parse_seeds("3"), parse_seeds("4,5")
    (3, [4, 5])
    """
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise bad("--seeds", "a number of seeds, or seeds separated by commas", text)
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else numbers


def assign(recipes: Sequence[Content], assignment: str) -> None:
    """Apply ``key=value`` to every recipe that has such a field; at least one must.

    A key that begins with the name of a method concerns that method only.

    Examples
    --------
    >>> recipes = contents(data="digits", methods=["Finetune", "ER"])
    >>> assign(recipes, "ER.memory.total=200")
    >>> recipes[0]["method"], recipes[1]["method"]["memory"]["total"]
    ({'name': 'Finetune'}, 200)
    """
    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise bad("--set", "key=value", assignment)
    for content in recipes:
        content["method"] = _named(content["method"])  # an assignment before may have changed it
    head, _, rest = key.partition(".")
    named = [one for content in recipes for one in _methods(content) if one["name"] == head]
    if named and rest:
        for method in named:
            _put_field(method, rest, text)
        return
    failures = []
    for content in recipes:
        try:
            _put(content, key, text)
        except BadArgument as error:
            if error.kind != "unknown" or not str(error).startswith("--set:"):
                raise
            failures.append(error)
    if len(failures) == len(recipes):
        raise max(failures, key=lambda error: _closeness(key, str(error)))


def _closeness(key: str, complaint: str) -> float:
    """How near the name that a complaint proposes is to what was written."""
    guess = re.search(r"did you mean '(.*?)'", complaint)
    return difflib.SequenceMatcher(None, key, guess[1]).ratio() if guess else 0.0


def _methods(content: Content) -> Iterator[Content]:
    """The recipe's method and, where it joins several, each of them."""
    method = content["method"]
    yield method
    yield from (part for part in method.get("parts", ()) if isinstance(part, dict))


def _put(content: Content, key: str, text: str) -> None:
    head, _, rest = key.removeprefix("method.").partition(".")
    if not rest or (head in SECTIONS and not key.startswith("method.")):
        set_value(content, f"{key}={text}")
        return
    known = [f.name for f in fields(build_method(content["method"]))]
    if head not in known:
        raise unknown("--set", head, [*known, *SECTIONS])
    _put_field(content["method"], f"{head}.{rest}", text)


def _put_field(method: Content, key: str, text: str) -> None:
    """Set a field of a method, or a field inside one, such as memory.total."""
    name, _, inner = key.partition(".")
    if not inner:
        holder = {"method": method}
        set_value(holder, f"method.{name}={text}")
        return
    current = getattr(build_method(method), name, None)
    if not is_dataclass(current):
        raise bad("--set", f"a field of {method['name']} that has fields itself", key)
    values = {k: v for k, v in to_plain(current).items() if v is not None}
    if inner in BUDGETS and BUDGETS[0] in {f.name for f in fields(current)}:
        values = {k: v for k, v in values.items() if k not in BUDGETS}  # one budget at a time
    holder = {"method": values}
    set_value(holder, f"method.{inner}={text}")
    method[name] = values


def grid(recipes: Sequence[Content], axes: Sequence[str]) -> list[Content]:
    """Every recipe with every combination of the axes ``key=value,value,...``.

    Examples
    --------
    >>> base = contents(data="digits", methods=["Finetune"])
    >>> [one["training"] for one in grid(base, ["lr=0.1,0.01"])]
    [{'lr': 0.1}, {'lr': 0.01}]
    """
    points = []
    for content in recipes:
        for choice in itertools.product(*map(_axis, axes)):
            point = copy.deepcopy(content)
            for assignment in choice:
                assign([point], assignment)
                point["method"] = _named(point["method"])
            points.append(point)
    return points


def _axis(text: str) -> list[str]:
    from engram.yaml_text import parse_yaml

    key, equals, values = text.partition("=")
    found = parse_yaml(f"--grid {key}", f"[{values}]") if equals and key else None
    if not found:
        raise bad("--grid", "key=value,value,...", text)
    return [f"{key}={json.dumps(value)}" for value in found]


def build(plain: Sequence[Content]) -> list[Recipe]:
    """Checked recipes; equal labels of different recipes are told apart by what differs."""
    built = [Recipe.of(content) for content in plain]
    taken: dict[str, set[str]] = {}
    for one in built:
        taken.setdefault(one.label, set()).add(one.key)
    return [
        one if len(taken[one.label]) == 1 else one.change(label=f"{one.label} {extra}")
        for one, extra in zip(built, _differences(plain), strict=True)
    ]


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
