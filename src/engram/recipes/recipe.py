"""A recipe names everything a run needs; its content hash is its id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from engram import streams
from engram.data import Data, load
from engram.engine.run_spec import Run
from engram.engine.training import Training
from engram.errors import bad, choose, unknown, whole
from engram.methods.base import Method
from engram.models.build import model_options
from engram.recipes.names import build_method, method_label, plain_method
from engram.recipes.plain import from_plain, to_plain
from engram.records import KEEP
from engram.streams.core import Stream

SECTIONS = ("stream", "model", "method", "training", "seeds", "keep", "average", "label")
DEFAULT_MODEL = "mlp"


@dataclass(frozen=True, eq=False, kw_only=True)
class Recipe:
    """Stream, model, method, training and seeds: nested, frozen, YAML and back.

    Examples
    --------
    >>> recipe = Recipe.of({"stream": {"data": "digits"}, "method": "ER", "seeds": 3})
    >>> recipe.seeds, recipe.label
    ((0, 1, 2), 'ER')
    >>> Recipe.of(recipe.plain()).id == recipe.id
    True
    """

    stream: Mapping[str, Any]
    method: Method
    model: Any = DEFAULT_MODEL
    training: Training = field(default_factory=Training)
    seeds: tuple[int, ...] = (0,)
    keep: str = "scores"
    average: str = "micro"
    label: str = ""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Recipe:
        """A checked recipe from plain values."""
        for name in content:
            if name not in SECTIONS:
                raise unknown("recipe", name, SECTIONS)
        for name in ("stream", "method"):
            if name not in content:
                raise bad(f"recipe.{name}", "a section (it has no default)", "nothing")
        method = build_method(content["method"])
        return cls(
            stream=_stream_section(content["stream"]),
            method=method,
            model=_model_section(content.get("model", DEFAULT_MODEL)),
            training=from_plain(Training, content.get("training", {}), path="training"),
            seeds=_seeds(content.get("seeds", 1)),
            keep=choose("keep", content.get("keep", "scores"), KEEP),
            average=choose("average", content.get("average", "micro"), ("micro", "macro")),
            label=str(content.get("label") or method_label(method)),
        )

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """A recipe from a YAML file."""
        import yaml

        path = Path(path)
        if not path.is_file():
            raise bad("recipe", "an existing YAML file", str(path))
        try:
            content = yaml.safe_load(path.read_text())
        except yaml.YAMLError as error:
            raise bad(f"recipe {path}", f"YAML ({error})", "something else") from None
        if not isinstance(content, Mapping):
            raise bad(f"recipe {path}", f"a mapping with sections {', '.join(SECTIONS)}", content)
        return cls.of(content)

    def plain(self) -> dict[str, Any]:
        """Nested plain values; `of` takes them back."""
        return {
            "stream": to_plain(self.stream), "model": to_plain(self.model),
            "method": plain_method(self.method), "training": to_plain(self.training),
            "seeds": list(self.seeds), "keep": self.keep, "average": self.average,
            "label": self.label,
        }  # fmt: skip

    def write(self, path: str | Path) -> Path:
        """Write the recipe as YAML."""
        from engram.records.files import write_yaml

        return write_yaml(path, self.plain())

    @cached_property
    def content(self) -> Mapping[str, Any]:
        """`plain`, made once and shared: for reading only."""
        return self.plain()

    @cached_property  # a study of orders asks thousands of times
    def id(self) -> str:
        """Hash of everything but seeds, order and label: runs with equal ids are comparable."""
        return content_id(self.content)

    @property
    def order(self) -> str:
        """The stream's explicit order as text, "" for its own."""
        order = self.stream.get("order")
        return "-".join(map(str, order)) if order is not None else ""

    def data(self, root: str | None = None) -> Data:
        """The recipe's data set."""
        return load(self.stream["data"], root=root, **self.stream.get("data_options", {}))

    def build_stream(self, data: Data | None = None, *, root: str | None = None) -> Stream:
        """The recipe's stream, over `data` where it is loaded already."""
        data = self.data(root) if data is None else data
        options = {
            k: v for k, v in self.stream.items() if k not in ("kind", "data", "data_options")
        }
        online = options.pop("online", False)
        scenario = streams.SCENARIOS[self.stream["kind"]]
        try:
            stream = scenario(data, **options)
        except TypeError as error:
            if "unexpected keyword" not in str(error):
                raise
            raise unknown(f"stream ({scenario.__name__})", str(error).split("'")[1],
                          scenario.__kwdefaults__ or ()) from None  # fmt: skip
        return streams.online(stream) if online else stream

    def runs(self, stream: Stream) -> list[Run]:
        """One engine run per seed."""
        return [
            Run(stream=stream, method=self.method, model=self.model, training=self.training, seed=s)
            for s in self.seeds
        ]

    def change(self, **values: Any) -> Recipe:
        """The recipe with some sections replaced.

        Examples
        --------
        >>> recipe = Recipe.of({"stream": {"data": "digits"}, "method": "ER"})
        >>> recipe.change(seeds=(4, 5)).seeds
        (4, 5)
        """
        return replace(self, **values)

    def in_order(self, order: Sequence[int]) -> Recipe:
        """The recipe with its classes in another order, which does not change its id.

        Examples
        --------
        >>> recipe = Recipe.of({"stream": {"data": "digits"}, "method": "ER"})
        >>> other = recipe.in_order((1, 0, 2))
        >>> other.order, other.id == recipe.id
        ('1-0-2', True)
        """
        found = self.change(stream={**self.stream, "order": list(order)})
        # what all orders share is worked out once
        content = {**self.content, "stream": {**self.content["stream"], "order": list(order)}}
        found.__dict__.update(id=self.id, content=content)
        return found


