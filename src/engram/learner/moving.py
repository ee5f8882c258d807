"""Parameters that stand still for a while: vectors of all the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from engram.learner.layout import Layout


class Moving:
    """Which parameters of a layout may move at all; a part holds those, one after the other.

    Examples
    --------
    >>> layout = Layout({"root": torch.Size([2]), "top": torch.Size([3]), "odd": torch.Size([1])})
    >>> moving, vector = Moving(layout, still={"root"}), torch.arange(6.0)
    >>> part = moving.take(vector)
    >>> part.tolist(), len(moving)
    ([2.0, 3.0, 4.0, 5.0], 4)
    >>> moving.put_(vector, -part)
    >>> vector.tolist()
    [0.0, 1.0, -2.0, -3.0, -4.0, -5.0]
    """

    def __init__(self, layout: Layout, still: Collection[str] = ()) -> None:
        self.layout = layout
        self.names = [name for name in layout.shapes if name not in still]
        self.own = Layout({name: layout.shapes[name] for name in self.names})
        self.slices: list[slice] = []  # of the whole vector; neighbours are one slice
        start = 0
        for name, size in zip(layout.shapes, layout.sizes, strict=True):
            if name not in still:
                if self.slices and self.slices[-1].stop == start:
                    self.slices[-1] = slice(self.slices[-1].start, start + size)
                else:
                    self.slices.append(slice(start, start + size))
            start += size
        self.sizes = [one.stop - one.start for one in self.slices]

    def __len__(self) -> int:
        return len(self.own)

    @property
    def all(self) -> bool:
        """Whether nothing stands still."""
        return len(self.own.shapes) == len(self.layout.shapes)

    def pieces(self, vector: Tensor) -> list[Tensor]:
        """Views of a whole vector [..., P] that together hold what moves."""
        return [vector[..., one] for one in self.slices]

    def take(self, vector: Tensor) -> Tensor:
        """[..., M] a copy of the part of a whole vector [..., P] that moves."""
        return torch.cat(self.pieces(vector), -1)

    def put_(self, vector: Tensor, part: Tensor) -> None:
        """Write a part [..., M] into a whole vector [..., P]."""
        for place, piece in zip(self.pieces(vector), part.split(self.sizes, -1), strict=True):
            place.copy_(piece)

    def views(self, vector: Tensor, part: Tensor) -> Mapping[str, Tensor]:
        """Parameters by name, of a part [M] where they move, else of a whole vector [P]."""
        return {**self.layout(vector), **self.own(part)}

    def whole(self, vector: Tensor, part: Tensor) -> Tensor:
        """[P] a vector with a part [M] in its place; gradients reach the part.

        Examples
        --------
        >>> layout = Layout({"a": torch.Size([1]), "b": torch.Size([2])})
        >>> Moving(layout, still={"b"}).whole(torch.zeros(3), torch.ones(1)).tolist()
        [1.0, 0.0, 0.0]
        """
        found = self.views(vector, part)
        return self.layout.flatten(found[name] for name in self.layout.shapes)

    def gradient(self, parts: Sequence[Tensor]) -> Tensor:
        """[P] gradients of the parameters that move as one vector; 0 for the others."""
        given = dict(zip(self.names, parts, strict=True))
        zeros = {k: parts[0].new_zeros(s) for k, s in self.layout.shapes.items() if k not in given}
        return self.layout.flatten((given | zeros)[name] for name in self.layout.shapes)
