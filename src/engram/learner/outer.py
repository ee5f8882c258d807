"""Per-sample gradients of networks with large linear layers beside other ones.

Samples are mapped, so none sees another. A large weight matrix that meets a sample once, as one row
of one product, has the outer product of that row and the slope at its output as gradient: the rows
and slopes of all samples are kept in place of a matrix per sample, and one product sums them up.
Everything else (convolutions, normalisation, biases) has its gradient sample by sample.

Which matrices are used so is tried out on one made-up row before anything is computed. There, and
in the pass itself, the network is given numbers that are none (NaN) in place of such a matrix, and
the true one is put in where it is multiplied: a network that does anything else with it would
answer NaN, and the matrix then counts as any other parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from engram.learner.batch import Batch
from engram.learner.layout import Networks
from engram.learner.net import FunctionalNet
from engram.models.context import PLAIN

LARGE = 1 << 16  # entries of a matrix from which on its gradients are worth the detour
ENTRIES = 1 << 26  # numbers held at once: 256 MiB of float32
# what may be asked of a matrix without using its numbers
FACTS = frozenset(("ndim", "dtype", "device", "is_cuda", "requires_grad", "shape"))


class Outer(NamedTuple):
    """Matrices whose gradients are outer products, and the entries that a sample needs in all."""

    names: tuple[str, ...]
    entries: int


class _Irregular(Exception):
    """A matrix (or, without a name, any of them) that is used otherwise."""

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self.name = name


class _Watch(TorchFunctionMode):
    """Puts the true matrices in where they are multiplied, and watches that it is once."""

    def __init__(
        self, params: Mapping[str, Tensor], true: Mapping[str, Tensor], probes: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self._names = {id(params[name]): name for name in true}
        self._true, self._probes = true, probes
        self.rows: dict[str, Tensor] = {}  # [in] what each matrix was multiplied with
        self.entries = 0  # of everything computed
        self.fault: _Irregular | None = None  # said twice: a network may catch the exception

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {} if kwargs is None else kwargs
        if func is F.linear:
            return self._count(self._linear(*args, **given))
        if getattr(func, "__name__", "") == "__get__" and func.__self__.__name__ in FACTS:
            return func(*args, **given)
        for one in tree_leaves((args, given)):
            if id(one) in self._names:
                self._refuse(self._names[id(one)])
        return self._count(func(*args, **given))

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        name = self._names.get(id(weight))
        if name is None:
            return F.linear(x, weight, bias)
        if x.ndim != 2 or x.shape[0] != 1 or name in self.rows:
            self._refuse(name)
        self.rows[name] = x[0]
        return F.linear(x, self._true[name], bias) + self._probes[name]

    def _count(self, answer: Any) -> Any:
        self.entries += answer.numel() if isinstance(answer, Tensor) else 0
        return answer

    def _refuse(self, name: str) -> None:
        self.fault = _Irregular(name)
        raise self.fault


class _OuterNet(FunctionalNet):
    """In eval mode; whoever reads the weights themselves may do anything with them."""

    watch: _Watch

    def _run(self, path: str, args: tuple[Any, ...]) -> Any:
        with self.watch:
            answer = super()._run(path, args)
        if self.watch.fault is not None:
            raise self.watch.fault
        return answer

    @property
    def vector(self) -> Tensor:
        raise _Irregular

    @property
    def params(self) -> Mapping[str, Tensor]:
        raise _Irregular


def _net(
    networks: Networks, vector: Tensor, buffers: Mapping[str, Tensor], key: Any,
    small: Mapping[str, Tensor], probes: Mapping[str, Tensor],
) -> _OuterNet:  # fmt: skip
    """The networks with stand-ins for the matrices that have probes."""
    net = _OuterNet(networks, vector, buffers, key=key, training=False)
    views = networks.layout(vector)
    none = torch.full((), torch.nan, dtype=vector.dtype, device=vector.device)
    net._params = {
        name: small[name] if name in small else none.expand(shape)
        for name, shape in networks.layout.shapes.items()
    }
    net.watch = _Watch(net._params, {name: views[name] for name in probes}, probes)
    return net


def outer_layers(networks: Networks, groups: Batch, term: Callable[..., Tensor]) -> Outer:
    """The large matrices of which every group of one row, [groups, 1, ...], makes one product."""
    shapes = networks.layout.shapes
    names = [name for name, shape in shapes.items() if len(shape) == 2 and shape.numel() >= LARGE]
    while names:
        try:
            return Outer(tuple(names), _tried(networks, groups, term, names))
        except _Irregular as fault:
            names = [name for name in names if name != fault.name] if fault.name else []
    return Outer((), 0)


def _tried(
    networks: Networks, groups: Batch, term: Callable[..., Tensor], names: Sequence[str]
) -> int:
    """One made-up row through the network; how many entries it took."""

    def made_up(leaf: Tensor) -> Tensor:
        fill = 0 if leaf.dtype in (torch.int64, torch.int32) else 1
        return torch.full(leaf.shape[1:], fill, dtype=leaf.dtype, device=leaf.device)

    batch = groups.map(made_up)
    vector, buffers = networks.initial()
    vector = vector.to(batch.w.device, batch.w.dtype)
    buffers = {name: value.to(vector.device) for name, value in buffers.items()}
    small = {name: view for name, view in networks.layout(vector).items() if name not in names}
    net = _net(networks, vector, buffers, batch.key, small, _probes(networks, vector, names))
    token = PLAIN.set(True)  # as in the mapped pass itself
    try:
        with torch.no_grad():
            answer = term(net, batch)
    finally:
        PLAIN.reset(token)
    if not bool(torch.isfinite(answer).all()):
        raise _Irregular  # a matrix was used where nobody sees it
    return net.watch.entries + sum(sum(networks.layout.shapes[name]) for name in names)


def _probes(networks: Networks, vector: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    return {name: vector.new_zeros(networks.layout.shapes[name][0]) for name in names}


def outer_sums(
    networks: Networks,
    vector: Tensor,
    buffers: Mapping[str, Tensor],
    groups: Batch,
    term: Callable[..., Tensor],
    transform: Callable[[Tensor], Tensor],
    counted: Tensor,
    outer: Outer,
) -> Tensor:
    """[P] sum over groups of one row of ``transform(gradient)``.

    `transform` must turn a product into the product of its transforms. Groups that are not
    `counted` [G] are left out.
    """
    views = networks.layout(vector)
    small = {name: view for name, view in views.items() if name not in outer.names}
    probes = _probes(networks, vector, outer.names)

    def one(batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        def value(small: Any, probes: Any) -> tuple[Tensor, dict[str, Tensor]]:
            net = _net(networks, vector, buffers, batch.key, small, probes)
            return term(net, batch), dict(net.watch.rows)

        (slopes, at), rows = grad(value, argnums=(0, 1), has_aux=True)(small, probes)
        return slopes, at, rows

    def by_loop(part: Batch) -> Any:
        single = (part.map(lambda leaf, i=i: leaf[i]) for i in range(len(part.w)))  # type: ignore[misc]
        each = [one(batch) for batch in single]
        return tuple(
            {name: torch.stack([found[k][name] for found in each]) for name in each[0][k]}
            for k in range(3)
        )

    mapped = by_loop if networks.unmappable else vmap(one)
    held = sum(view.numel() for view in small.values()) + 2 * outer.entries  # there and back
    chunk = max(1, ENTRIES // held)
    total = {name: torch.zeros_like(view) for name, view in views.items()}
    for start in range(0, groups.w.shape[0], chunk):
        part = groups.map(lambda leaf, a=start: leaf[a : a + chunk])  # type: ignore[misc]
        slopes, at, rows = mapped(part)
        keep = counted[start : start + chunk]

        def kept(leaf: Tensor, keep: Tensor = keep) -> Tensor:
            return torch.where(keep.reshape(-1, *[1] * (leaf.ndim - 1)), transform(leaf), 0.0)

        for name, leaf in slopes.items():
            total[name] = total[name] + kept(leaf).sum(0)
        for name, x in rows.items():  # layers that were not called have no gradient
            total[name] = total[name] + kept(at[name]).T @ kept(x)
    return networks.layout.flatten(total[name] for name in networks.layout.shapes)
