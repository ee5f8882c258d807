"""Averages of transformed gradients (Fisher information, MAS importances), with fast per-sample
gradients of linear layers.

`average_gradient` computes the mean over groups of ``transform(gradient of term)``, where a group
is one sample (the default), several samples, or the whole set. It runs in eval mode, so that
BatchNorm neither uses nor updates batch statistics, and the result does not depend on the chunk
size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from engram.learner import torch_startup
from engram.learner.batch import NO_VALUES, Batch
from engram.learner.networks import FunctionalNet, Net
from engram.learner.parameter_layout import Networks, Views
from engram.models.forward_pass import PLAIN, forward_context
from engram.models.functional_call import call_with_weights, differentiate

Term = Callable[[Net, Batch], Tensor]
Transform = Callable[[Tensor], Tensor]

CHUNK_ENTRIES = 1 << 26  # gradient entries per chunk: 256 MiB of float32


class Weights(NamedTuple):
    """Weights of one run, or stacked weights of several runs."""

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
    """Average ``transform(d term / d vector)`` over groups, shape [P].

    `groups` is a Batch whose leaves have the leading axes [groups, rows of a group]; groups in
    which all row weights are 0 are ignored. With `batch_statistics` BatchNorm layers use the mean
    and variance of the group, as in training, without updating the running ones.
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

        return transform(differentiate(value)(weights.vector))

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
    """Whether transform(a * b) = transform(a) * transform(b): outer products need not be formed."""
    return transform in (torch.square, torch.abs)


def eval_outputs(networks: Networks, weights: Weights, path: str, x: Tensor) -> object:
    """Run one forward pass in eval mode with these weights."""
    values = {**networks.layout(weights.vector), **weights.buffers}
    with torch.no_grad(), forward_context(None, None):
        return call_with_weights(networks.eval, values, (path, x), networks.ties)


# -- networks that consist of linear layers --------------------------------------------------------
# The gradient of a weight matrix for one sample is the outer product of the layer's input and the
# gradient at its output, so one pass over all samples is enough. This holds if every weight is used
# once per sample, as one row of one matrix product, and if rows do not interact. Both are verified
# while the network runs; for any other network the gradients are computed sample by sample.

# torch functions by name: element-wise, or on the axes after the rows only
ENTRYWISE_FUNCTIONS = frozenset((
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "elu", "elu_", "selu", "selu_", "celu",
    "gelu", "silu", "mish", "softplus", "softsign", "tanh", "tanh_", "tanhshrink", "sigmoid",
    "sigmoid_", "logsigmoid", "hardtanh", "hardsigmoid", "hardswish", "abs", "neg", "exp", "sin",
    "cos", "square", "add", "sub", "mul", "div", "__add__", "__radd__", "__sub__", "__rsub__",
    "__mul__", "__rmul__", "__truediv__", "clone",
))  # fmt: skip
RESHAPING_FUNCTIONS = frozenset(("flatten", "reshape", "view", "contiguous"))
# attributes that a network may read: not the shape, whose number of rows differs for one sample
LINEAR_ATTRIBUTES = frozenset(("ndim", "dtype", "device", "is_cuda", "requires_grad"))


class _NotLinear(Exception):
    """The network is more than linear layers and element-wise functions."""


class _SingleRowBatch(Batch):
    """One row of every group; it has no key, because each group has its own."""

    @property
    def key(self) -> Tensor:
        raise _NotLinear


