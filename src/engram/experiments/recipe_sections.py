"""The stream, model and orders sections of a recipe, checked before anything is loaded."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import nn

from engram import streams
from engram.errors import bad, check_choice, check_int, unknown
from engram.experiments.plain_values import code_name, convert, type_hints
from engram.models.build import check_freeze, check_head, model_options
from engram.models.timm_networks import is_timm
from engram.models.user_networks import is_user_network_name, load_maker, takes_any_option

DEFAULT_KIND = "class_incremental"
DEFAULT_MODEL = "mlp"
# fields that every stream section may have
COMMON_STREAM_FIELDS = (
    "kind",
    "data",
    "data_options",
    "balance",
    "online",
    "task_labels",
    "search",
)


def stream_kind(section: Any) -> str:
    """Return the scenario that a stream section names.

    Examples
    --------
    >>> stream_kind("digits"), stream_kind({"data": "digits", "kind": "rotated"})
    ('class_incremental', 'rotated')
    """
    kind = section.get("kind", DEFAULT_KIND) if isinstance(section, Mapping) else DEFAULT_KIND
    if not isinstance(kind, str) or ":" not in kind:
        check_choice("stream.kind", kind, streams.SCENARIOS)
    return str(kind)


def stream_options(kind: str) -> dict[str, Any]:
    """Return the options of a scenario with their defaults; ``inspect.Parameter.empty`` for none.

    Examples
    --------
    >>> stream_options("new_instances")["valid"], len(stream_options("new_instances"))
    (0.0, 3)
    """
    _data, *given = inspect.signature(streams.find_scenario(kind)).parameters.values()
    return {p.name: p.default for p in given}


def check_stream_section(section: Any) -> dict[str, Any]:
    """Check a stream section and add its kind; errors name the wrong field.

    Examples
    --------
    >>> check_stream_section({"data": "digits", "kind": "rotated"})
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: stream.angles: expected a value, which rotated needs, ...
    """
    if isinstance(section, (str, os.PathLike)):
        section = {"data": section}
    if not isinstance(section, Mapping) or "data" not in section:
        raise bad("stream.data", "the name or path of a data set", section)
    source = section["data"]
    if not isinstance(source, (str, os.PathLike)) or not str(source):
        raise bad("stream.data", "the name or path of a data set", source)
    kind = stream_kind(section)
    options = section.get("data_options", {})
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise bad("stream.data_options", "a mapping of options of the data set", options)
    for name in ("online", "task_labels"):
        if not isinstance(section.get(name, False), bool):
            raise bad(f"stream.{name}", "true or false", section[name])
    if not section.get("task_labels", True) and not section.get("online", False):
        raise bad("stream.task_labels", "true unless the stream is online", False)
    balance_options(section)
    search_options(section)
    scenario_options(section)
    known = stream_options(kind)
    for name, default in known.items():
        if default is inspect.Parameter.empty and name not in section:
            raise bad(f"stream.{name}", describe_missing_option(kind), "nothing")
    return {"kind": kind, **section, **_attribute_column(section)}


TABLE_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".pq")


def _attribute_column(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with which the column `by` of a table is read as an attribute."""
    by, options = section.get("by"), dict(section.get("data_options") or {})
    if by is None or not str(section["data"]).lower().endswith(TABLE_SUFFIXES):
        return {}
    given = options.get("attributes", [])
    if isinstance(given, Mapping):
        return {}
    known = [given] if isinstance(given, str) else list(given)
    return {} if by in known else {"data_options": {**options, "attributes": [*known, by]}}


