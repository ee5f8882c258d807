"""`BoundNet`: the networks of a run that trains alone, as modules whose parameters are views of the
run's vector, optionally with channels-last copies of convolution weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from engram import distributed, keys
from engram.learner.networks import Net, scale_gradient
from engram.learner.parameter_layout import Networks, Views
from engram.models.layers import BatchNorm


class BoundNet(Net):
    """The modules themselves, with parameters that are views of the vector: plain autograd.

    With `channels_last` the weights of 2d convolutions are copies in that memory format, which
    saves torch a conversion in every pass; `begin` updates the copies. `frozen` parameters get no
    gradient.
    """

    _trains = True

    def __init__(
        self, networks: Networks, vector: Tensor, buffers: Mapping[str, Tensor], *,
        channels_last: bool = False, frozen: Collection[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(networks, None)
        self._weights = vector
        views = networks.layout(vector)
        own = dict(networks.train.named_parameters())
        self._params = Views((name, own[name]) for name in networks.layout.shapes)
        self._copies: ChannelsLast | None = None
        if channels_last and any(len(views[k].shape) == 4 for k in views if k not in frozen):
            self._copies = ChannelsLast(networks, vector, frozen)
            views |= self._copies.views
        for name, parameter in self._params.items():
            parameter.data = views[name]
            parameter.requires_grad_(name not in frozen)
        self.parameters = [one for name, one in self._params.items() if name not in frozen]
        self.bind_buffers({name: value.clone() for name, value in buffers.items()})
        self._norms = [one for one in networks.train.modules() if isinstance(one, BatchNorm)]
        self._own_statistics(True)
        self._main = networks.train.get_submodule("net")
        self._leaf = vector.detach().requires_grad_(True)
        self.touched = False
        self._older: tuple[Tensor, Views] | None = None

    def _snapshot_views(self, vector: Tensor) -> Views:
        if self._older is None or self._older[0] is not vector:  # a teacher stays for many steps
            self._older = vector, super()._snapshot_views(vector)
        return self._older[1]

    def _parameters_to_give(self) -> Mapping[str, Tensor]:
        return {}  # both skeletons share the parameters that are bound

    @contextmanager
    def use_vector(self, vector: Tensor | None) -> Iterator[None]:
        """Use other weights inside the context; None changes nothing."""
        if vector is None:
            yield
            return
        self._bind_weights(vector)
        try:
            yield
        finally:
            self._bind_weights(self._weights)

    def _bind_weights(self, vector: Tensor) -> None:
        """Make the parameters views of a vector, or copies of it in another memory format."""
        views = self.networks.layout(vector)
        if self._copies is not None:
            self._copies.source = vector
            views |= self._copies.views
        for name, parameter in self._params.items():
            parameter.data = views[name]
        self._leaf = vector.detach().requires_grad_(True)

    def bind_buffers(self, buffers: Mapping[str, Tensor]) -> None:
        """Make the module hold these buffers."""
        for name, value in buffers.items():
            owner, _, last = name.rpartition(".")
            self.networks.train.get_submodule(owner)._buffers[last] = value

    def _own_statistics(self, own: bool) -> None:
        """Let batch norms update their running statistics in place: nothing else refers to them."""
        for module in self._norms:
            module.in_place = own

    def begin(self, key: keys.Key, real: tuple[Tensor, ...] = ()) -> None:
        """Start a step: forget the outputs and calls of the last one."""
        self._key, self._real = key, real
        self._calls = 0
        self._outputs = []
        self.touched = False
        if self._copies is not None:
            self._copies.refresh()

    @property
    def vector(self) -> Tensor:
        self.touched = True
        return self._leaf

    @property
    def weights(self) -> Tensor:
        return torch.cat([one.reshape(-1) for one in self.params.values()])

    @contextmanager
    def lend_modules(self) -> Iterator[None]:
        """Let the modules compute with other weights and buffers, without writing into these."""
        self._own_statistics(False)
        try:
            yield
        finally:
            self._own_statistics(True)

    def end(self) -> None:
        """Release the outputs of the step, and with them its graph."""
        self._outputs = []

    @property
    def leaf(self) -> Tensor:
        return self._leaf

    @property
    def params(self) -> Views:
        ranks = distributed.current_ranks()
        if ranks is None:
            return self._params
        # every rank computes terms of these parameters as a whole, so each contributes 1 / world
        world = ranks.world
        return Views((k, scale_gradient(p, 1 / world)) for k, p in self._params.items())

    def _run(self, path: str, args: tuple[Any, ...]) -> Any:
        if path == "net":  # the usual case, without the detour through the bundle
            return self._main(*args)
        return self.networks.train(path, *args)

    def flatten_gradients(self, found: Sequence[Tensor | None]) -> list[Tensor]:
        """Return contiguous gradients of `parameters`, with zeros for parameters without one.

        The gradient of a convolution may be in channels-last format, which fused optimisers would
        misread.
        """
        grads = [
            torch.zeros_like(p) if g is None else g
            for g, p in zip(found, self.parameters, strict=False)
        ]
        if self._copies is not None:
            grads = self._copies.restore_order(grads)
        return [grad.contiguous() for grad in grads]

    def statistics(self) -> dict[str, Tensor]:
        return self.read_buffers()

    def read_buffers(self) -> dict[str, Tensor]:
        if not self.networks.buffer_names:  # saves a walk over all modules
            return {}
        current = dict(self.networks.train.named_buffers())
        return {name: current[name] for name in self.networks.buffer_names}

    @torch.no_grad()
    def set_statistics(self, buffers: Mapping[str, Tensor]) -> None:
        for name, value in self.read_buffers().items():
            value.copy_(buffers[name])  # the same tensors: a recording has their addresses

    def release(self) -> None:
        """Stop training these modules, so that another run can bind them."""
        self._own_statistics(False)
        for parameter in self.parameters:
            parameter.requires_grad_(False)


# -- channels-last copies of convolution weights ---------------------------------------------------


class ChannelsLast:
    """Channels-last copies of the weights of all 2d convolutions.

    One gather copies all weights and another one reorders all gradients, so a step needs two small
    kernels for any number of convolutions.
    """

    def __init__(self, networks: Networks, vector: Tensor, frozen: Collection[str] = ()) -> None:
        layout, places, start = networks.layout, [], 0
        # (index among the trainable parameters, shape)
        self._which: list[tuple[int, torch.Size]] = []
        names = [name for name in layout.shapes if name not in frozen]
        for name, size in zip(layout.shapes, layout.sizes, strict=True):
            shape = layout.shapes[name]
            if len(shape) == 4 and name not in frozen:
                numbers = torch.arange(start, start + size).view(shape)
                places.append(numbers.permute(0, 2, 3, 1).reshape(-1))
                self._which.append((names.index(name), shape))
            start += size
        self._places = torch.cat(places).to(vector.device)  # position of each copied entry
        self._sizes = [len(part) for part in places]
        self.source = vector  # whose weights `refresh` copies
        self._order = self._places.argsort()  # the copies in the order of the vector
        self._flat = vector[self._places]
        parts = self._flat.split(self._sizes)
        self.views = {
            names[index]: part.view(o, h, w, i).permute(0, 3, 1, 2)
            for (index, (o, i, h, w)), part in zip(self._which, parts, strict=True)
        }

    def refresh(self) -> None:
        """Copy the current weights."""
        torch.index_select(self.source, 0, self._places, out=self._flat)

    def restore_order(self, grads: list[Tensor]) -> list[Tensor]:
        """Return the gradients with those of the copies in the order of the vector."""
        parts = [grads[index].permute(0, 2, 3, 1).reshape(-1) for index, _ in self._which]
        ordered = torch.cat(parts).index_select(0, self._order).split(self._sizes)
        grads = list(grads)
        for (index, shape), part in zip(self._which, ordered, strict=True):
            grads[index] = part.view(shape)
        return grads
