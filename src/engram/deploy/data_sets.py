"""Data sets as tasks of a learner: their rows by the names of their classes."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from engram.data.core import Data
from engram.data.standard import fitted
from engram.deploy.labels import Array, as_values, kind_of
from engram.engine.checkpoints.portable import about_inputs
from engram.errors import bad


class Given(NamedTuple):
    """What a data set gives a learner: rows with labels, and what inputs are like."""

    x: Tensor
    y: Array
    valid: tuple[Tensor, Array] | None
    about: dict[str, Any]


def given_by(data: Data, about: dict[str, Any] | None) -> Given:
    """The training and validation rows of a data set.

    Class ids count within one data set only, so labels are the names of classes. `about` is what
    inputs are like to a learner that has begun: scales and what stands in place of missing values
    are those of its first task.

    Examples
    --------
    >>> data = Data.from_arrays([[1.0], [2.0]], ["cat", "dog"], test=([[1.0]], ["cat"]))
    >>> given_by(data, None).y.tolist()
    ['cat', 'dog']
    """
    if about is None:
        data = fitted(data, data.train)
        about = about_inputs(data)
    elif list(data.columns) != about["columns"]:
        expected = f"the columns of training, {about['columns'] or 'without names'}"
        raise bad(f"columns of {data.name}", expected, list(data.columns))
    valid = labelled(data, data.valid) if len(data.valid) else None
    return Given(*labelled(data, data.train), valid, about)


def labelled(data: Data, rows: Tensor) -> tuple[Tensor, Array]:
    """Inputs of some rows, and the labels of these by name; names of numbers are numbers."""
    if data.several:
        raise bad("x", "data with one label per row", f"sets of labels in {data.name}")
    names = [data.classes[label] for label in data.labels[rows].tolist()]
    return data.gather(rows), as_values(names, kind_of(data.classes))