def content_id(content: Mapping[str, Any]) -> str:
    """12 hexadecimal digits over a recipe without seeds, order and label."""
    kept = {k: v for k, v in content.items() if k not in ("seeds", "label", "keep")}
    kept["stream"] = {k: v for k, v in content["stream"].items() if k != "order"}
    text = json.dumps(kept, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _stream_section(section: Any) -> dict[str, Any]:
    if isinstance(section, str):
        section = {"data": section}
    if not isinstance(section, Mapping) or "data" not in section:
        raise bad("stream.data", "the name or path of a data set", section)
    kind = section.get("kind", "class_incremental")
    choose("stream.kind", kind, streams.SCENARIOS)
    return {"kind": kind, **section}


def _model_section(section: Any) -> Any:
    if isinstance(section, Mapping) and "name" not in section:
        raise bad("model.name", "the name of a model", dict(section))
    return dict(section) if isinstance(section, Mapping) else section


def _seeds(value: Any) -> tuple[int, ...]:
    """A number of seeds, or the seeds themselves."""
    if isinstance(value, int) and not isinstance(value, bool):
        return tuple(range(whole("seeds", value, 1)))
    if not isinstance(value, (list, tuple)) or not value:
        raise bad("seeds", "a number of seeds, or a list of them", value)
    return tuple(whole("seeds", int(seed)) for seed in value)


def set_value(content: dict[str, Any], assignment: str) -> None:
    """Apply ``key=value`` to a plain recipe; a bare field name works where it is unique.

    Examples
    --------
    >>> content = {"stream": {"data": "digits"}, "method": {"name": "EWC"}}
    >>> set_value(content, "epochs=3")
    >>> set_value(content, "method.strength=10")
    >>> set_value(content, "hidden=[32]")
    >>> content["training"], content["method"], content["model"]
    ({'epochs': 3}, {'name': 'EWC', 'strength': 10}, {'name': 'mlp', 'hidden': [32]})
    """
    import yaml

    key, equals, text = assignment.partition("=")
    if not equals or not key:
        raise bad("--set", "key=value", assignment)
    value = yaml.safe_load(text)
    path = key.split(".")
    if len(path) == 1 and key not in SECTIONS:
        path = [_home(content, key), key]
    target = content
    for name in path[:-1]:
        inner = target.get(name)
        if not isinstance(inner, dict):
            inner = DEFAULT_MODEL if inner is None and name == "model" else inner
            inner = (
                {} if inner is None else {"name": inner} if name != "stream" else {"data": inner}
            )
        target[name] = inner
        target = inner
    target[path[-1]] = value


def _home(content: Mapping[str, Any], key: str) -> str:
    """The section a bare field name belongs to."""
    method = build_method(content.get("method", "Finetune"))
    kind = _stream_section(content.get("stream", {"data": "digits"}))["kind"]
    model = _model_section(content.get("model", DEFAULT_MODEL))
    model = model["name"] if isinstance(model, dict) else model
    owners = {
        "model": set(model_options(model) if isinstance(model, str) else ()),
        "training": {f.name for f in fields(Training)},
        "method": {f.name for f in fields(method)},
        "stream": {*(streams.SCENARIOS[kind].__kwdefaults__ or ()), "data", "kind", "online"},
    }
    found = [section for section, names in owners.items() if key in names]
    if len(found) == 1:
        return found[0]
    if not found:
        raise unknown("--set", key, set().union(*owners.values()))
    choices = " or ".join(f"{section}.{key}" for section in found)
    raise bad("--set", f"one of {choices}, because the bare name is in both", key)
