"""HAT: hard attention to the task, by gates on units that each task learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from engram import keys
from engram.errors import bad
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.method import Method, MethodNetworks, State, Terms
from engram.methods.quadratic_penalty import check_floats
from engram.methods.task_masks import (
    append,
    choose_row,
    choose_statistics,
    free_new_classes,
    keep_statistics,
    refuse_known_classes,
)
from engram.models.forward_pass import Output
from engram.per_run import PerRun
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline

GATES = "gates.embedding"  # the parameter
LARGEST = 6.0  # of an embedding, in either direction
LARGEST_EXPONENT = 50.0


@dataclass(frozen=True, kw_only=True)
class HAT(Method):
    """Gates on the units of every layer, one for each task, which the task learns itself.

    A unit is multiplied by sigmoid(s e), e being an embedding of the task. In every epoch s rises
    from 1 / `scale` to `scale`, so that gates become open or shut. Weights between units that an
    earlier task has opened stand still; a penalty on further open units leaves room for later
    tasks. Nothing is forgotten, but the task of a row must be given.

    Parameters
    ----------
    scale
        Largest s, at least 1; the paper uses 400. Smaller: softer gates while training.
    sparsity
        Weight of the share of unused units that the task opens; the paper uses 0.75.

    Examples
    --------
    >>> HAT().task_identity, HAT().grows
    ('required', True)
    >>> HAT(scale=0.5)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: scale: expected a number of at least 1, got 0.5

    References
    ----------
    Serra et al. 2018, ICML.
    """

    task_identity: ClassVar[str] = "required"
    grows: ClassVar[bool] = True  # by the gates of each task

    scale: PerRun = 400.0
    sparsity: PerRun = 0.75

    def __post_init__(self) -> None:
        check_floats(self, {"scale": (1.0, float("inf")), "sparsity": (0.0, float("inf"))})

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        return {"gates": Gates(find_gated(stream.build_model(), stream.data.sample_shape))}

    def start(self, learner: RunLearner, task: Task) -> None:
        drawn = keys.normal(keys.fold(learner.seed, "gates", learner.stage), *_gates(learner).shape)
        _gates(learner).copy_(drawn.to(learner.vector))
        if not learner.stage:
            refuse_known_classes(learner, "HAT")
            learner.state = {"used": torch.zeros_like(_gates(learner))}
            return
        learner.free = learner.free.clone()
        protect(learner, learner.state["used"] > 0)
        free_new_classes(learner)

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        first = 1 / self.scale
        s = first + (self.scale - first) * batch.clock.epoch_progress
        # a number copied from the host would keep steps from being recorded on CUDA
        scale = torch.ones_like(s) * self.scale
        skeleton, unused = net.networks.train, 1 - state["used"]
        gates: Any = skeleton.get_submodule("gates")

        def sigmoid(embedding: Tensor) -> Tensor:
            found = Compensated.apply(embedding, s, scale)  # type: ignore[no-untyped-call]
            return torch.sigmoid(s * found)

        # the embedding is asked for in the pass, in which the module holds the weights of the run
        with gate_units(skeleton, lambda units: sigmoid(gates.embedding[units])):
            logits = net(batch.x.clone(), batch.w).logits  # `net(batch.x)` is without gates
        opened = sigmoid(net.params[GATES]) * unused
        return {
            "task": net.task(batch, logits=logits),
            "sparsity": self.sparsity * opened.sum() / unused.sum().clamp(min=1),
        }

    def finish(self, learner: RunLearner, task: Task) -> None:
        opened, state = _gates(learner) > 0, learner.state
        learner.state = {
            **state,
            "used": torch.where(opened, 1.0, state["used"]),
            "gates": append(state.get("gates"), opened),
        }
        keep_statistics(learner)

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        now = net.params[GATES]
        gates = choose_row(state["gates"], stage, now > 0) if "gates" in state else now > 0
        snapshot = {"vector": net.vector, "buffers": choose_statistics(net, state, stage)}
        with gate_units(net.networks.eval, lambda units: gates[units].to(now)):
            found: Output = net.frozen(snapshot)(x)
        return found


class Compensated(torch.autograd.Function):
    """Embeddings, whose gradient is scaled as if s were the largest and the slope that of s = 1.

    None leads further out than `LARGEST`, from where no gate would come back.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(embedding: Tensor, s: Tensor, scale: Tensor) -> Tensor:
        return embedding.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        gates, s, scale = ctx.saved_tensors
        steep = (s * gates).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).cosh() + 1
        outward = (gates.abs() > LARGEST) & (slope * gates < 0)
        factor = torch.where(outward, 0.0, scale / s * steep / (gates.cosh() + 1))
        return slope * factor, None, None


