"""The sequences of the novelty-detection benchmark: TinyImageNet-Seq and Eight-Task-Seq."""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from engram.data.dataset import Data
from engram.errors import bad
from engram.streams.class_groups import check_seed, make_class_tasks, order_classes, split_by_sizes
from engram.streams.stream import Stream, scenario

EIGHT = (
    "flowers", "scenes", "birds", "cars", "aircraft", "actions", "letters", "digits",
)  # fmt: skip
_WNID = re.compile(r"n\d{8}")
_TINY_CLASSES, _TINY_STEP = 200, 20


@scenario
def tinyimagenet_seq(
    data: Data, *, seed: int = 0, valid: float = 0.2, shared_head: bool = False
) -> Stream:
    """Tiny ImageNet in ten tasks of 20 classes each, assigned at random by the seed.

    Parameters
    ----------
    data
        ``load("tiny_imagenet", resize=64, crop=56)``, all of it or a part with all 200 classes.
    seed
        Draws the assignment of classes to tasks, and the validation rows.
    valid
        Share of each class's training rows held out as in-task validation rows.
    shared_head
        Use one head for all tasks (ER and SSIL of the benchmark) instead of a head for each
        (FineTune, LwF, MAS).

    Notes
    -----
    Aljundi, Olmeda Reino, Chumerin and Turner 2022, who did not publish their assignment of
    classes.

    Examples
    --------
    >>> names = [f"n{i:08d}" for i in range(200)]
    >>> tinyimagenet_seq(Data.from_arrays([[0.0]] * 2000, names * 10))
    Stream('tinyimagenet_seq': 10 tasks, 200 classes, multi head)
    """
    if not isinstance(shared_head, bool):
        raise bad("shared_head", "True or False", shared_head)
    if data.n_classes != _TINY_CLASSES or not all(map(_WNID.fullmatch, data.classes)):
        expected = f"the {_TINY_CLASSES} classes of Tiny ImageNet, by WordNet id"
        raise bad("data", expected, f"{data.name!r} with {data.n_classes} classes")
    ids = order_classes(data, None, check_seed(seed))
    groups = split_by_sizes(ids, [_TINY_STEP] * (_TINY_CLASSES // _TINY_STEP))
    tasks = make_class_tasks(data, groups, valid, seed)
    head = "single" if shared_head else "multi"
    return Stream(data=data, tasks=tuple(tasks), name="tinyimagenet_seq", head=head)


@scenario
def eight_task(data: Data, *, seed: int = 0, valid: float = 0.2) -> Stream:
    """Eight data sets in turn: flowers, scenes, birds, cars, aircraft, actions, letters, digits.

    Parameters
    ----------
    data
        ``load("eight_task")``, or ``load("multi_domain")`` as a stand-in, which is then part of the
        names of the stream and its tasks. The attribute ``domain`` is the data set of a row.
    seed
        Draws the validation rows.
    valid
        Share of each class's training rows held out as in-task validation rows.

    Notes
    -----
    Aljundi, Babiloni, Elhoseiny, Rohrbach and Tuytelaars 2018; every task has a head of its own.

    Examples
    --------
    >>> names = {"domain": ("scenes", "flowers")}
    >>> data = Data.from_arrays(
    ...     [[0.0]] * 40,
    ...     ["bar", "rose", "tulip", "gym"] * 10,
    ...     attribute_names=names,
    ...     attributes={"domain": torch.tensor([0, 1, 1, 0] * 10)},
    ... )
    >>> print(eight_task(data))
    Stream('eight_task (stand-in: data)': 2 tasks, 4 classes, multi head) over 'data'
    task  train  valid  test  new classes
       0     14      2     4  rose, tulip  [stand-in for flowers]
       1     14      2     4  bar, gym  [stand-in for scenes]
    """
    groups = {name: ids for name in EIGHT if (ids := _find_classes(data, name))}
    unknown_ = sorted(set(data.attribute_names.get("domain", ())) - set(EIGHT))
    if len(groups) < 2 or unknown_:
        expected = f"two or more domains of {', '.join(EIGHT)} as the attribute domain"
        raise bad("data", expected, unknown_ or f"{data.name!r} with {list(groups) or 'none'}")
    stands_in = data.name != "eight_task"
    tasks = make_class_tasks(data, list(groups.values()), valid, check_seed(seed))
    titles = [f"stand-in for {name}" if stands_in else name for name in groups]
    tasks = [replace(task, domain=title) for task, title in zip(tasks, titles, strict=True)]
    part = f"stand-in: {data.name}" if stands_in else f"{len(groups)} of {len(EIGHT)} sets"
    name = "eight_task" if len(groups) == len(EIGHT) and not stands_in else f"eight_task ({part})"
    return Stream(data=data, tasks=tuple(tasks), name=name, head="multi")


def _find_classes(data: Data, name: str) -> list[int]:
    """Return the classes of one of the sets; raise if another set has one of them."""
    domains = data.attribute_names.get("domain", ())
    if name not in domains:
        return []
    inside = data.attributes["domain"].cpu() == domains.index(name)
    labels = data.labels.cpu()
    found: list[int] = labels[inside].unique().tolist()
    shared = torch.isin(labels[~inside], torch.tensor(found)).any()
    if shared:
        raise bad("data", f"classes of {name} that no other domain has", data.name)
    return found
