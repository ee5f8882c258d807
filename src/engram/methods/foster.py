"""FOSTER: a second network learns what the first one lacks, then both are distilled into one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram import keys
from engram.errors import bad, check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import distill_rows, mean
from engram.memory import Memory, check_memory
from engram.methods.dynamic_er import copy_part, count_outputs, need_linear_head
from engram.methods.method import Method, MethodNetworks, Network, Phase, ReplaySpec, State, Terms
from engram.methods.new_classes import need_new_classes
from engram.models.forward_pass import Output
from engram.models.heads import Linear
from engram.per_run import PerRun
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline


class Booster(nn.Module):
    """A second backbone, its part of the common classifier, and a classifier of its own."""

    class_rows = ("head.weight", "own.weight", "own.bias")

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.backbone, sizes = model.backbone, count_outputs(model)
        self.head, self.own = Linear(*sizes, bias=False), Linear(*sizes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features [B, F], what they add to the common logits [B, C], and logits of their own."""
        features = self.backbone(x)
        return features, self.head(features), self.own(features)


def scarcity_weights(counts: Tensor, seen: Tensor, beta: float | Tensor) -> Tensor:
    """Compute weights [C] of classes with these numbers of rows: large for few, 1 on average.

    They are inverse to the effective number (1 - beta ** n) / (1 - beta) of n rows; classes that
    are not seen have 1.

    Examples
    --------
    >>> counts, seen = torch.tensor([2.0, 200.0, 0.0]), torch.tensor([True, True, False])
    >>> scarcity_weights(counts, seen, 0.5).round(decimals=4)
    tensor([1.1429, 0.8571, 1.0000])
    >>> scarcity_weights(counts, seen, 0.0)
    tensor([1., 1., 1.])
    """
    found = 1 / (1 - beta ** counts.clamp(min=1))
    return torch.where(seen, found / mean(found, seen.to(found.dtype)), 1.0)