def _gates(learner: RunLearner) -> Tensor:
    return learner.params[GATES]


@contextmanager
def gate_units(skeleton: nn.Module, gates: Callable[[slice], Tensor]) -> Iterator[None]:
    """Multiply the units of the main network by gates [n] in passes inside the context."""
    layers: tuple[GatedLayer, ...] = skeleton.get_submodule("gates").layers  # type: ignore[assignment]
    start, hooks = 0, []
    for layer in layers:
        place = slice(start, start + layer.size)

        def multiply(_m: nn.Module, _x: Any, out: Tensor, layer=layer, place=place) -> Tensor:  # type: ignore[no-untyped-def]
            shape = [1] * out.ndim
            shape[layer.axis] = layer.size
            return out * gates(place).reshape(shape)

        hooks.append(skeleton.get_submodule(layer.gated).register_forward_hook(multiply))
        start = place.stop
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def protect(learner: RunLearner, used: Tensor) -> None:
    """Freeze what units [n] in use depend on: weights between two of them, biases, and the rest."""
    gates: Any = learner.networks.eval.get_submodule("gates")
    known = torch.cat([used, used.new_ones(1)])  # place -1: an input that no gate shuts
    frozen: dict[str, Tensor] = {}
    sizes = [layer.size for layer in gates.layers]
    for layer, own in zip(gates.layers, used.split(sizes), strict=True):
        frozen |= dict.fromkeys(layer.rows, own)
        given = known[torch.tensor(layer.inputs, device=used.device)]
        frozen[layer.weight] = own[:, None] & given
    for name, free in learner.layout(learner.free).items():
        if name == GATES:
            continue
        still = frozen.get(name, used.new_ones(()))
        free &= ~still.reshape(*still.shape, *[1] * (free.ndim - still.ndim))


# -- which parameters make which units -------------------------------------------------------------


class GatedLayer(NamedTuple):
    """A layer whose units are gated, with names of parameters."""

    weight: str  # [units, inputs, ...]
    rows: tuple[str, ...]  # all parameters, its norm's included, with one entry for each unit
    gated: str  # the module whose outputs are multiplied: the layer, or its norm
    axis: int  # of the units in the outputs
    size: int  # number of units
    inputs: tuple[int, ...]  # the gate that shuts each input, -1: none


class Gates(nn.Module):
    """The embedding of the current task: one number for each unit."""

    def __init__(self, layers: Sequence[GatedLayer]) -> None:
        super().__init__()
        self.layers = tuple(layers)
        self.embedding = nn.Parameter(torch.zeros(sum(one.size for one in layers)))


def find_gated(model: Any, shape: tuple[int, ...]) -> tuple[GatedLayer, ...]:
    """Find the linear and convolutional layers of a model's backbone, in the order of the pass.

    A layer that is followed by a norm is gated there. Which gate shuts an input of a layer is found
    by passes in which every unit answers its own number: whatever changes numbers, such as a
    residual connection, hides them, and then no gate shuts the input.

    Examples
    --------
    >>> from engram.models.build import build
    >>> model = build("mlp", sample_shape=(3,), classes=2, seed=0, hidden=(2, 4))
    >>> for layer in find_gated(model, (3,)):
    ...     print(layer.weight, layer.size, layer.inputs)
    net.backbone.lower.0.weight 2 (-1, -1, -1)
    net.backbone.upper.0.weight 4 (0, 1)
    """
    backbone = model.backbone.eval().double()
    named = dict(backbone.named_modules())
    x = torch.ones(2, *shape, dtype=torch.double)
    order, norms = _watch_pass(backbone, x)
    if not order:
        raise bad("model", "linear or convolutional layers to put gates on", type(backbone))
    own = dict(backbone.named_parameters())
    sizes = [len(own[f"{name}.weight"]) for name in order]
    total = sum(sizes)
    up = torch.arange(1, total + 1, dtype=torch.double)
    passes = [
        _pass_numbers(backbone, x, numbers.split(sizes), order, norms)
        for numbers in (1 + up / (total + 1), 2 - up / (total + 1), torch.zeros_like(up))
    ]
    layers = []
    for place, (name, size) in enumerate(zip(order, sizes, strict=True)):
        rising, falling, zero = (found[place] for found in passes)
        near = ((rising - 1) * (total + 1)).round()
        fits = (near >= 1) & (near <= total) & (zero == 0)
        for values, expected in (
            (rising, 1 + near / (total + 1)),
            (falling, 2 - near / (total + 1)),
        ):
            fits &= (values - expected).abs() < 1e-3 / (total + 1)
        grouped = getattr(named[name], "groups", 1) > 1
        shut = torch.where(fits & (not grouped), near - 1, -1.0)[: own[f"{name}.weight"].shape[1]]
        gated = norms.get(name, name)
        rows = dict.fromkeys(_row_names(named, name, own) + _row_names(named, gated, own))
        weight, gated = f"net.backbone.{name}.weight", f"net.backbone.{gated}"
        inputs = tuple(map(int, shut.tolist()))
        layers.append(GatedLayer(weight, tuple(rows), gated, _axis(named[name]), size, inputs))
    return tuple(layers)


