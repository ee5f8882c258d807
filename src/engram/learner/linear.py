"""Per-sample gradients of networks of linear layers, in one pass over all samples.

A sample's weight gradient is the outer product of the layer's input and the gradient at its
output. That holds where every weight meets a sample once, as one row of one matrix product, and
where no row sees another. Both are watched while the network computes; a network that does
anything else is no case for this module, and its gradients are taken sample by sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad
from torch.overrides import TorchFunctionMode

from engram.learner.batch import NOTHING, Batch
from engram.learner.layout import Networks
from engram.learner.net import FunctionalNet

# operations of torch by name: entry by entry, or on the axes behind the rows only
ENTRYWISE = frozenset((
    "relu", "relu_", "relu6", "leaky_relu", "leaky_relu_", "elu", "elu_", "selu", "selu_", "celu",
    "gelu", "silu", "mish", "softplus", "softsign", "tanh", "tanh_", "tanhshrink", "sigmoid",
    "sigmoid_", "logsigmoid", "hardtanh", "hardsigmoid", "hardswish", "abs", "neg", "exp", "sin",
    "cos", "square", "add", "sub", "mul", "div", "__add__", "__radd__", "__sub__", "__rsub__",
    "__mul__", "__rmul__", "__truediv__", "clone",
))  # fmt: skip
SHAPED = frozenset(("flatten", "reshape", "view", "contiguous"))
# what may be asked of a tensor; its number of rows is another for one sample than for all
FACTS = frozenset(("ndim", "dtype", "device", "is_cuda", "requires_grad"))


class _Irregular(Exception):
    """A network that is more than linear layers and functions of single entries."""


class _Rows(Batch):
    """One row of every group; each group has a key of its own, so there is none for all."""

    @property
    def key(self) -> Tensor:
        raise _Irregular


class _Watch(TorchFunctionMode):
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
        if name == "dim" or (name == "__get__" and func.__self__.__name__ in FACTS):
            return func(*args, **given)
        tensors = [one for one in (*args, *given.values()) if isinstance(one, Tensor)]
        dropped = name == "dropout" and given.get("training") is False
        rowwise = name in ENTRYWISE or name in SHAPED or dropped
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
            raise _Irregular


class _WatchedNet(FunctionalNet):
    """In eval mode; whoever reads the weights themselves may do anything with them."""

    watch: _Watch

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


def only_linear(networks: Networks) -> bool:
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
    flat = _Rows._make([*rows_of, *(leaf[0] for leaf in groups.shared), (), NOTHING])
    shapes, rows = networks.layout.shapes, len(flat.w)
    matrices = [name for name, shape in shapes.items() if len(shape) == 2]
    probes = {name: vector.new_zeros(rows, shapes[name][0]) for name in matrices}
    found: list[_Watch] = []

    def value(probes: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        net = _WatchedNet(networks, vector, buffers, training=False)
        net.watch = _Watch(net._params, probes, flat.x)
        found[:] = [net.watch]
        total = term(net, flat) * flat.w.sum()
        return total, {name: x.detach() for name, x in net.watch.inputs.items()}

    try:
        slopes, seen = grad(value, has_aux=True)(probes)
    except _Irregular:
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
