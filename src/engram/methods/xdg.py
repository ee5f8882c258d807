"""Context-dependent gating: a fixed, random part of the units of every layer for each task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from engram import keys
from engram.errors import bad, check_float
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.hat import GatedLayer, find_gated, gate_units
from engram.methods.method import Method, MethodNetworks, State, Terms
from engram.methods.task_masks import append, choose_row
from engram.models.forward_pass import Output
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline


@dataclass(frozen=True, kw_only=True)
class XdG(Method):
    """For each task, shut a random part of the units of every layer (XdG).

    Tasks share few of the open units, so a task changes little of what the others use. Which
    units are shut is drawn before the task and stays. The task of a row must be given.

    Parameters
    ----------
    share
        Share of the units of every hidden layer that a task shuts. Masse et al.: 0.8; van de Ven et
        al.: 0.9 on Split MNIST.

    Examples
    --------
    >>> XdG().task_identity, XdG().grows
    ('required', True)
    >>> XdG(share=1.0)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: share: expected a number in [0, 1) that leaves units open, got 1.0

    References
    ----------
    Masse et al. 2018, Proceedings of the National Academy of Sciences 115.
    """

    task_identity: ClassVar[str] = "required"
    grows: ClassVar[bool] = True  # by the gates of each task

    share: float = 0.8

    def __post_init__(self) -> None:
        if check_float("share", self.share) >= 1:
            raise bad("share", "a number in [0, 1) that leaves units open", self.share)

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        return {"gates": FixedGates(find_gated(stream.build_model(), stream.data.sample_shape))}

    def start(self, learner: RunLearner, task: Task) -> None:
        gates: FixedGates = learner.networks.eval.get_submodule("gates")  # type: ignore[assignment]
        key = keys.fold(learner.seed, "gates", learner.stage)
        row = torch.cat([
            draw_gates(keys.fold(key, place), layer.size, self.share)
            for place, layer in enumerate(gates.layers)
        ])  # fmt: skip
        known = learner.state.get("gates")
        learner.state = {"gates": append(known, row.to(learner.vector))}

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        gates = choose_row(state["gates"], batch.now, state["gates"][-1])
        with gate_units(net.networks.train, lambda units: gates[units]):
            logits = net(batch.x.clone(), batch.w).logits  # `net(batch.x)` is without gates
        return {"task": net.task(batch, logits=logits)}

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        gates = choose_row(state["gates"], stage, state["gates"][-1])
        with gate_units(net.networks.eval, lambda units: gates[units]):
            found: Output = net.detached()(x)
        return found


def draw_gates(key: keys.Key, size: int, share: float) -> Tensor:
    """Draw which of `size` units a task leaves open: 1, and 0 for a share of them.

    Examples
    --------
    >>> int(draw_gates(keys.fold(0, "task"), 10, 0.8).sum())
    2
    """
    shut = min(round(share * size), size - 1)
    gates = torch.ones(size)
    gates[keys.permutation(key, size, size)[:shut]] = 0
    return gates


class FixedGates(nn.Module):
    """Which layers are gated; there is nothing to learn."""

    def __init__(self, layers: tuple[GatedLayer, ...]) -> None:
        super().__init__()
        self.layers = layers