def balance_options(section: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options for balancing classes by copies; None for no balancing.

    Examples
    --------
    >>> balance_options({"balance": True}), balance_options({"balance": {"degrees": 10}})
    ({}, {'degrees': 10})
    """
    given = section.get("balance", False)
    if given is None or isinstance(given, bool):
        return {} if given else None
    if not isinstance(given, Mapping):
        raise bad("stream.balance", "true, false or a mapping of its options", given)
    return _check_options(streams.balance, given, "stream.balance")


def search_options(section: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the options for cutting a stream for a search of hyper-parameters; None for no cut.

    Examples
    --------
    >>> search_options({"search": {"tasks": 3}}), search_options({})
    ({'tasks': 3}, None)
    """
    given = section.get("search")
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise bad("stream.search", "a mapping, such as {tasks: 3, on: valid}", given)
    return _check_options(streams.make_search_stream, given, "stream.search")


def _check_options(change: Any, given: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Check the options that a section gives to a function that changes streams."""
    hints = type_hints(change)
    known = list(inspect.signature(change).parameters)[1:]
    for name, value in given.items():
        if name not in known:
            raise unknown(path, name, known)
        convert(hints[name], value, path=f"{path}.{name}")
    return dict(given)


def describe_missing_option(kind: str) -> str:
    """Describe the required options of a scenario."""
    shown = " ".join(f"--set '{k}={v}'" for k, v in streams.NEEDED.get(kind, {}).items())
    return f"a value, which {kind} needs{f', such as {shown}' if shown else ''}"


def scenario_options(section: Mapping[str, Any]) -> dict[str, Any]:
    """Check and convert the arguments that a section gives to its scenario."""
    kind = stream_kind(section)
    hints = type_hints(streams.find_scenario(kind))
    found = {}
    for name, value in section.items():
        if name in COMMON_STREAM_FIELDS:
            continue
        if name not in stream_options(kind):
            raise unknown(f"stream ({kind})", name, [*stream_options(kind), *COMMON_STREAM_FIELDS])
        checked = convert(hints.get(name, Any), value, path=f"stream.{name}")
        # Numbers written as text, such as 1e-3, which YAML reads as a string, become numbers.
        found[name] = checked if isinstance(value, str) else value
    return found


def check_model_section(section: Any) -> Any:
    """Check a model section: a name, a mapping with name and options, or (in Python) a module."""
    if section is None or isinstance(section, (bool, int, float, list, tuple)):
        raise bad("model", "the name of a model, or a mapping with a name", section)
    named = section.get("name") if isinstance(section, Mapping) else None
    own: Any = named if isinstance(named, nn.Module) or callable(named) else None
    if isinstance(section, Mapping) and not isinstance(named, str) and own is None:
        raise bad("model.name", "the name of a model", dict(section))
    if isinstance(section, str):
        model_options(section)
    elif isinstance(section, Mapping):
        known = model_options(section["name"])
        free = is_timm(named) or takes_any_option(
            load_maker(named) if is_user_network_name(named) else named
        )
        for name in section:
            if name != "name" and name not in known and not free:
                shown = named if isinstance(named, str) else code_name(named)
                raise unknown(f"option of model {shown}", name, known)
        if "head" in section:
            check_head(section["head"])
        freeze = check_freeze(section.get("freeze", False))
        section = {key: value for key, value in section.items() if key != "freeze"}
        if freeze is not None:  # false is the same as leaving it out
            section["freeze"] = freeze or True
    return dict(section) if isinstance(section, Mapping) else section


# The orders of a study, all of which are runs of one recipe.


ORDER_FIELDS = ("task_orders", "class_orders", "order_seed")


def check_orders(section: Any) -> dict[str, Any] | None:
    """Check an orders section; None for no study.

    Examples
    --------
    >>> check_orders({"class_orders": 3})
    {'task_orders': 0, 'class_orders': 3, 'order_seed': 0}
    """
    if section is None:
        return None
    if not isinstance(section, Mapping):
        raise bad("orders", f"a mapping of {', '.join(ORDER_FIELDS)}", section)
    for name in section:
        if name not in ORDER_FIELDS:
            raise unknown("orders", name, ORDER_FIELDS)
    tasks, classes = section.get("task_orders", 0), section.get("class_orders", 0)
    if isinstance(tasks, str) and tasks != "all":
        raise bad("task_orders", "'all', a number, or a list of orders", tasks)
    found = {
        "task_orders": tasks if tasks == "all" else _check_order_list("task_orders", tasks),
        "class_orders": _check_order_list("class_orders", classes),
        "order_seed": check_int("order_seed", section.get("order_seed", 0)),
    }
    if not found["task_orders"] and not found["class_orders"]:
        raise bad("task_orders", "at least one order (or class_orders)", tasks)
    return found


def _check_order_list(argument: str, given: Any) -> int | list[list[int]]:
    """Check a number of orders, or the orders themselves, each once."""
    if isinstance(given, int) and not isinstance(given, bool):
        return check_int(argument, given)
    try:
        found = [tuple(order) for order in given]
    except TypeError:
        expected = "a number, or a list of orders such as [(0, 1), (1, 0)]"
        raise bad(argument, expected, given) from None
    twice = [order for order, times in Counter(found).items() if times > 1]
    if twice:
        raise bad(argument, "every order only once", f"{twice} more than once")
    return [[int(one) for one in order] for order in found]
