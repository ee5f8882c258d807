"""CLS-ER: replay with two averages of the weights, a plastic and a stable one, as teachers."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engram import keys
from engram.errors import check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import CLOSED_LOGIT, mean
from engram.memory import Memory, check_memory
from engram.methods.derpp import squared_logit_distance
from engram.methods.method import Method, ReplaySpec, State, Terms, Update
from engram.models.forward_pass import Output
from engram.per_run import PerRun
from engram.streams.stream import Task


def choose_surer(one: Tensor, other: Tensor, target: Tensor, classes: Tensor) -> Tensor:
    """Choose for each row the logits [B, C] that give its label the higher probability.

    Probabilities are among `classes` [C].

    Examples
    --------
    >>> one, other = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([[9.0, 8.0], [3.0, 2.0]])
    >>> choose_surer(one, other, torch.tensor([0, 1]), torch.tensor([True, True])).tolist()
    [[2.0, 0.0], [3.0, 2.0]]
    """

    def sure(logits: Tensor) -> Tensor:
        among = logits.masked_fill(~classes, CLOSED_LOGIT).log_softmax(-1)
        return among.gather(-1, target[:, None])

    return torch.where(sure(one) > sure(other), one, other)


@dataclass(frozen=True, kw_only=True)
class CLSER(Method):
    """Replay, with the surer of two averaged networks as the teacher of memory rows (CLS-ER).

    L = CE(new and memory rows) + strength * mean (logits - z)^2 over memory rows
    z = logits of the plastic or of the stable network, whichever gives the label more probability

    After a step, each network moves with its `rate` as probability to
    d * itself + (1 - d) * weights, d = min(its decay, 1 - 1 / (steps + 1)). The stable network
    answers. The memory is a reservoir updated at every step.

    Parameters
    ----------
    strength
        Weight of the consistency term. Arani et al.: 0.1 to 1, by data set.
    plastic_rate, stable_rate
        How often the networks move; the stable one less often.
    plastic_decay, stable_decay
        What they keep of themselves; the stable one at least as much.
    size
        Memory rows per step; 0: as many as the batch size.
    memory
        A reservoir. Arani et al.: 200, 500, 5120 rows.

    Examples
    --------
    >>> CLSER(stable_rate=1.5)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: stable_rate: expected a number in [0, 1], got 1.5

    References
    ----------
    Arani et al. 2022, International Conference on Learning Representations.
    """

    strength: PerRun = 0.1
    plastic_rate: PerRun = 0.9
    stable_rate: PerRun = 0.7
    plastic_decay: PerRun = 0.999
    stable_decay: PerRun = 0.999
    size: int = 0
    memory: Memory = field(default=Memory(total=500, policy="reservoir"))

    def __post_init__(self) -> None:
        check_float("strength", self.strength)
        for name in ("plastic_rate", "stable_rate", "plastic_decay", "stable_decay"):
            check_float(name, getattr(self, name), 0.0, 1.0)
        check_int("size", self.size)
        check_memory(self.memory)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("separate", self.size, renew="step")

    def start(self, learner: RunLearner, task: Task) -> None:
        if not learner.state:
            own, none = learner.vector, torch.zeros((), dtype=torch.long, device=learner.device)
            learner.state = {"plastic": own.clone(), "stable": own.clone(), "steps": none}

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        (memory,) = batch.memory
        both = memory.join(batch)
        order = both.order_padding_last()
        both = both.select(order)
        logits = net(both.x, both.w).logits
        stable, plastic = (
            self.average(net, state, name)(memory.x).logits for name in ("stable", "plastic")
        )
        wanted = choose_surer(stable, plastic, memory.target, batch.seen)
        place = order.argsort()[: len(memory.w)]  # of the memory's rows
        away = squared_logit_distance(logits[place], wanted, batch.seen)
        return {
            "task": net.task(both, logits=logits),
            "consistency": self.strength * mean(away, memory.w),
        }

    def average(self, net: Net, state: State, name: str) -> Net:
        """Return an averaged network, which has the running statistics of the one that trains."""
        return net.frozen({"vector": state[name], "buffers": net.statistics()})  # type: ignore[return-value]

    def step(self, update: Update, state: State) -> State:
        steps = state["steps"] + 1
        most = 1 - 1 / (steps + 1).to(update.after.dtype)

        assert update.key is not None
        drawn = keys.uniform(keys.fold_each(update.key, "plastic", "stable"))

        def move(name: str, drawn: Tensor, rate: PerRun, decay: PerRun) -> Tensor:
            keep = torch.where(drawn < rate, most.clamp(max=decay), 1.0)
            return torch.lerp(update.after, state[name], keep)

        return {
            "plastic": move("plastic", drawn[0], self.plastic_rate, self.plastic_decay),
            "stable": move("stable", drawn[1], self.stable_rate, self.stable_decay),
            "steps": steps,
        }

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        if "stable" not in state:
            return net(x)
        found: Output = self.average(net, state, "stable")(x)
        return found
