"""Topology-aware weight preserving for graph networks: importances for the loss and for the
attention along edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import bad, check_choice
from engram.learner.batch import Batch
from engram.learner.gradients import Term
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet, Net
from engram.learner.parameter_layout import Networks
from engram.methods.fisher import training_objective
from engram.methods.mas import squared_norm
from engram.methods.method import Gradient, State, Terms, Update
from engram.methods.quadratic_penalty import (
    Anchored,
    check_floats,
    merge_quadratics,
    penalty_gradient,
)
from engram.models.functional_call import differentiate
from engram.per_run import PerRun
from engram.streams.stream import Task

STEPS = ("clean", "twice", "cglb")


def identity(gradient: Tensor) -> Tensor:
    """Return a gradient unchanged, as a transform that only averages."""
    return gradient


@dataclass(frozen=True, kw_only=True)
class TWP(Anchored):
    """Penalise changes to parameters that affect the loss or the attention along graph edges.

    I = strength * (d task loss / d theta)^2 + top * (d ||e|| / d theta)^2 on a task's rows at once,
    e_ij = (h_i W)^T tanh(h_j W) over the edges i -> j of the first layer
    loss = task + sum over past tasks t, parameters i of I_ti (theta_i - theta*_ti)^2

    Parameters
    ----------
    strength
        Weight of the importance for the loss. CGL: 1e4 on NW-UCLA, 100 on NTU.
    top
        Weight of the importance for the attention. CGL: 1e4.
    beta
        ``off``, as the authors' code runs (its term is detached); ``double_backward``: add
        `beta_strength` times the sum of the current batch's I, with its gradient, as in the paper.
    beta_strength
        Weight of that term. CGL: 0.01.
    top_norm
        ``l2``: the norm of e; ``l2_squared``: its square.
    layers
        ``first`` graph layer (authors' code), or ``all`` of them.
    wide
        What the attention of a first layer is of that is at least as wide as its input: ``map``,
        h W as elsewhere; ``input``, h itself, since CGLB applies W after the sum there. No
        parameter affects it then, and the second importance is 0 (if gradients accumulate, the
        first one again).
    edge_softmax
        Leaky ReLU (slope 0.2) and softmax over a node's incoming edges (CGLB).
    base
        First importance: squared gradient of the ``loss``, or ``mas``: mean of absolute per-sample
        gradients of the squared output (CGL's description).
    accumulate
        Gradients are not cleared between the two passes (authors' code, CGLB): the second
        importance is that of the sum of both terms.
    batch_statistics
        Batch normalisation uses the task's own statistics in the two passes (CGLB).
    steps
        ``clean``: the gradient of the loss, g_L + g_pen; ``twice``: 2 g_L + g_pen; ``cglb``: G <- G
        + 2 g_L + g_pen, never cleared within a task (CGLB, the authors' code for Tox21).
    memory
        Exemplars mixed into the task's rows (the "-S" rows of the RWalk paper); None: no exemplars.

    Examples
    --------
    >>> TWP(layers="last")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: layers: unknown name 'last'... Valid: all, first

    References
    ----------
    Liu et al. 2021, AAAI Conference on Artificial Intelligence.
    """

    strength: PerRun = 1e4
    top: PerRun = 1e4
    beta: str = "off"
    beta_strength: PerRun = 0.01
    top_norm: str = "l2"
    layers: str = "first"
    wide: str = "map"
    edge_softmax: bool = False
    base: str = "loss"
    accumulate: bool = False
    batch_statistics: bool = False
    steps: str = "clean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_floats(self, {"top": (0.0, float("inf")), "beta_strength": (0.0, float("inf"))})
        check_choice("beta", self.beta, ("off", "double_backward"))
        check_choice("top_norm", self.top_norm, ("l2", "l2_squared"))
        check_choice("layers", self.layers, ("first", "all"))
        if check_choice("wide", self.wide, ("map", "input")) == "input" and self.layers != "first":
            raise bad("wide", "'map' with layers='all'", self.wide)
        check_choice("base", self.base, ("loss", "mas"))
        check_choice("steps", self.steps, STEPS)

    def implements(self, verb: str) -> bool:
        # overriding `gradient` takes time, and only one part of a Join may do so
        return super().implements(verb) and (
            verb not in ("gradient", "step") or self.steps == "cglb"
        )

    def start(self, learner: RunLearner, task: Task) -> None:
        self._reads_input(learner.networks)  # refuse other models before the training
        if self.steps == "cglb" and "uncleared" not in learner.state:
            learner.state = {**learner.state, "uncleared": torch.zeros_like(learner.vector)}

    def topology(self, net: Net, batch: Batch) -> Tensor:
        """Compute ||e|| of a batch, over all frames of it where a network keeps frames apart."""
        if self._reads_input(net.networks):
            return 0 * net.task(batch)
        paths, edges = find_graph_layers(net.networks, self.layers)
        found = net(batch.x, batch.w, want=paths).layers
        e = [attention(found[path], edges, self.edge_softmax) for path in paths]
        rows = len(batch.w)
        together = torch.cat([one.reshape(rows, -1) for one in e], -1)
        return attention_norm(together, batch.w, self.top_norm)

    def _reads_input(self, networks: Networks) -> bool:
        """Whether the attention is of the input of the network, which no parameter affects."""
        (first, *_), _ = find_graph_layers(networks, self.layers)
        if self.wide == "map":
            return False
        shape = networks.layout.shapes.get(f"{first}.weight")
        if shape is None:
            raise bad(
                "wide", "'map', the first layer of this network has no map of its own", "input"
            )
        return shape[0] >= shape[1]

    def both(self, net: Net, batch: Batch) -> Tensor:
        """Compute the term of the second importance if gradients accumulate."""
        return self.topology(net, batch) + net.task(batch)

    def factor(self) -> float | Tensor:
        return 1.0  # the two strengths are part of the importance

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        terms = super().loss(net, batch, state)
        if self.steps != "clean":
            terms["again"] = terms["task"]
        if self.beta == "double_backward":
            terms["beta"] = self.beta_strength * self._smooth(net, batch)
        return terms

    def _smooth(self, net: Net, batch: Batch) -> Tensor:
        """Compute the sum of the batch's importance, differentiably."""
        weights = net.networks.layout.flatten(net.params.values())
        buffers = net.statistics()

        def slopes(term: Term) -> Tensor:
            def value(vector: Tensor) -> Tensor:
                return term(FunctionalNet(net.networks, vector, buffers, key=batch.key), batch)

            found: Tensor = differentiate(value)(weights)
            return found

        first = slopes(training_objective).square().sum()
        return self.strength * first + self.top * slopes(self.topology).square().sum()

    def gradient(self, grad: Gradient, batch: Batch, state: State) -> Tensor:
        found = grad(batch)
        return found + state["uncleared"] if self.steps == "cglb" else found

    def step(self, update: Update, state: State) -> State:
        if self.steps != "cglb":
            return state
        added = update.grad  # without the penalty, whose gradient has a closed form
        if "importance" in state:
            added = added + penalty_gradient(
                update.before, state["anchor"], state["importance"], self.factor()
            )
        return {**state, "uncleared": state["uncleared"] + added}

    def finish(self, learner: RunLearner, task: Task) -> None:
        def squared(term: Term) -> Tensor:
            own = self.batch_statistics
            return learner.average_gradient(term, group="full", batch_statistics=own)

        if self.base == "loss":
            first = squared(training_objective)
        else:
            first = learner.average_gradient(squared_norm, transform=torch.abs)
        second = squared(self.both if self.accumulate else self.topology)
        importance = self.strength * first + self.top * second
        learner.state = merge_quadratics(learner.state, importance, learner.vector)
        if self.steps == "cglb":  # a new task clears the sum, then the two passes add to it
            own = self.batch_statistics
            left = learner.average_gradient(
                self.both, transform=identity, group="full", batch_statistics=own
            )
            learner.state = {**learner.state, "uncleared": left}
        self.store(learner, task)


# -- attention along the edges of a graph network --------------------------------------------------

SMALL = 1e-24  # the square root is not differentiable at 0


def attention(z: Tensor, edges: Tensor, softmax: bool = False) -> Tensor:
    """Compute (z_i)^T tanh(z_j) [B, E] of every edge i -> j, with z = h W [B, V, D].

    With `softmax`, its leaky ReLU is normalised over the incoming edges of each node.

    Examples
    --------
    >>> z, edges = torch.tensor([[[0.5], [1.0]]]), torch.tensor([[0, 1], [1, 0]])
    >>> [round(v, 6) for v in attention(z, edges)[0].tolist()]
    [0.380797, 0.462117]
    """
    source, target = edges
    e: Tensor = (z[..., source, :] * torch.tanh(z[..., target, :])).sum(-1)
    if not softmax:
        return e
    e = F.leaky_relu(e, 0.2)
    # subtract the maximum of each target, since with a common maximum small values would underflow;
    # not differentiated, because a constant per target cancels
    at = target.expand(e.shape)
    floor = e.new_full((*e.shape[:-1], z.shape[-2]), -torch.inf)
    peaks = floor.scatter_reduce(-1, at, e.detach(), "amax")  # [B, V]
    raised = (e - peaks.gather(-1, at)).exp()
    together = (target[:, None] == target[None, :]).to(e.dtype)  # [E, E] same target
    shares: Tensor = raised / (raised @ together)
    return shares


def attention_norm(e: Tensor, w: Tensor, norm: str = "l2") -> Tensor:
    """Compute the norm of all attentions of the batch, without rows of weight 0."""
    squared = (e.square() * w[:, None]).sum()
    return squared.clamp(min=SMALL).sqrt() if norm == "l2" else squared


def find_graph_layers(networks: Networks, layers: str) -> tuple[tuple[str, ...], Tensor]:
    """Return the names of the linear maps h W, and the edges [2, E]."""
    found = networks.edge_layers
    if found is None:
        net: Any = networks.eval.get_submodule("net")
        raise bad("model", "a graph network such as 'gcn' for TWP", type(net.backbone).__name__)
    return found.linear[:1] if layers == "first" else found.linear, found.edges
