"""Attributes of rows (subject, camera, age) as numbers with names, and splits by whole subjects
or clips, or within each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram import keys
from engram.data.conversion import hold_out_every_fifth
from engram.errors import bad, check_float, check_int, unknown

TEST_SHARE = 0.2  # of the values of an attribute, where test rows are told apart by it
Facts = Callable[[Path], Mapping[str, Any]]


def number_attributes(options: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Fields of Data whose attributes are tensors, with the names of those that were text.

    Examples
    --------
    >>> made = number_attributes(
    ...     {"attributes": {"subject": ["Eve", "Ada", "Eve"], "age": [7, 9, 7]}}, 3
    ... )
    >>> made["attributes"]["subject"].tolist(), made["attribute_names"]
    ([1, 0, 1], {'subject': ('Ada', 'Eve')})
    >>> number_attributes({"attributes": {"subject": ["Eve"]}}, 3)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: attributes['subject']: expected 3 values, one for each row, got 1
    """
    given = options.get("attributes")
    if not given:
        return dict(options)
    if not isinstance(given, Mapping):
        raise bad("attributes", "{name: values of all rows}", given)
    names = dict(options.get("attribute_names") or {})
    numbers = {}
    for key, values in given.items():
        where = f"attributes[{key!r}]"
        if not hasattr(values, "__len__") or isinstance(values, (str, bytes)):
            raise bad(where, f"{rows} values, one for each row", values)
        if len(values) != rows:
            raise bad(where, f"{rows} values, one for each row", len(values))
        numbers[key], found = _number_values(where, values, names.get(key))
        names |= {key: found} if found else {}
    return {**options, "attributes": numbers, "attribute_names": names}


def _number_values(
    where: str, values: Any, names: Sequence[str] | None
) -> tuple[Tensor, tuple[str, ...]]:
    """[N] a number for each value, and their names where the values are text."""
    if isinstance(values, Tensor) and not values.is_floating_point():
        return values, ()
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    if all(isinstance(one, str) for one in listed):
        known = tuple(names or sorted(set(listed)))
        place = {name: i for i, name in enumerate(known)}
        for one in listed:
            if one not in place:
                raise unknown(where, one, known)
        return torch.tensor([place[one] for one in listed]), known
    kind = str if isinstance(listed[0], str) else (int, np.integer)
    for row, one in enumerate(listed):
        if not isinstance(one, kind):
            raise bad(where, "names, or whole numbers, in all rows", f"{one!r} in row {row}")
    return torch.tensor(listed, dtype=torch.long), ()


def read_attributes_of_files(options: Mapping[str, Any], files: Sequence[Path]) -> dict[str, Any]:
    """Fields of Data in which a function of each file in turn takes the place of attributes.

    Examples
    --------
    >>> files = [Path("happy/S01_3.png"), Path("sad/S02_1.png")]
    >>> read_attributes_of_files({"attributes": lambda file: {"subject": file.stem[:3]}}, files)
    {'attributes': {'subject': ['S01', 'S02']}}
    """
    ask = options.get("attributes")
    if not callable(ask):
        return dict(options)
    told: dict[str, list[Any]] = {}
    for row, file in enumerate(files):
        facts = ask(file)
        if not isinstance(facts, Mapping) or (row and set(facts) != set(told)):
            keys = f"the keys {sorted(told)}" if row else "facts by name"
            wanted = f"a function that gives a dict with {keys} for each file"
            raise bad("attributes", wanted, f"{facts!r} for {file}")
        for key, value in facts.items():
            told.setdefault(key, []).append(value)
    return {**options, "attributes": told}


