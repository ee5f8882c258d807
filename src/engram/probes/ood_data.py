"""The outside set: rows of another data set, on which no network is ever trained."""

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
    """Rows of another data set with the stream's input shape, against which detectors are tuned.

    Its training rows are for fitting, a fifth of each class or its validation rows for choosing;
    its test rows are never read. Inputs are scaled and transformed like those of the stream.

    Parameters
    ----------
    limit
        Largest number of rows of each part, in equal shares of all classes; 0 for all. Every row is
        passed through the network after every stage.

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
        """Keep the first rows of each class, as many as the limit allows."""
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
        """Return the row numbers of a part: for fitting (``train``) or choosing (``valid``)."""
        return self._split[check_choice("part", part, PARTS)]

    def feed(self, learner: RunLearner) -> Feed:
        """Return a feed that gives the inputs as the network of a run receives them."""
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
        """Raise if the stream's networks cannot read the set, or are trained on it."""
        own, shape = stream.data, tuple(stream.data.sample_shape)
        if tuple(self.data.sample_shape) != shape:
            expected = f"inputs of the stream's shape {shape}"
            raise bad("outside", expected, f"{self.data.name!r} of {self.data.sample_shape}")
        told, mine = (one and one.facts() for one in (self.data.tokenizer, own.tokenizer))
        if told != mine:
            wanted = (
                "no texts, as the stream" if mine is None else f"the stream's tokenizer, {mine}"
            )
            raise bad("outside", wanted, told)
        if not len(self.rows("valid")):
            expected = "at least one class with 5 training rows, or validation rows"
            raise bad("outside", expected, self.data)
        if own is self.data or 100 * count_shared(self.data, own) > len(self.data.x):
            raise bad("outside", "another data set than the stream's own", self.data.name)