class _LinearProbe(TorchFunctionMode):
    """Track the rows of a batch through a network, and add probes to the outputs of its layers."""

    def __init__(
        self, params: Mapping[str, Tensor], probes: Mapping[str, Tensor], rows: Tensor
    ) -> None:
        super().__init__()
        self._names = {id(value): name for name, value in params.items()}
        self._probes = probes
        self._rows = rows.shape[0]
        self._known = {
            id(rows): rows
        }  # tensors whose first axis is the rows; held, since ids are keys
        self.inputs: dict[str, Tensor] = {}  # of each weight that was used
        self.biases: dict[str, str] = {}  # by the weight of their layer
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
        tensors = [value for value in (*args, *given.values()) if isinstance(value, Tensor)]
        dropped = name == "dropout" and given.get("training") is False
        rowwise = name in ENTRYWISE_FUNCTIONS or name in RESHAPING_FUNCTIONS or dropped
        self.require(rowwise and all(map(self.knows, tensors)))
        self.require(len({tensor.shape for tensor in tensors}) == 1)
        return self.track(func(*args, **given))

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        name = self._names.get(id(weight), "")
        added = "" if bias is None else self._names.get(id(bias), "")
        self.require(self.knows(x) and x.ndim == 2)
        self.require(name in self._probes and name not in self.inputs)
        self.require(bias is None or (added != "" and added not in self.biases.values()))
        self.inputs[name] = x
        if added:
            self.biases[name] = added
        output: Tensor = self.track(F.linear(x, weight, bias) + self._probes[name])
        return output

    def knows(self, tensor: Tensor) -> bool:
        return id(tensor) in self._known

    def track(self, output: Any) -> Any:
        self.require(isinstance(output, Tensor) and output.shape[:1] == (self._rows,))
        self._known[id(output)] = output
        return output

    def require(self, holds: bool) -> None:
        if not holds:
            self.irregular = True  # recorded as well, since a network may catch the exception
            raise _NotLinear


class _LinearProbedNet(FunctionalNet):
    """Networks in eval mode under a `_LinearProbe`; a term must not read the weights directly."""

    watch: _LinearProbe

    def _run(self, path: str, args: tuple[Any, ...]) -> Any:
        tensors = [one for one in args if isinstance(one, Tensor)]
        self.watch.require(all(map(self.watch.knows, tensors)))
        with self.watch:
            output = super()._run(path, args)
        parts = output if isinstance(output, tuple) else (output,)
        tensors = [one for one in parts if not isinstance(one, Mapping)]
        self.watch.require(all(isinstance(o, Tensor) and self.watch.knows(o) for o in tensors))
        return output

    @property
    def vector(self) -> Tensor:
        self.watch.require(False)
        return super().vector

    @property
    def params(self) -> Views:
        self.watch.require(False)
        return super().params


def is_only_linear(networks: Networks) -> bool:
    """Whether all parameters belong to linear layers, so that `linear_sums` may succeed."""
    if networks.constant_names:  # a linear layer may have one
        return False
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
    """Sum ``transform(gradient)`` over groups of one row, shape [P]; None if not applicable.

    `transform` must satisfy transform(a * b) = transform(a) * transform(b).
    """
    rows_of = [leaf.flatten(0, 1) for leaf in groups.per_row]
    flat = _SingleRowBatch._make(
        [*rows_of, *(leaf[0] for leaf in groups.shared), (), NO_VALUES, ()]
    )
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
        slopes, seen = differentiate(value, has_aux=True)(probes)
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


# -- networks with some large linear layers --------------------------------------------------------
# The pass is mapped over samples. A large weight matrix that is used once per sample, as one row of
# one product, has the outer product of that row and the gradient at its output as its gradient.
# Rows and output gradients of all samples are stored instead of one matrix per sample, and a single
# product sums them up. All other parameters (convolutions, normalisation, biases) have per-sample
# gradients.
#
# Which matrices qualify is found out beforehand with one dummy row. In that pass and in the real
# one, such a matrix is replaced by NaN, and the true values are substituted where it is multiplied.
# If a network uses the matrix in any other way, its output is NaN, and the matrix is treated like
# any other parameter.

LARGE_MATRIX = 1 << 16  # minimum number of entries of a matrix that is treated this way
MAX_ENTRIES = 1 << 26  # entries per chunk: 256 MiB of float32
# attributes of a matrix that may be read, because they do not depend on its values
OUTER_ATTRIBUTES = frozenset(("ndim", "dtype", "device", "is_cuda", "requires_grad", "shape"))


class OuterLayers(NamedTuple):
    """Matrices whose gradients are outer products, and the total number of entries per sample."""

    names: tuple[str, ...]
    entries: int


class _NotOuterProduct(Exception):
    """A matrix is used in another way than in one product; without a name, some matrix is."""

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        self.name = name


