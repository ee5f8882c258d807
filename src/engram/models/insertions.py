"""What a method inserts into a transformer that stands still: prompts, prefixes of keys and values,
low-rank updates of its linear maps, bottleneck adapters. All of it is passed as tensors, so that it
can be the parameters of a further network of the method, and be mapped over runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.models.forward_pass import can_be_read
from engram.models.transformer import attend

ROWS_TOGETHER = 16  # texts of similar length that are passed together


class Prefix(NamedTuple):
    """Further keys and values [n, W] of a block, or [B, n, W]: others for each row."""

    keys: Tensor
    values: Tensor


class LowRank(NamedTuple):
    """An update of rank r to the weight [out, in] of a linear map: up @ down."""

    down: Tensor  # [r, in]
    up: Tensor  # [out, r]

    def merge(self) -> Tensor:
        """Return the update as a matrix [out, in].

        Examples
        --------
        >>> LowRank(torch.ones(1, 3), torch.ones(2, 1)).merge().tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
        """
        return self.up @ self.down


Update = LowRank | Tensor  # a matrix [out, in] is added to the weight


class Bottleneck(NamedTuple):
    """Two linear maps beside the feed-forward part of a block, with a ReLU between them."""

    down: Tensor  # [r, W]
    down_bias: Tensor  # [r]
    up: Tensor  # [W, r]
    up_bias: Tensor  # [W]
    scale: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """Compute what is added [..., W] from what enters [..., W]."""
        inner = torch.relu(F.linear(x, self.down, self.down_bias))
        return F.linear(inner, self.up, self.up_bias) * self.scale


class Insertion(NamedTuple):
    """What is inserted into one block; updates of its linear maps by their names."""

    prefix: Prefix | None = None
    updates: Mapping[str, Update | tuple[Update, ...]] = {}
    adapter: Bottleneck | None = None

    def map(self, layer: nn.Module, name: str, x: Tensor) -> Tensor:
        """Compute a linear map of the block, its update included."""
        return update_map(layer(x), x, self.updates.get(name))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, heads: int) -> Tensor:
        """Compute attention [B, L, W] to the tokens and to the prefix."""
        if self.prefix is not None:
            k, v = (_prepend(more, own) for more, own in zip(self.prefix, (k, v), strict=True))
            mask = _widen(mask, k.shape[-2])
        return attend(q, k, v, mask, heads)


class Insertions(NamedTuple):
    """What is inserted into a transformer.

    Examples
    --------
    >>> prefix = Prefix(torch.zeros(5, 16), torch.zeros(5, 16))
    >>> Insertions(blocks={0: Insertion(prefix)}).tokens is None
    True
    """

    tokens: Tensor | None = None  # [n, W] or [B, n, W], before those of the row
    blocks: Mapping[int, Insertion] = {}


NOTHING = Insertion()


class Blocks(Protocol):
    """A transformer as its blocks. `engram.models.block_views` has those of known libraries.

    Another network is one if it has ``insertable_blocks()``, which returns these. Those of a
    network of texts may have ``count_tokens(x)``, the tokens [B] of rows: texts of similar length
    are then passed together, and padding behind the longest of them must not change a row.
    """

    depth: int
    width: int  # of a token

    @property
    def maps(self) -> tuple[str, ...]:
        """Names of the linear maps of a block that can be updated."""
        ...

    def shape_of(self, name: str) -> torch.Size:
        """Shape (out, in) of such a map."""
        ...

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tokens [B, L, W] of inputs, and where there are any [B, L]; None: everywhere."""
        ...

    def attention_input(self, number: int, h: Tensor) -> Tensor:
        """What the maps to query, key and value of a block are given, from what enters it."""
        ...

    def run(self, number: int, h: Tensor, mask: Tensor | None, more: Insertion) -> Tensor:
        """Pass tokens [B, L, W] through a block."""
        ...

    def pool(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """Features [B, F] from the tokens behind the last block."""
        ...

    def pool_prompts(self, h: Tensor) -> Tensor:
        """Features [B, F] from some of the tokens behind the last block: their mean."""
        ...


def update_map(y: Tensor, x: Tensor, update: Update | tuple[Update, ...] | None) -> Tensor:
    """Add what an update of a linear map makes of its inputs to its outputs.

    Examples
    --------
    >>> x, update = torch.ones(1, 3), LowRank(torch.ones(1, 3), torch.ones(2, 1))
    >>> update_map(torch.zeros(1, 2), x, update).tolist()
    [[3.0, 3.0]]
    """
    if update is None:
        return y
    if isinstance(update, tuple) and not isinstance(update, LowRank):
        for one in update:
            y = update_map(y, x, one)
        return y
    if isinstance(update, LowRank):
        return y + F.linear(F.linear(x, update.down), update.up)
    return y + F.linear(x, update)


def _prepend(more: Tensor, own: Tensor) -> Tensor:
    """Put vectors [n, W] or [B, n, W] before those of each row [B, L, W]."""
    rows = more if more.ndim == own.ndim else more.expand(len(own), *more.shape)
    return torch.cat([rows.to(own.dtype), own], -2)


def _widen(mask: Tensor | None, length: int) -> Tensor | None:
    """Let a mask [B, L] be true for what stands before the tokens, too."""
    if mask is None:
        return None
    more = torch.ones_like(mask[:, :1]).expand(-1, length - mask.shape[1])
    return torch.cat([more, mask], 1)


def compute_features(blocks: Blocks, x: Tensor, more: Insertions, *, at_prompts: bool) -> Tensor:
    """Compute features [B, F] of inputs with insertions.

    `at_prompts`: from the outputs at inserted tokens, if there are any, instead of the row's own.
    """
    groups = _group_by_length(blocks, x)
    if len(groups) > 1:
        parts = [_features(blocks, x[rows], _select(more, rows), at_prompts) for rows in groups]
        return torch.cat(parts)[torch.cat(groups).argsort()]
    return _features(blocks, x, more, at_prompts)


def _group_by_length(blocks: Blocks, x: Tensor) -> list[Tensor]:
    """Return the numbers of rows that are passed together; nothing for all of them."""
    count: Any = getattr(blocks, "count_tokens", None)
    if count is None or len(x) <= ROWS_TOGETHER or not can_be_read(x):
        return []
    order: Tensor = count(x).argsort(stable=True)
    return list(order.split(ROWS_TOGETHER))


def _select(more: Insertions, rows: Tensor) -> Insertions:
    """Return the insertions of some rows, where rows have others each."""

    def take(one: Tensor) -> Tensor:
        return one[rows] if one.ndim == 3 else one

    blocks = {
        number: one if one.prefix is None else one._replace(prefix=Prefix(*map(take, one.prefix)))
        for number, one in more.blocks.items()
    }
    return Insertions(None if more.tokens is None else take(more.tokens), blocks)


def _features(blocks: Blocks, x: Tensor, more: Insertions, at_prompts: bool) -> Tensor:
    h, mask = blocks.embed(x)
    count = 0 if more.tokens is None else more.tokens.shape[-2]
    if more.tokens is not None and count:
        h = _prepend(more.tokens, h)
        mask = _widen(mask, h.shape[1])
    for number in range(blocks.depth):
        h = blocks.run(number, h, mask, more.blocks.get(number, NOTHING))
    if at_prompts and count:
        return blocks.pool_prompts(h[:, :count])
    return blocks.pool(h[:, count:], None if mask is None else mask[:, count:])


def compute_moments(blocks: Blocks, x: Tensor, more: Insertions) -> Tensor:
    """Compute the sums [depth, W, W] of h h' over all tokens h that attention is given."""
    groups = _group_by_length(blocks, x)
    if len(groups) > 1:
        parts = [_moments(blocks, x[rows], _select(more, rows)) for rows in groups]
        return torch.stack(parts).sum(0)
    return _moments(blocks, x, more)


def _moments(blocks: Blocks, x: Tensor, more: Insertions) -> Tensor:
    h, mask = blocks.embed(x)
    found = []
    for number in range(blocks.depth):
        given = blocks.attention_input(number, h)
        if mask is not None:
            given = torch.where(mask[..., None], given, 0.0)
        rows = given.flatten(0, 1).double()
        found.append(rows.mT @ rows)
        h = blocks.run(number, h, mask, more.blocks.get(number, NOTHING))
    return torch.stack(found)
