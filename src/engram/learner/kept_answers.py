"""Answers of older networks to a batch that stays the same from step to step: made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


class KeptAnswers:
    """Hands out what networks with older weights answered to the inputs of a batch.

    A loss is pure and `state` stays as it is, so it asks the same networks in every step, in the
    same sequence. Where nothing is `known` yet, answers are made and collected in `made`.

    Examples
    --------
    >>> import torch
    >>> x, state = torch.ones(2), {"teacher": {"vector": torch.zeros(3)}}
    >>> first = KeptAnswers(x, state)
    >>> first.of(state["teacher"], (x,), lambda: "made"), first.made
    ('made', ['made'])
    >>> again = KeptAnswers(x, state, known=("kept",))
    >>> again.of(state["teacher"], (x,), lambda: "made")
    'kept'
    >>> again.of(state["teacher"], (x + 1,), lambda: "other inputs")
    'other inputs'
    """

    def __init__(self, x: Tensor, state: Mapping[str, Any], known: tuple[Any, ...] = ()) -> None:
        self.made: list[Any] = []
        self._x, self._snapshots, self._known = x, list(_dicts(state)), iter(known)
        self._knows = bool(known)

    def of(self, snapshot: Any, args: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The answer of a snapshot that lies in the state to the batch's own inputs, or another."""
        same = len(args) == 1 and args[0] is self._x
        if not same or all(snapshot is not one for one in self._snapshots):
            return make()
        if self._knows:
            return next(self._known)
        self.made.append(make())
        return self.made[-1]


def _dicts(tree: Any) -> Iterator[Any]:
    """All dicts of a tree."""
    if isinstance(tree, Mapping):
        yield tree
    for part in tree.values() if isinstance(tree, Mapping) else tree:
        if isinstance(part, Mapping | tuple):
            yield from _dicts(part)