class _OuterProbe(TorchFunctionMode):
    """Substitute the true matrices where they are multiplied, and verify that this happens once."""

    def __init__(
        self, params: Mapping[str, Tensor], true: Mapping[str, Tensor], probes: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self._names = {id(params[name]): name for name in true}
        self._true, self._probes = true, probes
        self.rows: dict[str, Tensor] = {}  # [in] the input of each matrix
        self.entries = 0  # of all tensors computed
        # recorded as well, since a network may catch the exception
        self.fault: _NotOuterProduct | None = None

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
        for leaf in tree_leaves((args, given)):
            if id(leaf) in self._names:
                self._refuse(self._names[id(leaf)])
        return self._count(func(*args, **given))

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        name = self._names.get(id(weight))
        if name is None:
            return F.linear(x, weight, bias)
        if x.ndim != 2 or x.shape[0] != 1 or name in self.rows:
            self._refuse(name)
        self.rows[name] = x[0]
        return F.linear(x, self._true[name], bias) + self._probes[name]

    def _count(self, output: Any) -> Any:
        self.entries += output.numel() if isinstance(output, Tensor) else 0
        return output

    def _refuse(self, name: str) -> None:
        self.fault = _NotOuterProduct(name)
        raise self.fault


class _OuterProbedNet(FunctionalNet):
    """Networks in eval mode under an `_OuterProbe`; a term must not read the weights directly."""

    watch: _OuterProbe

    def _run(self, path: str, args: tuple[Any, ...]) -> Any:
        with self.watch:
            output = super()._run(path, args)
        if self.watch.fault is not None:
            raise self.watch.fault
        return output

    @property
    def vector(self) -> Tensor:
        raise _NotOuterProduct

    @property
    def params(self) -> Views:
        raise _NotOuterProduct


def _make_probed_net(
    networks: Networks, vector: Tensor, buffers: Mapping[str, Tensor], key: Any,
    small: Mapping[str, Tensor], probes: Mapping[str, Tensor],
) -> _OuterProbedNet:  # fmt: skip
    """Make the networks with NaN in place of the matrices that have probes."""
    net = _OuterProbedNet(networks, vector, buffers, key=key, training=False)
    views = networks.layout(vector)
    none = torch.full((), torch.nan, dtype=vector.dtype, device=vector.device)
    net._params = Views(
        (name, small[name] if name in small else none.expand(shape))
        for name, shape in networks.layout.shapes.items()
    )
    net.watch = _OuterProbe(net._params, {name: views[name] for name in probes}, probes)
    return net


def find_outer_layers(
    networks: Networks, groups: Batch, term: Callable[..., Tensor]
) -> OuterLayers:
    """Find the large matrices that `term` uses in one product per group of one row."""
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
    """Pass one dummy row through the network, and return the number of entries computed."""

    def make_dummy(leaf: Tensor) -> Tensor:
        fill = 0 if leaf.dtype in (torch.int64, torch.int32) else 1
        return torch.full(leaf.shape[1:], fill, dtype=leaf.dtype, device=leaf.device)

    batch = groups.map(make_dummy)
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
            value = term(net, batch)
    finally:
        PLAIN.reset(token)
    if not bool(torch.isfinite(value).all()):
        raise _NotOuterProduct  # a matrix was used outside of the observed operations
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
    """Sum ``transform(gradient)`` over groups of one row, shape [P].

    `transform` must satisfy transform(a * b) = transform(a) * transform(b). Groups that are not
    `counted` [G] are ignored.
    """
    views = networks.layout(vector)
    small = {name: view for name, view in views.items() if name not in outer.names}
    probes = _make_probes(networks, vector, outer.names)

    def one(batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        def value(small: Any, probes: Any) -> tuple[Tensor, dict[str, Tensor]]:
            net = _make_probed_net(networks, vector, buffers, batch.key, small, probes)
            return term(net, batch), dict(net.watch.rows)

        (slopes, at), rows = differentiate(value, argnums=(0, 1), has_aux=True)(small, probes)
        return slopes, at, rows

    def by_loop(part: Batch) -> Any:
        single = (part.map(lambda leaf, i=i: leaf[i]) for i in range(len(part.w)))  # type: ignore[misc]
        each = [one(batch) for batch in single]
        return tuple(
            {name: torch.stack([found[k][name] for found in each]) for name in each[0][k]}
            for k in range(3)
        )

    mapped = by_loop if networks.unmappable else vmap(one)
    # of one sample, in the forward and the backward pass
    entries = sum(view.numel() for view in small.values()) + 2 * outer.entries
    chunk = max(1, MAX_ENTRIES // entries)
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
