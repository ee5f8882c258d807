"""Streams of tasks: row numbers and class masks over one `Data`, and the scenarios that make them.

Inputs are never copied here, and nothing is trained: see `engram.data` and `engram.engine`. Begin
with `stream` (`Stream`, `Task`), then `incremental_streams.class_incremental`, the simplest
scenario; `access_guard` enforces what a method may read.
"""

from collections.abc import Callable
from inspect import isfunction, signature

from engram.errors import bad, check_choice
from engram.plugins import load_user_object
from engram.streams.access_guard import Ledger, MethodView
from engram.streams.balanced_streams import balance
from engram.streams.blurry_streams import blurry, new_instances, online
from engram.streams.domain_streams import domain_incremental, permuted, rotated
from engram.streams.hierarchical_streams import hierarchical, hierarchical_data, iirc
from engram.streams.incremental_streams import class_incremental, joint, task_incremental
from engram.streams.novelty_sequences import eight_task, tinyimagenet_seq
from engram.streams.stream import Stream, Task, View, scenario
from engram.streams.task_orders import (
    all_task_orders,
    class_order,
    order_name,
    parse_order,
    random_class_orders,
    reorder,
)
from engram.streams.validation_streams import make_search_stream, make_tuning_data

SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        class_incremental, task_incremental, domain_incremental, permuted, rotated,
        hierarchical, iirc, tinyimagenet_seq, eight_task, blurry, new_instances, joint,
    )
}  # fmt: skip


def find_scenario(kind: str) -> Callable[..., Stream]:
    """Return a scenario by its name, or a function of the user's, ``module:function``.

    Examples
    --------
    >>> find_scenario("rotated") is rotated
    True
    """
    if not isinstance(kind, str) or ":" not in kind:
        return SCENARIOS[check_choice("stream.kind", kind, SCENARIOS)]
    found = load_user_object(kind, what="stream.kind")
    if not isfunction(found) or not signature(found).parameters:
        raise bad("stream.kind", "a function (data, ...) that returns a Stream", found)
    return scenario(found, kind)


# Required options of scenarios, with an example value.
NEEDED: dict[str, dict[str, str]] = {
    "domain_incremental": {"by": "view"},
    "permuted": {"tasks": "5"},
    "rotated": {"angles": "[0, 30, 60]"},
    "hierarchical": {"hierarchy": "{even: [0, 2, 4, 6, 8], odd: [1, 3, 5, 7, 9]}"},
    "new_instances": {"tasks": "5"},
}

__all__ = [
    "NEEDED",
    "SCENARIOS",
    "Ledger",
    "MethodView",
    "Stream",
    "Task",
    "View",
    "all_task_orders",
    "balance",
    "blurry",
    "class_incremental",
    "class_order",
    "domain_incremental",
    "eight_task",
    "find_scenario",
    "make_search_stream",
    "make_tuning_data",
    "hierarchical",
    "hierarchical_data",
    "iirc",
    "joint",
    "new_instances",
    "online",
    "order_name",
    "parse_order",
    "permuted",
    "random_class_orders",
    "reorder",
    "rotated",
    "task_incremental",
    "tinyimagenet_seq",
]
