"""Hierarchical streams (IIRC): superclasses first, their subclasses later, one label at a time."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from engram import keys
from engram.data.dataset import Data
from engram.errors import bad, check_choice, check_float, check_int, unknown
from engram.streams.class_groups import all_classes, check_seed, check_tasks, class_id
from engram.streams.class_tree import FINE_PREFIX, SUPER_PREFIX, ClassTree, Hierarchy, read_tree
from engram.streams.row_numbers import (
    ROW_PARTS,
    count_fraction,
    exact_fraction,
    find_rows_with,
    shuffle_rows,
    split_by_class,
)
from engram.streams.stream import Stream, Task, scenario


@scenario
def hierarchical(
    data: Data,
    *,
    hierarchy: Hierarchy,
    tasks: Sequence[Sequence[str | int]] | None = None,
    first: int | None = None,
    classes_per_task: int = 5,
    seed: int = 0,
    valid: float = 0.1,
    post_valid: float = 0.1,
    super_share: float = 0.4,
    sub_share: float = 0.8,
    cap: int = 8,
    shuffle: bool = False,
    information: str = "incomplete",
    joint: bool = False,
) -> Stream:
    """Label samples with their superclass first, and with their own class in later tasks.

    Labels are incomplete while training: a task shows only the label it introduces, and a
    superclass and its subclass share only part of their rows. Post-task validation and test rows
    of a task are all rows of its classes. `iirc` has the published trees and tasks.

    Parameters
    ----------
    data
        Rows with one (fine) label. The stream runs over `hierarchical_data(data, ...)`, which
        shares its inputs.
    hierarchy
        Subclasses (names or ids) of each superclass; a subclass may be a superclass itself, to any
        depth. Or the path of a file ``.csv`` with the columns child and parent (empty at the top),
        or the name of an attribute of the data whose values are the superclasses. Fine classes not
        named have no superclass.
    tasks
        Classes of each task: names, where needed with the prefix ``superclass/`` or ``fine/``.
        A superclass must come in a strictly earlier task than its subclasses. None draws them:
        `first` random superclasses of the top (default: two thirds of them), then
        `classes_per_task` classes each.
    valid, post_valid
        Shares of each fine class's training rows, the first ones in stored order, for in-task and
        post-task validation.
    super_share, sub_share, cap
        Of n rows of a subclass its superclass gets the first ``super_share * n`` and the subclass
        the last ``sub_share * n``, rounded down. Superclasses with more than `cap` fine classes
        beneath them take proportionally less of each. In deeper trees this is done from the top
        down: what is left for a superclass's subclass is shared out again beneath it.
    shuffle
        Share out rows in a keyed random order instead of the stored one.
    information
        ``incomplete``: training uses the label that a task introduces; ``complete``: all labels of
        a row introduced so far. The rows are the same.
    joint
        One task with the rows of all tasks, each once, with all its labels: the upper bound to
        which streams are compared.

    Examples
    --------
    >>> data = Data.from_arrays([[float(i)] for i in range(100)], ["cat", "dog", "oak", "car"] * 25)
    >>> pets = {"pet": ["cat", "dog"]}
    >>> print(hierarchical(data, hierarchy=pets, tasks=[["pet"], ["dog", "car"]]))
    Stream('hierarchical': 2 tasks, 3 classes, single head, label sets) over 'data (hierarchical)'
    task  train  valid  post-valid  test  new classes
       0     12      0           4    10  superclass/pet
       1     28      3           4    10  fine/dog, fine/car
    """
    for name, share in (("super_share", super_share), ("sub_share", sub_share)):
        check_float(name, share, 0.0, 1.0, open_low=True)
    check_float("valid", valid, 0.0, 1.0)
    check_float("post_valid", post_valid, 0.0, 1.0)
    if valid + post_valid >= 1:
        raise bad("post_valid", "valid + post_valid below 1", (valid, post_valid))
    check_int("cap", cap, low=1)
    check_seed(seed)
    tree = read_tree(data, hierarchy)
    labelled = _label_once(data, tree)
    if tasks is None:
        every = all_classes(data, "`tasks` that name the classes to learn")
        groups = draw_schedule(tree.families, every, first, classes_per_task, seed)
    else:
        groups = _check_given_tasks(labelled, tree, tasks, first)
    rows = _ClassSplits(data, tree, (valid, post_valid), (super_share, sub_share), cap,
                 seed if shuffle else None)  # fmt: skip
    made = [rows.task(labelled, group) for group in groups]
    check_tasks(made, 0.0)
    stream = Stream(
        data=labelled, tasks=tuple(made), name="hierarchical", information=information
    )  # fmt: skip
    return _merge_tasks(stream) if joint else stream


def _merge_tasks(stream: Stream) -> Stream:
    """Return one task with the rows of all tasks, each once, and all labels."""
    parts = {part: torch.cat([getattr(task, part) for task in stream]) for part in ROW_PARTS}
    rows: dict[str, Any] = {part: found.unique() for part, found in parts.items()}
    task = Task(**rows, new=stream.order, visible=stream.order)
    return replace(stream, tasks=(task,))


def hierarchical_data(data: Data, *, hierarchy: Hierarchy) -> Data:
    """Return the same rows with all their labels: superclasses from the top down, then the class.

    Fine classes keep their ids, superclasses follow. Names get a prefix, since a superclass and a
    fine class may have the same one.

    Examples
    --------
    >>> data = Data.from_arrays([[float(i)] for i in range(15)], ["cat", "dog", "oak"] * 5)
    >>> both = hierarchical_data(data, hierarchy={"pet": ["cat", "dog"]})
    >>> both.classes
    ('fine/cat', 'fine/dog', 'fine/oak', 'superclass/pet')
    >>> both.y[:3].tolist()
    [[3, 0], [3, 1], [2, -1]]
    """
    return _label_once(data, read_tree(data, hierarchy))


def _label_once(data: Data, tree: ClassTree) -> Data:
    """Return the data with the labels of the tree, cached for all streams over both.

    Runs train together only over the same Data object.
    """
    known: dict[Any, Data] = data.__dict__.setdefault("_labelled", {})
    key = (tree.key, data.y._version)  # labels may have been changed in place
    if key not in known:
        known[key] = _label(data, tree)
    return known[key]


def _label(data: Data, tree: ClassTree) -> Data:
    fine = data.labels
    if bool((fine < 0).any()):
        raise bad("data", "a label for each row", "rows without one")
    nearest = torch.tensor([tree.parent.get(c, -1) for c in range(data.n_classes)])
    names = [FINE_PREFIX + name for name in data.classes] + [
        SUPER_PREFIX + name for name in tree.names
    ]
    columns = {
        **data.attributes, "fine": fine, "superclass": nearest.to(fine.device)[fine],
    }  # fmt: skip
    name = f"{data.name} (hierarchical)"
    return replace(data, y=tree.paths.to(fine.device)[fine], classes=tuple(names), name=name,
                   attributes=columns)  # fmt: skip


def count_superclass_rows(n: int, subclasses: int, *, share: float = 0.4, cap: int = 8) -> int:
    """Return how many of n rows of a subclass its superclass gets.

    Examples
    --------
    >>> (
    ...     count_superclass_rows(1196, 3),
    ...     count_superclass_rows(1196, 58),
    ...     count_superclass_rows(1196, 118),
    ... )
    (478, 65, 32)
    """
    part = exact_fraction(share)
    return count_fraction(part * cap / subclasses if subclasses > cap else part, n)


class _ClassSplits:
    """The rows of every class and superclass."""

    def __init__(self, data: Data, tree: ClassTree, held: tuple[float, float],
                 shares: tuple[float, float], cap: int, seed: int | None) -> None:  # fmt: skip
        self.data = data
        self.train: dict[int, list[Tensor]] = {}  # class id of the new data -> its parts
        self.valid: dict[int, list[Tensor]] = {}
        post = [torch.empty(0, dtype=torch.long)]
        for rows in split_by_class(data, data.train):
            label = int(data.labels[rows[0]])
            mixed = rows if seed is None else shuffle_rows(rows, seed, "share")
            a, b = count_fraction(held[0], len(rows)), count_fraction(held[1], len(rows))
            post.append(mixed[a : a + b])
            for target, part in ((self.valid, mixed[:a]), (self.train, mixed[a + b :])):
                for above in tree.ancestors(label):
                    n = len(part)
                    upper = count_superclass_rows(n, tree.width[above], share=shares[0], cap=cap)
                    target.setdefault(above, []).append(part[:upper])
                    part = part[n - count_fraction(shares[1], n) :]
                target[label] = [part]
        self.post = torch.cat(post)

    def task(self, labelled: Data, group: Sequence[int]) -> Task:
        """Make the task that introduces these classes."""
        for c in group:
            if not any(len(part) for part in self.train.get(c, ())):
                raise bad("data", f"enough training rows to leave some for {labelled.classes[c]!r}",
                          "none left after the split")  # fmt: skip
        rows: dict[str, Any] = {}
        for kind, parts in (("train", self.train), ("valid", self.valid)):
            rows[kind] = torch.cat([part for c in group for part in parts[c]]).sort().values
        return Task(**rows, post_valid=find_rows_with(labelled, self.post, group),
                    test=find_rows_with(labelled, self.data.test, group), new=tuple(group),
                    visible=tuple(group))  # fmt: skip


def _check_given_tasks(data: Data, tree: ClassTree, tasks: Sequence[Sequence[str | int]],
           first: int | None) -> list[list[int]]:  # fmt: skip
    """Return the class ids of given tasks; raise for repeated classes and late superclasses."""
    if first is not None:
        raise bad("first", "None, since the tasks are given", first)
    if isinstance(tasks, str) or not isinstance(tasks, Sequence) or not len(tasks):
        raise bad("tasks", "a list of lists of classes", tasks)
    met: dict[int, int] = {}
    groups = []
    for k, group in enumerate(tasks):
        if isinstance(group, str) or not isinstance(group, Sequence) or not len(group):
            raise bad(f"tasks[{k}]", "a list of classes", group)
        groups.append([_find_class_id(f"tasks[{k}]", wanted, data) for wanted in group])
        for c in groups[-1]:
            if c in met:
                raise bad(
                    f"tasks[{k}]",
                    f"every class only once, it is already in task {met[c]}",
                    data.classes[c],
                )
            met[c] = k
    for child, above in tree.parent.items():
        if child in met and met.get(above, len(groups)) >= met[child]:
            expected = f"{data.classes[above]!r} in an earlier task than its subclass"
            raise bad(f"tasks[{met[child]}]", expected, data.classes[child])
    return groups


def _find_class_id(argument: str, wanted: str | int, data: Data) -> int:
    """Return the id of a class given by id, full name, or an unambiguous name without prefix."""
    if not isinstance(wanted, str) or wanted in data.classes:
        return class_id(argument, wanted, data)
    found = [name for name in (FINE_PREFIX + wanted, SUPER_PREFIX + wanted) if name in data.classes]
    if len(found) == 2:
        raise bad(argument, f"either {found[0]!r} or {found[1]!r}", wanted)
    if not found:
        raise unknown(argument, wanted, [name.split("/", 1)[1] for name in data.classes])
    return data.classes.index(found[0])


# -- drawing the tasks of a hierarchical stream ----------------------------------------------------

_ATTEMPTS = 200


def draw_schedule(
    families: Mapping[int, Sequence[int]],
    fine: Sequence[int],
    first: int | None,
    classes_per_task: int,
    seed: int,
) -> list[list[int]]:
    """Draw tasks in which every superclass comes strictly before its subclasses.

    The first task has `first` top-level superclasses, all others `classes_per_task` classes, the
    last one the remainder.

    Examples
    --------
    >>> draw_schedule({4: [0, 1], 5: [2, 3]}, [0, 1, 2, 3], 2, 4, seed=0)[0] in ([4, 5], [5, 4])
    True
    """
    step = check_int("classes_per_task", classes_per_task, low=1)
    parent = {child: above for above, members in families.items() for child in members}
    tops = {above for above in families if above not in parent}
    start = max(1, round(len(tops) * 2 / 3)) if first is None else check_int("first", first, low=1)
    if start > len(tops):
        raise bad("first", f"at most {len(tops)}, the number of superclasses at the top", first)
    below = (c for members in families.values() for c in members)
    everything = list(dict.fromkeys([*families, *below, *(c for c in fine if c not in parent)]))
    for size in range(step, 0, -1):  # the last always does
        found = _draw(everything, tops, parent, start, size, seed)
        if found and size == step:
            return found
        if found:
            break
    raise bad("classes_per_task", f"{size}, the largest with which some of {_ATTEMPTS} draws put "
              "superclasses before their subclasses and fill all tasks, or `tasks` of your own",
              classes_per_task)  # fmt: skip


def _draw(
    everything: Sequence[int],
    tops: set[int],
    parent: Mapping[int, int],
    start: int,
    step: int,
    seed: int,
) -> list[list[int]] | None:
    """Return the first of several draws in which all tasks but the last are full."""
    for attempt in range(_ATTEMPTS):
        drawn = keys.permutation(
            keys.fold(seed, "schedule", attempt), len(everything), len(everything)
        )
        mixed = [everything[i] for i in drawn.tolist()]
        opening = [c for c in mixed if c in tops][:start]
        later = _fill([c for c in mixed if c not in opening], opening, parent, step)
        if all(len(group) == step for group in later[:-1]):
            return [opening, *later]
    return None


def _fill(
    waiting: list[int], opening: Sequence[int], parent: Mapping[int, int], step: int
) -> list[list[int]]:
    """Assign classes to tasks in the drawn order, subclasses in later tasks than superclasses."""
    done = set(opening)
    groups: list[list[int]] = []
    while waiting:
        ready = [c for c in waiting if c not in parent or parent[c] in done][:step]
        groups.append(ready)
        done.update(ready)
        waiting = [c for c in waiting if c not in done]
    return groups


# -- the published IIRC streams: class trees, task configurations, splits --------------------------

IIRC_VARIANTS = ("cifar", "imagenet-full", "imagenet-lite")
IIRC_HELD_OUT = {"cifar": 0.1, "imagenet": 0.04}  # shares for in-task and for post-task validation
_KEYED = {"cifar": "name", "imagenet": "wnid"}
_SHOWN = 5  # missing classes that an error names


@scenario
def iirc(data: Data, variant: str = "cifar", *, configuration: int = 0,
         information: str = "incomplete", joint: bool = False) -> Stream:  # fmt: skip
    """Make a published stream of incremental implicitly-refined classification (IIRC).

    Parameters
    ----------
    data
        CIFAR-100, or ImageNet with classes named by wnid (as its folders are).
    variant
        ``cifar``: 22 tasks, 115 classes; ``imagenet-full``: 35 tasks, 1083 classes;
        ``imagenet-lite``: 10 tasks, 333 of these classes.
    configuration
        Which of the published orders of classes: 0 to 9 for CIFAR, 0 to 4 for ImageNet.
    information, joint
        As in `hierarchical`: which labels of a task's rows training uses, and whether all tasks are
        one.

    Notes
    -----
    Abdelsalam et al. 2021 (CVPR); trees and orders are those of the package ``iirc`` 1.0.1 (MIT
    licence, chandar-lab). `hierarchical` says how rows are divided.

    Examples
    --------
    >>> names = [name for members in read_published_tasks("cifar")[0].values() for name in members]
    >>> names += read_published_tasks("cifar")[1]
    >>> data = Data.from_arrays([[0.0]] * 5000, names * 50)
    >>> iirc(data, "cifar", configuration=3)
    Stream('iirc-cifar': 22 tasks, 115 classes, single head, label sets)
    >>> iirc(data, "cifar", configuration=10)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: configuration: expected a whole number from 0 to 9, got 10
    """
    check_choice("variant", variant, IIRC_VARIANTS)
    superclasses, orphans, orders = read_published_tasks(variant)
    if check_int("configuration", configuration) >= len(orders):
        last = f"a whole number from 0 to {len(orders) - 1}"
        raise bad("configuration", last, configuration)
    family = variant.split("-")[0]
    _check_classes(data, [c for below in superclasses.values() for c in below] + orphans, family)
    tree = {name: [FINE_PREFIX + c for c in below] for name, below in superclasses.items()}
    tasks = [
        [(SUPER_PREFIX if c in tree else FINE_PREFIX) + c for c in group]
        for group in orders[configuration]
    ]
    stream = hierarchical(
        data,
        hierarchy=tree,
        tasks=tasks,
        valid=IIRC_HELD_OUT[family],
        post_valid=IIRC_HELD_OUT[family],
        information=information,
        joint=joint,
    )
    return replace(stream, name=f"iirc-{variant}")


def read_published_tasks(
    variant: str,
) -> tuple[dict[str, list[str]], list[str], list[list[list[str]]]]:
    """Read (subclasses of each superclass, classes without one, tasks of each configuration).

    Examples
    --------
    >>> superclasses, orphans, orders = read_published_tasks("imagenet-lite")
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
