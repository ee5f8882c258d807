"""A data set outside a stream: rows that no network is ever trained on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from engram.data.conversion import hold_out_every_fifth
from engram.data.dataset import Data
from engram.data.duplicates import count_shared
from engram.errors import bad, check_choice, check_int
from engram.learner.feed import FeatureFeed, Feed
from engram.learner.learner import RunLearner
from engram.streams.stream import Stream

PARTS = ("train", "valid")


@dataclass(frozen=True, eq=False)
class OODData:
    """What detectors are tuned against: foreign inputs of the stream's shape.

    Its training rows serve to fit, a fifth of each class, or its own validation rows, to choose;
    its test rows are never read. Inputs are scaled and viewed as those of the stream are.

    Parameters
    ----------
    limit
        At most so many rows of each part, equal shares of all classes; 0 for all. Every row costs
        passes of the network after every stage: a detector needs no more of them than of the task.

    Examples
    --------
    >>> from engram.data import load
    >>> outside = OODData(load("blobs", per_class=25, seed=1))
    >>> len(outside.rows("train")), len(outside.rows("valid"))
    (160, 40)
    """

    data: Data
    limit: int = 0
    _feeds: dict[int, tuple[Any, Feed]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_int("outside.limit", self.limit)

    @cached_property
    def _split(self) -> dict[str, Tensor]:
        train, valid = self.data.train, self.data.valid
        if not len(valid):
            rest, held = hold_out_every_fifth(self.data.y[train])
            train, valid = train[rest], train[held]
        return {"train": self._limited(train), "valid": self._limited(valid)}

    def _limited(self, rows: Tensor) -> Tensor:
        """The first rows of each class, as many of each as the limit allows."""
        if not self.limit or len(rows) <= self.limit:
            return rows
        y = self.data.y[rows, 0]
        rank = torch.zeros_like(y)
        for label in y.unique():
            own = y == label
            rank[own] = torch.arange(int(own.sum()))
        first = torch.argsort(rank, stable=True)[: self.limit]
        return rows[first.sort().values]

    def rows(self, part: str) -> Tensor:
        """Row numbers of a part: to fit on (``train``) or to choose by (``valid``)."""
        return self._split[check_choice("part", part, PARTS)]

    def feed(self, learner: RunLearner) -> Feed:
        """Its inputs as the network of a run gets them."""
        usual = learner.feed
        if id(usual) not in self._feeds:
            frozen = usual if isinstance(usual, FeatureFeed) else None
            own = usual.data if frozen is None else frozen.given
            known = replace(self.data, mean=own.mean, std=own.std)
            made = Feed(
                known, device=usual.device, dtype=usual.dtype, view=usual.view,
                axes=learner.networks.sample_axes,
            )  # fmt: skip
            made = made if frozen is None else frozen.like(made)
            self._feeds[id(usual)] = usual, made  # kept alive: its id is a key
        return self._feeds[id(usual)][1]

    def check(self, stream: Stream) -> None:
        """Refuse a set that a stream's networks cannot read, or that they learn from."""
        own, shape = stream.data, tuple(stream.data.sample_shape)
        if tuple(self.data.sample_shape) != shape:
            expected = f"inputs of the stream's shape {shape}"
            raise bad("outside", expected, f"{self.data.name!r} of {self.data.sample_shape}")
        if not len(self.rows("valid")):
            expected = "at least one class with 5 training rows, or validation rows"
            raise bad("outside", expected, self.data)
        if own is self.data or 100 * count_shared(self.data, own) > len(self.data.x):
            raise bad("outside", "another data set than the stream's own", self.data.name)