@dataclass(frozen=True, kw_only=True)
class FOSTER(Method):
    """Replay with a second network that learns what the first one lacks, then one of both.

    From the second task on, a second network (a copy of the first one's backbone) is trained beside
    it, and the first one's backbone stands still. Logits z are the sum of both:

    L = CE(z / b) + CE(logits of the second network alone) + hold * distillation of the network
    before the task over the old classes

    Then the first network, as it was before the task, is trained to give the softmax of z; it alone
    answers, and is the first network of the next task. Classes with few rows have a larger b, and
    more weight in that softmax.

    Parameters
    ----------
    memory
        Exemplars to keep, all of them trained on in every epoch. The paper: 2000 by herding.
    hold
        Weight of the distillation of the network before the task.
    temperature
        T of both distillations.
    balance
        Of b, the inverse effective number of the rows of a class, (1 - balance) / (1 - balance^n),
        1 on average; 0: all classes alike.
    compression_balance
        The same of the weights of classes in the softmax that is distilled.
    compression
        Epochs of the distillation into one network; 0: as many as the recipe's.

    Examples
    --------
    >>> [phase.name for phase in FOSTER().phases(1)]
    ['task', 'compression']

    References
    ----------
    Wang et al. 2022, ECCV.
    """

    memory: Memory = field(default=Memory(total=500, policy="herding"))
    hold: PerRun = 1.0
    temperature: PerRun = 2.0
    balance: PerRun = 0.96
    compression_balance: PerRun = 0.97
    compression: int = 0

    def __post_init__(self) -> None:
        check_memory(self.memory)
        check_float("hold", self.hold)
        check_float("temperature", self.temperature, open_low=True)
        for name in ("balance", "compression_balance"):
            if check_float(name, getattr(self, name), 0.0, 1.0) == 1:
                raise bad(name, "a number in [0, 1)", getattr(self, name))
        check_int("compression", self.compression)

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        if len(stream) == 1:
            return {}
        model: Any = stream.build_model()
        need_linear_head(model, "FOSTER")
        return {"booster": Network(Booster(model), opens=1)}

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("union")

    def phases(self, stage: int) -> tuple[Phase, ...]:
        if not stage:
            return (Phase(),)
        return (
            Phase(trainable=("net.head.", "booster.")),
            Phase(
                name="compression", trainable=("net.",), epochs=self.compression,
                before=self.begin_compression,
            ),
        )  # fmt: skip

    def start(self, learner: RunLearner, task: Task) -> None:
        learner.state = {}
        if not learner.stage:
            need_new_classes(learner, "FOSTER")
            return
        copy_part(learner, "net.backbone.", "booster.backbone.")
        self._restart_booster(learner)
        counts, seen = count_rows(learner, task), learner.seen
        balance, later = (
            scarcity_weights(counts, seen, beta).to(learner.vector)
            for beta in (self.balance, self.compression_balance)
        )
        head = tuple(learner.params[name].clone() for name in learner.params if is_of_head(name))
        learner.state = {"before": head, "balance": balance, "later": later}

    def _restart_booster(self, learner: RunLearner) -> None:
        """Draw what the second network's classifiers say of the classes seen anew."""
        seen, width = learner.seen.to(learner.device), learner.class_weights().shape[1]
        for name, fan in (("head", 2 * width), ("own", width)):
            rows = learner.params[f"booster.{name}.weight"]
            rows[seen] = self._draw(learner, name, len(rows), fan)[seen]
        learner.params["booster.own.bias"][seen] = 0.0

    def _draw(self, learner: RunLearner, purpose: str, count: int, fan: int) -> Tensor:
        """Draw rows [count, F] for a linear layer of `fan` inputs."""
        key = keys.fold(learner.seed, "FOSTER", purpose, learner.stage)
        rows = 2 * keys.uniform(key, count, learner.class_weights().shape[1]) - 1
        return (rows / math.sqrt(fan)).to(learner.vector)

    def begin_compression(self, learner: RunLearner, task: Task) -> None:
        """Keep both networks as the teacher; the first one gets back its head."""
        teacher = learner.snapshot()
        names = [name for name in learner.params if is_of_head(name)]
        for name, rows in zip(names, learner.state["before"], strict=True):
            learner.params[name].copy_(rows)
        learner.state = {"teacher": teacher, "later": learner.state["later"]}

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        if "before" in state:
            return self._boost(net, batch, state)
        if "teacher" not in state:
            return {"task": net.task(batch)}
        teacher = net.frozen(state["teacher"])
        said = teacher(batch.x).logits + teacher.booster(batch.x)[1]
        # a factor of a class in the softmax is a summand of its logit
        said = said + self.temperature * state["later"].log()
        rows = distill_rows(
            net(batch.x, batch.w).logits, said, batch.seen, temperature=self.temperature
        )
        return {"compression": mean(rows, batch.w)}

    def _boost(self, net: Net, batch: Batch, state: State) -> Terms:
        older = net.detached().backbone(batch.x)
        _, added, own = net.booster(batch.x, w=batch.w)
        logits = net.head(older) + added
        before = F.linear(older, *state["before"])
        held = distill_rows(logits, before, batch.known, temperature=self.temperature)
        return {
            "task": net.task(batch, logits=logits / state["balance"]),
            "own": net.task(batch, logits=own),
            "hold": self.hold * mean(held, batch.w),
        }

    def finish(self, learner: RunLearner, task: Task) -> None:
        learner.state = {}
        learner.exemplars = self.memory.update(learner, task.train)

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        found = net(x)
        if "before" not in state:
            return found
        features, added, _ = net.booster(x)
        return Output(torch.cat([found.features, features], -1), found.logits + added)


def is_of_head(name: str) -> bool:
    """Whether a parameter is one of the main network's head.

    Examples
    --------
    >>> is_of_head("net.head.bias"), is_of_head("booster.head.weight")
    (True, False)
    """
    return name.startswith("net.head.")


def count_rows(learner: RunLearner, task: Task) -> Tensor:
    """Count the rows [C] of each class in the task and the memory."""
    y = learner.labels(task.train).cpu()
    columns = torch.cat([y[y >= 0], learner.exemplars.columns.cpu()])
    return torch.bincount(columns, minlength=len(learner.opened)).double()
