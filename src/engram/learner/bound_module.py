"""The module itself bound to one run's weights, for a run that trains alone, with channels-last
copies of its convolutions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from engram import distributed, keys
from engram.learner.networks import Net, scale_gradient
from engram.learner.parameter_layout import Networks
from engram.models.layers import BatchNorm


class BoundNet(Net):
    """The module itself, its parameters being views of the one vector: plain autograd.

    With `channels_last` the weights of 2d convolutions are copies in that order of memory, which
    spares torch their conversion in every pass; `begin` brings them up to date.
    """

    _trains = True

    def __init__(
        self, networks: Networks, vector: Tensor, buffers: Mapping[str, Tensor], *,
        channels_last: bool = False, still: Collection[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(networks, None)
        self.weights = vector
        views = networks.layout(vector)
        own = dict(networks.train.named_parameters())
        self._params = {name: own[name] for name in networks.layout.shapes}
        self._copies: ChannelsLast | None = None
        if channels_last and any(len(views[k].shape) == 4 for k in views if k not in still):
            self._copies = ChannelsLast(networks, vector, still)
            views |= self._copies.views
        for name, parameter in self._params.items():
            parameter.data = views[name]
            parameter.requires_grad_(name not in still)
        self.parameters = [one for name, one in self._params.items() if name not in still]
        self.place({name: value.clone() for name, value in buffers.items()})
        self._own_statistics(True)
        self._main = networks.train.get_submodule("net")
        self._leaf = vector.detach().requires_grad_(True)
        self.touched = False

    @contextmanager
    def use_vector(self, vector: Tensor | None) -> Iterator[None]:
        """Have other weights while this lasts, where some are given."""
        before = self.weights if vector is None else self.weights.clone()
        if vector is not None:
            self.weights.copy_(vector)
        try:
            yield
        finally:
            if vector is not None:
                self.weights.copy_(before)

    def place(self, buffers: Mapping[str, Tensor]) -> None:
        """Let the module hold these buffers."""
        for name, value in buffers.items():
            owner, _, last = name.rpartition(".")
            self.networks.train.get_submodule(owner)._buffers[last] = value

    def _own_statistics(self, own: bool) -> None:
        """Nobody else holds the running statistics, so batch norms may write into them."""
        for module in self.networks.train.modules():
            if isinstance(module, BatchNorm):
                module.in_place = own

    def begin(self, key: keys.Key, real: tuple[Tensor, ...] = ()) -> None:
        """Forget the last step."""
        self._key, self._real = key, real
        self._calls = 0
        self._answers = []
        self.touched = False
        if self._copies is not None:
            self._copies.refresh()

    @property
    def vector(self) -> Tensor:
        self.touched = True
        return self._leaf

    def end(self) -> None:
        """Let go of the step's answers, and with them of its graph."""
        self._answers = []

    @property
    def leaf(self) -> Tensor:
        return self._leaf

    @property
    def params(self) -> Mapping[str, Tensor]:
        ranks = distributed.current_ranks()
        if ranks is None:
            return self._params
        # every rank computes what is made of these, so each counts for its share
        return {name: scale_gradient(one, 1 / ranks.world) for name, one in self._params.items()}

    def _run(self, path: str, args: tuple[Any, ...]) -> Any:
        if path == "net":  # the usual case, without the detour through the bundle
            return self._main(*args)
        return self.networks.train(path, *args)

    def flatten_gradients(self, found: Sequence[Tensor | None]) -> list[Tensor]:
        """Gradients of `parameters` in the order of the vector; zeros where there is none.

        A convolution may answer with another order in memory (channels last), which the fused
        optimisers would not notice.
        """
        grads = [
            torch.zeros_like(p) if g is None else g
            for g, p in zip(found, self.parameters, strict=False)
        ]
        if self._copies is not None:
            grads = self._copies.back(grads)
        return [grad.contiguous() for grad in grads]

    def statistics(self) -> dict[str, Tensor]:
        return self.read_buffers()

    def read_buffers(self) -> dict[str, Tensor]:
        current = dict(self.networks.train.named_buffers())
        return {name: current[name] for name in self.networks.buffer_names}

    def release(self) -> None:
        """Unbind, so that the skeleton holds no run's weights."""
        self._own_statistics(False)
        for parameter in self.parameters:
            parameter.requires_grad_(False)


# ------------------------------------------------------------------------------------------------
# Weights of convolutions in the order of memory in which torch convolves fastest.


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
