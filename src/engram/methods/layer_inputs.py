"""What linear and convolutional layers are given, and changes of their weights along it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.errors import bad
from engram.learner.learner import RunLearner
from engram.methods.method import Update


def find_layers(network: nn.Module) -> dict[str, nn.Linear | nn.Conv2d]:
    """Return the linear and 2d convolutional layers of a module, by name.

    Examples
    --------
    >>> find_layers(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    {'0': Linear(in_features=2, out_features=3, bias=True)}
    """
    layers = {k: v for k, v in network.named_modules() if isinstance(v, nn.Linear | nn.Conv2d)}
    for name, layer in layers.items():
        if isinstance(layer, nn.Conv2d) and (
            layer.groups > 1 or isinstance(layer.padding, str) or layer.padding_mode != "zeros"
        ):
            raise bad("model", "convolutions without groups, padded by zeros", name)
    return layers


def input_rows(layer: nn.Linear | nn.Conv2d, x: Tensor) -> Tensor:
    """Return the inputs [n, d] that the rows of a layer's weights [out, d] are multiplied with.

    A last column of ones belongs to the bias, if there is one.

    Examples
    --------
    >>> input_rows(nn.Linear(2, 1), torch.tensor([[3.0, 4.0]])).tolist()
    [[3.0, 4.0, 1.0]]
    >>> input_rows(nn.Conv2d(1, 1, 2, bias=False), torch.arange(6.0).view(1, 1, 2, 3)).tolist()
    [[0.0, 1.0, 3.0, 4.0], [1.0, 2.0, 4.0, 5.0]]
    """
    if isinstance(layer, nn.Conv2d):
        padding: Any = layer.padding
        x = F.unfold(x, layer.kernel_size, layer.dilation, padding, layer.stride).mT
    rows = x.reshape(-1, x.shape[-1])
    return rows if layer.bias is None else F.pad(rows, (0, 1), value=1.0)


def input_moments(learner: RunLearner, rows: Tensor, part: str) -> dict[str, Tensor]:
    """Return the sums [d, d] of x x' over the inputs x that each layer of a part is given.

    Rows pass through the network in eval mode; names are those of the layers' weights, without
    ``.weight``.
    """
    sums: dict[str, Tensor] = {}

    def add(name: str, layer: nn.Linear | nn.Conv2d, given: Tensor) -> None:
        x = input_rows(layer, given).double()
        sums[name] = sums.get(name, 0) + x.mT @ x

    with watch_inputs(learner, (part,), add):
        learner.outputs(rows)
    return sums


def mean_inputs(
    learner: RunLearner, rows: Tensor, size: int, parts: tuple[str, ...]
) -> dict[str, Tensor]:
    """Return the inputs [n, d] that each layer of some parts is given, means over `size` rows each.

    Of a convolution, one for each place of its window. Names are those of `input_moments`.
    """
    found: dict[str, list[Tensor]] = {}

    def add(name: str, layer: nn.Linear | nn.Conv2d, given: Tensor) -> None:
        found.setdefault(name, []).append(input_rows(layer, given.mean(0, keepdim=True)).double())

    with watch_inputs(learner, parts, add):
        for chunk in rows.split(size):
            learner.outputs(chunk)
    return {name: torch.cat(means) for name, means in found.items()}


@contextmanager
def watch_inputs(
    learner: RunLearner,
    parts: tuple[str, ...],
    see: Callable[[str, nn.Linear | nn.Conv2d, Tensor], None],
) -> Iterator[None]:
    """Call ``see(name, layer, x)`` for every input that a layer of these parts is given."""

    def hook(name: str) -> Callable[..., None]:
        return lambda layer, given: see(name, layer, given[0].detach())

    hooks = []
    for part in parts:
        for name, layer in find_layers(learner.networks.eval.get_submodule(part)).items():
            named = f"{part}.{name}" if name else part  # a head is a layer itself
            hooks.append(layer.register_forward_pre_hook(hook(named)))
    try:
        yield
    finally:
        for one in hooks:
            one.remove()


def hold_other_parameters(learner: RunLearner, part: str) -> None:
    """From the second task on, let only the layers of a part move, and what lies outside of it.

    Raises in the first task if the part has a layer whose inputs cannot be found.
    """
    layers = find_layers(learner.networks.eval.get_submodule(part))
    if not learner.stage:
        return
    free = learner.layout(learner.free)
    for name, entries in free.items():
        layer = name.removeprefix(f"{part}.").rpartition(".")[0]
        if name.startswith(f"{part}.") and layer not in layers:
            entries.fill_(False)


def project_rows(change: dict[str, Tensor], projectors: dict[str, Tensor]) -> None:
    """Project the change of every layer's weights, and of its bias with them, in place."""
    for name, projector in projectors.items():
        weight, bias = change[f"{name}.weight"], change.get(f"{name}.bias")
        rows = weight.flatten(1)
        if bias is not None:
            rows = torch.cat([rows, bias[:, None]], 1)
        found = rows @ projector
        if bias is not None:
            bias.copy_(found[:, -1])
            found = found[:, :-1]
        weight.copy_(found.view_as(weight))


def project_step(update: Update, projectors: dict[str, Tensor]) -> Tensor:
    """Return the weights [P] after a step of which each layer's part is projected."""
    change = update.after - update.before
    project_rows(update.layout(change), projectors)
    return update.before + change
