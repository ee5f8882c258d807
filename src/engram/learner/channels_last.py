"""Weights of convolutions in the order of memory in which torch convolves fastest."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from engram.learner.layout import Networks


class ChannelsLast:
    """Copies of all 2d convolutions' weights with the channels last, made and undone at once.

    One gather brings all weights into this order and another one all gradients back, so a step
    pays for two small kernels, however many convolutions there are.
    """

    def __init__(self, networks: Networks, vector: Tensor, still: Collection[str] = ()) -> None:
        layout, places, start = networks.layout, [], 0
        # places among the parameters that move, shapes
        self._which: list[tuple[int, torch.Size]] = []
        names = [name for name in layout.shapes if name not in still]
        for name, size in zip(layout.shapes, layout.sizes, strict=True):
            shape = layout.shapes[name]
            if len(shape) == 4 and name not in still:
                numbers = torch.arange(start, start + size).view(shape)
                places.append(numbers.permute(0, 2, 3, 1).reshape(-1))
                self._which.append((names.index(name), shape))
            start += size
        self._source = torch.cat(places).to(vector.device)  # where each copied number stands
        self._sizes = [len(part) for part in places]
        self._vector = vector
        self._order = self._source.argsort()  # the copies in the order of the vector
        self._flat = vector[self._source]
        parts = self._flat.split(self._sizes)
        self.views = {
            names[index]: part.view(o, h, w, i).permute(0, 3, 1, 2)
            for (index, (o, i, h, w)), part in zip(self._which, parts, strict=True)
        }

    def refresh(self) -> None:
        """Copy the present weights."""
        torch.index_select(self._vector, 0, self._source, out=self._flat)

    def back(self, grads: list[Tensor]) -> list[Tensor]:
        """The gradients, those of the copies in the order of the vector."""
        parts = [grads[index].permute(0, 2, 3, 1).reshape(-1) for index, _ in self._which]
        ordered = torch.cat(parts).index_select(0, self._order).split(self._sizes)
        grads = list(grads)
        for (index, shape), part in zip(self._which, ordered, strict=True):
            grads[index] = part.view(shape)
        return grads
