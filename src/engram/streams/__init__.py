"""Streams of tasks: row numbers and class masks over one Data.

A scenario is a function from data to a stream; `SCENARIOS` has them by name.
"""

from engram.streams.borders import blurry, new_instances, online
from engram.streams.core import Stream, Task, View
from engram.streams.domains import domain_incremental, permuted, rotated
from engram.streams.guard import Ledger, MethodView
from engram.streams.hierarchy import hierarchical, hierarchical_data
from engram.streams.incremental import class_incremental, joint, task_incremental
from engram.streams.orders import (
    all_task_orders,
    class_order,
    order_name,
    parse_order,
    random_class_orders,
    reorder,
)

SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        class_incremental, task_incremental, domain_incremental, permuted, rotated,
        hierarchical, blurry, new_instances, joint,
    )
}  # fmt: skip

__all__ = [
    "SCENARIOS",
    "Ledger",
    "MethodView",
    "Stream",
    "Task",
    "View",
    "all_task_orders",
    "blurry",
    "class_incremental",
    "class_order",
    "domain_incremental",
    "hierarchical",
    "hierarchical_data",
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
]