def join_train_and_test(
    y: Tensor,
    train: Tensor,
    test: Tensor | None,
    attributes: Mapping[str, Tensor] | None,
    test_by: str | None,
) -> tuple[Tensor, Tensor]:
    """Both parts: as given, else every fifth row of each class, or a fifth of some values, to test.

    `train` is the first rows of `y`; `test_by` names the attribute whose values are drawn.

    Examples
    --------
    >>> y, subject = torch.tensor([[0], [1]] * 10), torch.arange(20) // 4
    >>> parts = join_train_and_test(y, torch.arange(20), None, {"subject": subject}, "subject")
    >>> len(parts[1]), bool(torch.isin(subject[parts[1]], subject[parts[0]]).any())
    (4, False)
    """
    if test_by is None:
        return hold_out_every_fifth(y[train]) if test is None else (train, test)
    if test is not None:
        raise bad("test_by", "None where test rows are given", test_by)
    if not attributes:
        raise bad("test_by", "None for data without attributes", test_by)
    if test_by not in attributes:
        raise unknown("test_by", test_by, attributes)
    unit = [str(one) for one in attributes[test_by][train].tolist()]
    count = len(set(unit))
    if count < 2:
        raise bad("test_by", "an attribute with two values or more", f"{test_by!r} with {count}")
    share = max(TEST_SHARE, 1 / count)  # one at least
    held = draw_held_out_units(unit, list(map(str, y[train, 0].tolist())), share, seed=0)
    away = torch.tensor([one in held for one in unit])
    return train[~away], train[away]


# ------------------------------------------------------------------------------------------------
# Splits by whole subjects or clips, or within each subject

_DRAWS = 200  # of which the one closest to equal shares is taken
_FEW_UNITS = 2000  # units above which any draw is close


def draw_held_out_units(
    units: Sequence[str],
    labels: Sequence[str],
    share: float,
    *,
    seed: int,
    everyone: Sequence[str] = (),
) -> set[str]:
    """A share of the units (subjects, clips) such that every class has about that share in them.

    Parameters
    ----------
    units, labels
        [n] the unit and the label of each row.
    everyone
        Units that count for the share although they may have no rows.

    Examples
    --------
    >>> units = [f"S{i // 4}" for i in range(40)]
    >>> held = draw_held_out_units(units, ["a", "b"] * 20, 0.3, seed=0)
    >>> len(held), held == draw_held_out_units(units, ["a", "b"] * 20, 0.3, seed=0)
    (3, True)
    """
    check_float("test_share", share, 0.0, 1.0)
    names = sorted({*units, *everyone})
    count = round(share * len(names))
    if not 0 < count < len(names):
        raise bad("test_share", f"one that leaves some of {len(names)} on both sides", share)
    place = {unit: i for i, unit in enumerate(names)}
    kinds = sorted(set(labels))
    table = np.zeros((len(names), len(kinds)))
    np.add.at(table, ([place[u] for u in units], [kinds.index(one) for one in labels]), 1)
    key = keys.fold(check_int("seed", seed), "held units")
    best: tuple[float, list[int]] | None = None
    for draw in range(_DRAWS if len(names) <= _FEW_UNITS else 1):
        drawn = keys.permutation(keys.fold(key, draw), len(names), len(names))[:count].tolist()
        held = table[drawn].sum(0) / np.maximum(table.sum(0), 1)
        distance = float(np.abs(held - share).sum())
        if best is None or distance < best[0]:
            best = distance, drawn
    return {names[i] for i in best[1]} if best else set()


def draw_within(owner: Tensor, labels: Tensor, unit: Tensor, share: float, key: keys.Key) -> Tensor:
    """Mark a share of the units [n] of each class of each owner; a unit has the first row's class.

    Examples
    --------
    >>> owner, labels = torch.tensor([0] * 10 + [1]), torch.zeros(11, dtype=torch.long)
    >>> held = draw_within(owner, labels, torch.arange(11) // 2, 0.4, keys.fold(0, "doc"))
    >>> int(held[:10].sum()), bool(held[10])  # two clips of five; the only one is trained
    (4, False)
    """
    found: dict[tuple[int, int], dict[int, None]] = {}
    known: dict[tuple[int, int], int] = {}
    for who, label, one in zip(owner.tolist(), labels.tolist(), unit.tolist(), strict=True):
        label = known.setdefault((who, one), label)
        found.setdefault((who, label), {})[one] = None
    held: set[tuple[int, int]] = set()
    for (who, label), units in found.items():
        names = list(units)
        count = min(max(round(share * len(names)), 1), len(names) - 1)
        drawn = keys.permutation(keys.fold(key, who, label), len(names), len(names))[:count]
        held |= {(who, names[place]) for place in drawn.tolist()}
    pairs = zip(owner.tolist(), unit.tolist(), strict=True)
    return torch.tensor([pair in held for pair in pairs], dtype=torch.bool)
