"""A recipe names everything a run needs; its content hash is its id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from engram import streams
from engram.data import Data, load
from engram.errors import bad, unknown
from engram.recipes.assign import SECTIONS
from engram.recipes.experiment import Experiment, checked
from engram.recipes.identity import identify, options_hash, shown_model
from engram.recipes.names import plain_method
from engram.recipes.outside import plain_outside
from engram.recipes.plain import to_plain
from engram.recipes.probing import plain_probe
from engram.recipes.sections import (
    balance_options,
    scenario_options,
    search_options,
    stream_section,
)
from engram.streams.core import Stream
from engram.streams.orders import order_text
from engram.yaml_text import read_yaml_file


@dataclass(frozen=True, eq=False, kw_only=True)
class Recipe(Experiment):
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

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Recipe:
        """A checked recipe from plain values."""
        _check_sections(content)
        return cls(stream=stream_section(content["stream"]), **checked(content))

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """A recipe from a YAML file."""
        return cls.of(read_recipe(path))

    def plain(self) -> dict[str, Any]:
        """Nested plain values; `of` takes them back."""
        return {
            "stream": to_plain(self.stream), "model": to_plain(self.model),
            "method": plain_method(self.method), "training": to_plain(self.training),
            "seeds": list(self.seeds), "keep": self.keep, "average": self.average,
            "label": self.label,
            **({"probes": [plain_probe(one) for one in self.probes]} if self.probes else {}),
            **({} if self.outside is None else {"outside": plain_outside(self.outside)}),
        }  # fmt: skip

    def write(self, path: str | Path) -> Path:
        """Write the recipe as YAML."""
        from engram.records.files import write_yaml

        return write_yaml(path, self.plain())

    @property
    def id(self) -> str:
        """The id under which runs of the recipe are recorded: runs with equal ids are comparable.

        A hash of the experiment: contents of the data, which is read for it, source of own classes,
        and all options; not of seeds, order, label, probes, outside set and what is kept.
        """
        return identify(
            self.build_stream(), method=self.method, model=self.model, training=self.training,
            average=self.average,
        ).id  # fmt: skip

    @cached_property  # a study of orders asks thousands of times
    def key(self) -> str:
        """Hash of what the recipe says, names as they stand: it needs no data, and proves less."""
        stream = {**(streams.SCENARIOS[self.stream["kind"]].__kwdefaults__ or {}), **self.stream}
        return options_hash({**self.plain(), "stream": stream, "model": shown_model(self.model)})

    @property
    def order(self) -> str:
        """The stream's explicit order, or number of a published one, as text; "" for its own."""
        defaults = streams.SCENARIOS[self.stream["kind"]].__kwdefaults__ or {}
        return order_text({**defaults, **self.stream})

    def data(self, root: str | None = None) -> Data:
        """The recipe's data set."""
        return load(self.stream["data"], root=root, **self.stream.get("data_options", {}))

    def build_stream(self, data: Data | None = None, *, root: str | None = None) -> Stream:
        """The recipe's stream, over `data` where it is loaded already."""
        data = self.data(root) if data is None else data
        stream = streams.SCENARIOS[self.stream["kind"]](data, **scenario_options(self.stream))
        balanced = balance_options(self.stream)
        if balanced is not None:
            stream = streams.balance(stream, **balanced)
        if self.stream.get("online", False):
            stream = streams.online(stream, task_labels=self.stream.get("task_labels", True))
        cut = search_options(self.stream)
        return stream if cut is None else streams.for_search(stream, **cut)

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
        found.__dict__["key"] = self.key  # which all orders share
        return found


def read_recipe(path: str | Path) -> dict[str, Any]:
    """The plain values of a recipe file, without defaults filled in; `Recipe.of` checks them."""
    content: dict[str, Any] = read_yaml_file("recipe", path)
    _check_sections(content, f" {path}", ": ")
    return content


def _check_sections(content: Any, where: str = "", joint: str = ".") -> None:
    """Refuse what is no recipe at all; `where` is the file it comes from."""
    if not isinstance(content, Mapping):
        raise bad(f"recipe{where}", f"a mapping with sections {', '.join(SECTIONS)}", content)
    for name in content:
        if name not in SECTIONS:
            raise unknown(f"recipe{where}", name, SECTIONS)
    for name in ("stream", "method"):
        if name not in content:
            raise bad(f"recipe{where}{joint}{name}", "a section (it has no default)", "nothing")
