"""Averages of transformed gradients (Fisher information, MAS importances), with fast per-sample
gradients of linear layers. (keep the paragraph that follows)

``mean over groups of transform(gradient of term)``, where a group is one sample (the default), some
samples, or the whole set. Evaluation mode, so BatchNorm statistics are neither used per batch nor
moved, and no result depends on how samples are chunked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from engram.learner import torch_startup
from engram.learner.batch import NO_VALUES, Batch
from engram.learner.networks import FunctionalNet, Net
from engram.learner.parameter_layout import Networks
from engram.models.forward_pass import PLAIN, forward_context
from engram.models.functional_call import call_with_weights

Term = Callable[[Net, Batch], Tensor]
Transform = Callable[[Tensor], Tensor]

CHUNK_ENTRIES = 1 << 26  # gradient entries held at once: 256 MiB of float32


class Weights(NamedTuple):
    """Weights of one run, or of several stacked ones."""

    vector: Tensor
    buffers: dict[str, Tensor]


def average_gradient(
    networks: Networks,
    weights: Weights,
    groups: Batch,
    term: Term,
    transform: Transform,
    batch_statistics: bool = False,
) -> Tensor:
    """Mean over groups of ``transform(d term / d vector)``, shape [P].

    `groups` is a Batch whose leaves have two leading axes [groups, rows of a group]; groups whose
    rows all weigh 0 do not count. With `batch_statistics` a BatchNorm layer uses the group's own
    mean and variance, as in training, but its running ones stay as they are.
    """
    torch_startup.warm_up_mapped(weights.vector.device)
    counted = groups.w.sum(-1) > 0  # [G]
    alone = groups.w.shape[1] == 1 and not batch_statistics
    total = None
    if alone and _is_multiplicative(transform) and is_only_linear(networks):
        total = linear_sums(networks, *weights, groups, term, transform)
    if total is None and alone and _is_multiplicative(transform):
        outer = find_outer_layers(networks, groups, term)
        if outer.names:
            total = outer_sums(networks, *weights, groups, term, transform, counted, outer)
    if total is None:
        total = _mapped_sums(networks, weights, groups, term, transform, counted, batch_statistics)
    return total / counted.sum().clamp(min=1)


def _mapped_sums(
    networks: Networks,
    weights: Weights,
    groups: Batch,
    term: Term,
    transform: Transform,
    counted: Tensor,
    batch_statistics: bool,
) -> Tensor:
    def one(batch: Batch) -> Tensor:
        def value(vector: Tensor) -> Tensor:
            net = FunctionalNet(
                networks, vector, weights.buffers, key=batch.key, training=batch_statistics
            )
            return term(net, batch)

        return transform(grad(value)(weights.vector))

    def by_loop(part: Batch) -> Tensor:
        single = (part.map(lambda leaf, i=i: leaf[i]) for i in range(len(part.w)))  # type: ignore[misc]
        return torch.stack([one(batch) for batch in single])

    each = by_loop if networks.unmappable else vmap(one)
    chunk = max(1, CHUNK_ENTRIES // max(1, len(networks.layout)))
    total = torch.zeros_like(weights.vector)
    for start in range(0, groups.w.shape[0], chunk):
        part = groups.map(lambda leaf, a=start: leaf[a : a + chunk])  # type: ignore[misc]
        keep = counted[start : start + chunk, None]
        total = total + torch.where(keep, each(part), 0.0).sum(0)
    return total


def _is_multiplicative(transform: Transform) -> bool:
    """Whether transform(a * b) = transform(a) * transform(b), so outer products need no forming."""
    return transform in (torch.square, torch.abs)


def eval_outputs(networks: Networks, weights: Weights, path: str, x: Tensor) -> object:
    """One forward pass in eval mode with these weights."""
    values = {**networks.layout(weights.vector), **weights.buffers}
    with torch.no_grad(), forward_context(None, None):
        return call_with_weights(networks.eval, values, (path, x), networks.ties)


# ------------------------------------------------------------------------------------------------
# Per-sample gradients of networks of linear layers, in one pass over all samples.
#
# A sample's weight gradient is the outer product of the layer's input and the gradient at its
# output. That holds where every weight meets a sample once, as one row of one matrix product, and
# where no row sees another. Both are watched while the network computes; a network that does
# anything else is no case for this module, and its gradients are taken sample by sample.


# operations of torch by name: entry by entry, or on the axes behind the rows only
ENTRYWISE_FUNCTIONS = frozenset((
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "elu", "elu_", "selu", "selu_", "celu",
    "gelu", "silu", "mish", "softplus", "softsign", "tanh", "tanh_", "tanhshrink", "sigmoid",
    "sigmoid_", "logsigmoid", "hardtanh", "hardsigmoid", "hardswish", "abs", "neg", "exp", "sin",
    "cos", "square", "add", "sub", "mul", "div", "__add__", "__radd__", "__sub__", "__rsub__",
    "__mul__", "__rmul__", "__truediv__", "clone",
))  # fmt: skip
RESHAPING_FUNCTIONS = frozenset(("flatten", "reshape", "view", "contiguous"))
# what may be asked of a tensor; its number of rows is another for one sample than for all
LINEAR_ATTRIBUTES = frozenset(("ndim", "dtype", "device", "is_cuda", "requires_grad"))


class _NotLinear(Exception):
    """A network that is more than linear layers and functions of single entries."""


class _SingleRowBatch(Batch):
    """One row of every group; each group has a key of its own, so there is none for all."""

    @property
    def key(self) -> Tensor:
        raise _NotLinear


class _LinearProbe(TorchFunctionMode):
    """Follows the rows of a batch through a network, and probes the outputs of its layers."""

    def __init__(
        self, params: Mapping[str, Tensor], probes: Mapping[str, Tensor], rows: Tensor
    ) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in params.items()}
        self._probes = probes
        self._rows = rows.shape[0]
        self._known = {id(rows): rows}  # tensors whose first axis is the rows; kept, ids are keys
        self.inputs: dict[str, Tensor] = {}  # of every weight that was used
        self.biases: dict[str, str] = {}  # by the weight they were added behind
        self.irregular = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {} if kwargs is None else kwargs
        if func is F.linear:
            return self._linear(*args, **given)
        name = getattr(func, "__name__", "")
        if name == "dim" or (name == "__get__" and func.__self__.__name__ in LINEAR_ATTRIBUTES):
            return func(*args, **given)
        tensors = [one for one in (*args, *given.values()) if isinstance(one, Tensor)]
        dropped = name == "dropout" and given.get("training") is False
        rowwise = name in ENTRYWISE_FUNCTIONS or name in RESHAPING_FUNCTIONS or dropped
        self.need(rowwise and all(map(self.knows, tensors)))
        self.need(len({one.shape for one in tensors}) == 1)
        return self.learn(func(*args, **given))

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        name = self._names.get(id(weight), "")
        added = "" if bias is None else self._names.get(id(bias), "")
        self.need(self.knows(x) and x.ndim == 2)
        self.need(name in self._probes and name not in self.inputs)
        self.need(bias is None or (added != "" and added not in self.biases.values()))
        self.inputs[name] = x
        if added:
            self.biases[name] = added
        answer: Tensor = self.learn(F.linear(x, weight, bias) + self._probes[name])
        return answer

    def knows(self, tensor: Tensor) -> bool:
        return id(tensor) in self._known

    def learn(self, answer: Any) -> Any:
        self.need(isinstance(answer, Tensor) and answer.shape[:1] == (self._rows,))
        self._known[id(answer)] = answer
        return answer

    def need(self, holds: bool) -> None:
        if not holds:
            self.irregular = True  # said twice: a network may catch the exception
            raise _NotLinear


class _LinearProbedNet(FunctionalNet):
    """In eval mode; whoever reads the weights themselves may do anything with them."""

    watch: _LinearProbe

    def _run(self, path: str, args: tuple[Any, ...]) -> Any:
        tensors = [one for one in args if isinstance(one, Tensor)]
        self.watch.need(all(map(self.watch.knows, tensors)))
        with self.watch:
            answer = super()._run(path, args)
        parts = answer if isinstance(answer, tuple) else (answer,)
        tensors = [one for one in parts if not isinstance(one, Mapping)]
        self.watch.need(all(isinstance(o, Tensor) and self.watch.knows(o) for o in tensors))
        return answer

    @property
    def vector(self) -> Tensor:
        self.watch.need(False)
        return super().vector

    @property
    def params(self) -> Mapping[str, Tensor]:
        self.watch.need(False)
        return super().params


def is_only_linear(networks: Networks) -> bool:
    """Whether all parameters belong to linear layers, so that a pass is worth a try."""
    owned = set()
    for name, module in networks.eval.named_modules():
        if isinstance(module, nn.Linear):
            owned |= {f"{name}.{parameter}" for parameter, _ in module.named_parameters()}
    return owned == set(networks.layout.shapes)


def linear_sums(
    networks: Networks,
    vector: Tensor,
    buffers: dict[str, Tensor],
    groups: Batch,
    term: Callable[..., Tensor],
    transform: Callable[[Tensor], Tensor],
) -> Tensor | None:
    """[P] sum over groups of one row of ``transform(gradient)``; None if it must be had otherwise.

    `transform` must turn a product into the product of its transforms.
    """
    rows_of = [leaf.flatten(0, 1) for leaf in groups.per_row]
    flat = _SingleRowBatch._make([*rows_of, *(leaf[0] for leaf in groups.shared), (), NO_VALUES])
    shapes, rows = networks.layout.shapes, len(flat.w)
    matrices = [name for name, shape in shapes.items() if len(shape) == 2]
    probes = {name: vector.new_zeros(rows, shapes[name][0]) for name in matrices}
    found: list[_LinearProbe] = []

    def value(probes: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        net = _LinearProbedNet(networks, vector, buffers, training=False)
        net.watch = _LinearProbe(net._params, probes, flat.x)
        found[:] = [net.watch]
        total = term(net, flat) * flat.w.sum()
        return total, {name: x.detach() for name, x in net.watch.inputs.items()}

    try:
        slopes, seen = grad(value, has_aux=True)(probes)
    except _NotLinear:
        return None
    watch = found[0]
    if watch.irregular:
        return None
    parts = {name: vector.new_zeros(shape) for name, shape in shapes.items()}
    for name, x in seen.items():  # layers that were not called have no gradient
        slope = transform(slopes[name])  # [rows, out]
        parts[name] = slope.T @ transform(x)
        if name in watch.biases:
            parts[watch.biases[name]] = slope.sum(0)
    return networks.layout.flatten(parts[name] for name in shapes)


# ------------------------------------------------------------------------------------------------
# Per-sample gradients of networks with large linear layers beside other ones.
#
# Samples are mapped, so none sees another. A large weight matrix that meets a sample once, as one
# row of one product, has the outer product of that row and the slope at its output as gradient: the
# rows and slopes of all samples are kept in place of a matrix per sample, and one product sums them
# up. Everything else (convolutions, normalisation, biases) has its gradient sample by sample.
#
# Which matrices are used so is tried out on one made-up row before anything is computed. There, and
# in the pass itself, the network is given numbers that are none (NaN) in place of such a matrix,
# and the true one is put in where it is multiplied: a network that does anything else with it would
# answer NaN, and the matrix then counts as any other parameter.


LARGE_MATRIX = 1 << 16  # entries of a matrix from which on its gradients are worth the detour
MAX_ENTRIES = 1 << 26  # numbers held at once: 256 MiB of float32
# what may be asked of a matrix without using its numbers
OUTER_ATTRIBUTES = frozenset(("ndim", "dtype", "device", "is_cuda", "requires_grad", "shape"))


class OuterLayers(NamedTuple):
    """Matrices whose gradients are outer products, and the entries that a sample needs in all."""

    names: tuple[str, ...]
    entries: int


class _NotOuterProduct(Exception):
    """A matrix (or, without a name, any of them) that is used otherwise."""

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self.name = name


class _OuterProbe(TorchFunctionMode):
    """Puts the true matrices in where they are multiplied, and watches that it is once."""

    def __init__(
        self, params: Mapping[str, Tensor], true: Mapping[str, Tensor], probes: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self._names = {id(params[name]): name for name in true}
        self._true, self._probes = true, probes
        self.rows: dict[str, Tensor] = {}  # [in] what each matrix was multiplied with
        self.entries = 0  # of everything computed
        self.fault: _NotOuterProduct | None = None  # said twice: a network may catch the exception

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {} if kwargs is None else kwargs
        if func is F.linear:
            return self._count(self._linear(*args, **given))
        if (
            getattr(func, "__name__", "") == "__get__"
            and func.__self__.__name__ in OUTER_ATTRIBUTES
        ):
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
        self.fault = _NotOuterProduct(name)
        raise self.fault


class _OuterProbedNet(FunctionalNet):
    """In eval mode; whoever reads the weights themselves may do anything with them."""

    watch: _OuterProbe

    def _run(self, path: str, args: tuple[Any, ...]) -> Any:
        with self.watch:
            answer = super()._run(path, args)
        if self.watch.fault is not None:
            raise self.watch.fault
        return answer

    @property
    def vector(self) -> Tensor:
        raise _NotOuterProduct

    @property
    def params(self) -> Mapping[str, Tensor]:
        raise _NotOuterProduct


def _make_probed_net(
    networks: Networks, vector: Tensor, buffers: Mapping[str, Tensor], key: Any,
    small: Mapping[str, Tensor], probes: Mapping[str, Tensor],
) -> _OuterProbedNet:  # fmt: skip
    """The networks with stand-ins for the matrices that have probes."""
    net = _OuterProbedNet(networks, vector, buffers, key=key, training=False)
    views = networks.layout(vector)
    none = torch.full((), torch.nan, dtype=vector.dtype, device=vector.device)
    net._params = {
        name: small[name] if name in small else none.expand(shape)
        for name, shape in networks.layout.shapes.items()
    }
    net.watch = _OuterProbe(net._params, {name: views[name] for name in probes}, probes)
    return net


def find_outer_layers(
    networks: Networks, groups: Batch, term: Callable[..., Tensor]
) -> OuterLayers:
    """The large matrices of which every group of one row, [groups, 1, ...], makes one product."""
    shapes = networks.layout.shapes
    names = [
        name for name, shape in shapes.items() if len(shape) == 2 and shape.numel() >= LARGE_MATRIX
    ]
    while names:
        try:
            return OuterLayers(tuple(names), _try_outer(networks, groups, term, names))
        except _NotOuterProduct as fault:
            names = [name for name in names if name != fault.name] if fault.name else []
    return OuterLayers((), 0)


def _try_outer(
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
    net = _make_probed_net(
        networks, vector, buffers, batch.key, small, _make_probes(networks, vector, names)
    )
    token = PLAIN.set(True)  # as in the mapped pass itself
    try:
        with torch.no_grad():
            answer = term(net, batch)
    finally:
        PLAIN.reset(token)
    if not bool(torch.isfinite(answer).all()):
        raise _NotOuterProduct  # a matrix was used where nobody sees it
    return net.watch.entries + sum(sum(networks.layout.shapes[name]) for name in names)


def _make_probes(networks: Networks, vector: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    return {name: vector.new_zeros(networks.layout.shapes[name][0]) for name in names}


def outer_sums(
    networks: Networks,
    vector: Tensor,
    buffers: Mapping[str, Tensor],
    groups: Batch,
    term: Callable[..., Tensor],
    transform: Callable[[Tensor], Tensor],
    counted: Tensor,
    outer: OuterLayers,
) -> Tensor:
    """[P] sum over groups of one row of ``transform(gradient)``.

    `transform` must turn a product into the product of its transforms. Groups that are not
    `counted` [G] are left out.
    """
    views = networks.layout(vector)
    small = {name: view for name, view in views.items() if name not in outer.names}
    probes = _make_probes(networks, vector, outer.names)

    def one(batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        def value(small: Any, probes: Any) -> tuple[Tensor, dict[str, Tensor]]:
            net = _make_probed_net(networks, vector, buffers, batch.key, small, probes)
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
    chunk = max(1, MAX_ENTRIES // held)
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
