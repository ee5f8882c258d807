"""The streams of IIRC as they were published: class trees, task configurations, splits."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

from engram.data.core import Data
from engram.errors import bad, choose, whole
from engram.streams.core import Stream
from engram.streams.hierarchy import hierarchical
from engram.streams.origin import scenario
from engram.streams.tree import FINE, SUPER

VARIANTS = ("cifar", "imagenet-full", "imagenet-lite")
HELD = {"cifar": 0.1, "imagenet": 0.04}  # shares for in-task and for post-task validation
_KEYED = {"cifar": "name", "imagenet": "wnid"}
_SHOWN = 5  # missing classes that an error names


@scenario
def iirc(data: Data, variant: str = "cifar", *, configuration: int = 0,
         information: str = "incomplete") -> Stream:  # fmt: skip
    """Implicitly refined classes as published: superclasses first, their subclasses later.

    Parameters
    ----------
    data
        CIFAR-100, or ImageNet with classes named by wnid (as its folders are).
    variant
        ``cifar``: 22 tasks, 115 classes; ``imagenet-full``: 35 tasks, 1083 classes;
        ``imagenet-lite``: 10 tasks, 333 of these classes.
    configuration
        Which of the published orders of classes: 0 to 9 for CIFAR, 0 to 4 for ImageNet.
    information
        As in `hierarchical`: which labels of a task's rows training is told.

    Notes
    -----
    Abdelsalam et al. 2021 (CVPR); trees and orders are those of the package ``iirc`` 1.0.1 (MIT
    licence, chandar-lab). How rows are shared out: `hierarchical`.

    Examples
    --------
    >>> names = [name for members in published("cifar")[0].values() for name in members]
    >>> names += published("cifar")[1]
    >>> data = Data.from_arrays([[0.0]] * 5000, names * 50)
    >>> iirc(data, "cifar", configuration=3)
    Stream('iirc-cifar': 22 tasks, 115 classes, single head, label sets)
    >>> iirc(data, "cifar", configuration=10)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: configuration: expected a whole number from 0 to 9, got 10
    """
    choose("variant", variant, VARIANTS)
    superclasses, orphans, orders = published(variant)
    if whole("configuration", configuration) >= len(orders):
        last = f"a whole number from 0 to {len(orders) - 1}"
        raise bad("configuration", last, configuration)
    family = variant.split("-")[0]
    _check_classes(data, [c for below in superclasses.values() for c in below] + orphans, family)
    tree = {name: [FINE + c for c in below] for name, below in superclasses.items()}
    tasks = [[(SUPER if c in tree else FINE) + c for c in group] for group in orders[configuration]]
    stream = hierarchical(
        data, hierarchy=tree, tasks=tasks, valid=HELD[family], post_valid=HELD[family],
        information=information,
    )  # fmt: skip
    return replace(stream, name=f"iirc-{variant}")


def published(variant: str) -> tuple[dict[str, list[str]], list[str], list[list[list[str]]]]:
    """(subclasses of each superclass, classes without one, tasks of each configuration).

    Examples
    --------
    >>> superclasses, orphans, orders = published("imagenet-lite")
    >>> len(superclasses), len(superclasses["dog"]), len(orphans), [len(o) for o in orders]
    (85, 118, 210, [10, 10, 10, 10, 10])
    """
    tree = _metadata()["hierarchies"][variant.split("-")[0]]
    return tree["superclasses"], tree["orphans"], _metadata()["tasks"][variant]


@cache
def _metadata() -> dict[str, Any]:
    packed = resources.files("engram.streams").joinpath("metadata", "iirc.json.gz").read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(packed))
    return found


def _check_classes(data: Data, wanted: list[str], family: str) -> None:
    known = set(data.classes)
    missing = [name for name in wanted if name not in known]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        expected = f"the {len(wanted)} classes of IIRC's {family}, by {_KEYED[family]}"
        raise bad("data", expected, f"{data.name!r} without {missing[:_SHOWN]}{more}")