def _is_layer(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)


def _axis(layer: nn.Module) -> int:
    return -1 if isinstance(layer, nn.Linear) else 1


def _row_names(
    named: dict[str, nn.Module], name: str, own: dict[str, nn.Parameter]
) -> tuple[str, ...]:
    inside = (f"{name}.{one}" for one, _ in named[name].named_parameters(recurse=False))
    return tuple(f"net.backbone.{one}" for one in inside if one in own)


def _watch_pass(backbone: nn.Module, x: Tensor) -> tuple[list[str], dict[str, str]]:
    """Return the layers in the order in which they are called, and the norms that follow them."""
    own, outputs = dict(backbone.named_parameters()), list[tuple[str, Tensor]]()
    norms: dict[str, str] = {}

    def follow(name: str, module: Any, given: tuple[Any, ...], out: Tensor) -> None:
        if _is_layer(module) and f"{name}.weight" in own:
            outputs.append((name, out))
            return
        weight = getattr(module, "weight", None)
        for layer, known in outputs:
            if known is given[0] and weight is not None and weight.shape == (_units(layer, own),):
                norms.setdefault(layer, name)

    def watch(name: str) -> Callable[..., None]:
        return lambda module, given, out: follow(name, module, given, out)

    _run_hooked(backbone, x, watch)
    order = list(dict.fromkeys(name for name, _ in outputs))
    return order, norms


def _units(layer: str, own: dict[str, nn.Parameter]) -> int:
    return len(own[f"{layer}.weight"])


def _pass_numbers(
    backbone: nn.Module, x: Tensor, numbers: Sequence[Tensor], order: list[str],
    norms: dict[str, str],
) -> list[Tensor]:  # fmt: skip
    """Return the inputs [d] of the layers when every unit answers a number; NaN if they vary."""
    at = {norms.get(name, name): places for name, places in zip(order, numbers, strict=True)}
    axes = {norms.get(name, name): _axis(backbone.get_submodule(name)) for name in order}
    seen: dict[str, Tensor] = {}

    def answer(name: str, module: Any, given: tuple[Any, ...], out: Tensor) -> Tensor | None:
        if name in order:
            rows = given[0].movedim(_axis(module), -1).flatten(0, -2)
            rows = torch.where((rows == rows[0]).all(0), rows[0], torch.nan)
            same = name not in seen  # a layer that is called twice has no inputs of its own
            seen[name] = rows if same else torch.full_like(rows, torch.nan)
        if name not in at:
            return None
        shape = [1] * out.ndim
        shape[axes[name]] = -1
        return at[name].reshape(shape).expand_as(out).clone()

    def watch(name: str) -> Callable[..., Tensor | None]:
        return lambda module, given, out: answer(name, module, given, out)

    _run_hooked(backbone, x, watch)
    return [seen[name] for name in order]


@torch.no_grad()
def _run_hooked(backbone: nn.Module, x: Tensor, watch: Callable[[str], Any]) -> None:
    hooks = [
        module.register_forward_hook(watch(name))
        for name, module in backbone.named_modules()
        if not next(module.children(), None)
    ]
    try:
        backbone(x)
    finally:
        for hook in hooks:
            hook.remove()
