"""Extended dark experience replay: stored logits learn of classes that came later."""

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
from engram.methods.method import Method, ReplaySpec, State, Terms
from engram.methods.new_classes import need_new_classes
from engram.per_run import PerRun
from engram.streams.stream import Task


def cap_logits(logits: Tensor, which: Tensor, own: Tensor, share: PerRun) -> Tensor:
    """Scale logits [B, C] of the classes `which` [C] down where one exceeds that of the label [B].

    The largest of them becomes `share` times the label's. If that is negative, they become 0.

    Examples
    --------
    >>> logits, later = torch.tensor([[2.0, 4.0, 1.0]] * 2), torch.tensor([False, True, True])
    >>> cap_logits(logits, later, torch.tensor([2.0, 5.0]), 0.75).tolist()
    [[2.0, 1.5, 0.375], [2.0, 4.0, 1.0]]
    """
    top = torch.where(which, logits, CLOSED_LOGIT).amax(-1)
    over = top > own
    factor = (share * own / torch.where(over, top, 1.0)).clamp(0.0, 1.0)
    return torch.where(which & over.unsqueeze(-1), factor.unsqueeze(-1) * logits, logits)


def mean_excess(wrong: Tensor, right: Tensor, margin: PerRun, w: Tensor) -> Tensor:
    """Compute the mean of wrong + margin - right [B] over the rows where it is positive."""
    excess = (wrong + margin - right).clamp(min=0.0)
    return mean(excess, w * (excess > 0))


def first_draws(batches: tuple[Batch, ...]) -> Tensor:
    """Return 1 for each row of memory batches that none before it repeats, otherwise 0."""
    slot = torch.cat([torch.where(one.w > 0, one.slot, -1) for one in batches])
    again = (slot[:, None] == slot).tril(-1).any(-1)
    return torch.where(again | (slot < 0), 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class XDER(Method):
    """Dark experience replay whose stored logits are updated for later classes (X-DER).

    L = CE(new rows, among new classes) + alpha * mean (logits - stored logits)^2 over one draw of
    the memory + beta * CE(another draw, among old classes) + eta * (past + future constraint)

    Logits are stored after the task, for all outputs. Those of classes that opened later are
    replaced when a row is drawn, by what the network says by then, and limited to `gamma` times
    the logit of the row's label. The constraints keep `margin` between the best output of a row's
    own task and the best of another task: the former tasks for new rows (as probabilities), the
    tasks to come for all rows.

    Parameters
    ----------
    alpha
        Weight of the logit term.
    beta
        Weight of the label term.
    gamma
        Largest stored logit of later classes, as a share of that of the label: 0.85 in the paper.
    eta
        Weight of the constraints. Boschini et al.: 0.1; 0.01 and 0.001 on some data.
    margin
        What the constraints ask for. Boschini et al.: 0.3; 0.7 on some data.
    size
        Memory rows of each draw; 0: as many as the batch size.
    memory
        Exemplars, the same number of each class.

    Examples
    --------
    >>> XDER().replay(0)
    ReplaySpec(kind='separate', size=0, draws=2, rewrites=True)

    References
    ----------
    Boschini et al. 2022, IEEE Transactions on Pattern Analysis and Machine Intelligence.
    """

    alpha: PerRun = 0.3
    beta: PerRun = 0.8
    gamma: PerRun = 0.85
    eta: PerRun = 0.1
    margin: PerRun = 0.3
    size: int = 0
    memory: Memory = field(default=Memory(total=500))

    def __post_init__(self) -> None:
        check_float("alpha", self.alpha)
        check_float("beta", self.beta)
        check_float("gamma", self.gamma, 0.0, 1.0)
        check_float("eta", self.eta)
        check_float("margin", self.margin)
        check_int("size", self.size)
        check_memory(self.memory)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("separate", self.size, draws=2, rewrites=True)

    def start(self, learner: RunLearner, task: Task) -> None:
        need_new_classes(learner, "XDER", strict=True)

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        logits, w = net(batch.x, batch.w).logits, batch.w
        new = batch._replace(open=batch.open & batch.new)
        terms = {"task": net.task(new, logits=logits)}
        every, y, rows = logits, batch.target, w
        if batch.memory:
            stored, labelled = batch.memory
            now = net(stored.x, stored.w).logits
            distance = (now - stored.values["logits"]).square().mean(-1)
            terms["logits"] = self.alpha * mean(distance, stored.w)
            past = labelled._replace(open=labelled.open & batch.known)
            answer = net(labelled.x, labelled.w).logits
            terms["memory"] = self.beta * net.task(past, logits=answer)
            terms["past"] = self.eta * self._keep_past_low(logits, batch)
            every = torch.cat([logits, now, answer])
            y = torch.cat([y, stored.target, labelled.target])
            rows = torch.cat([w, first_draws(batch.memory).to(w.dtype)])
        terms["future"] = self.eta * self._keep_future_low(every, y, rows, batch)
        return terms

    def _keep_past_low(self, logits: Tensor, batch: Batch) -> Tensor:
        """Compute the constraint on probabilities of new rows."""
        share = logits.masked_fill(~batch.seen, CLOSED_LOGIT).softmax(-1)
        past = torch.where(batch.known, share, 0.0).amax(-1).detach()
        own = torch.where(batch.new, share, 0.0).amax(-1)
        return mean_excess(past, own, self.margin, batch.w)

    def _keep_future_low(self, logits: Tensor, y: Tensor, w: Tensor, batch: Batch) -> Tensor:
        """Compute the constraint on logits of rows with labels `y` [B]."""
        future = torch.where(batch.seen, CLOSED_LOGIT, logits).amax(-1)
        own = batch.opened == batch.opened[y].unsqueeze(-1)  # [B, C]
        return mean_excess(future, torch.where(own, logits, CLOSED_LOGIT).amax(-1), self.margin, w)

    def remember(self, net: Net, batch: Batch, state: State) -> dict[str, Tensor]:
        logits = net(batch.x, batch.w).logits
        label = batch.target.unsqueeze(-1)
        none = torch.zeros_like(batch.w)
        if not batch.values:  # a row that enters the memory
            own = logits.gather(-1, label).squeeze(-1)
            return {"logits": cap_logits(logits, batch.known, own, self.gamma), "draws": none}
        stored, later = batch.values["logits"], ~batch.known
        own = stored.gather(-1, label).squeeze(-1)
        capped = cap_logits(logits, later, own, self.gamma)
        latest = torch.where(later, capped, stored)
        if not batch.times:  # after the task
            return {"logits": latest, "draws": none}
        draws = batch.values["draws"] + 1
        point = keys.uniform(keys.fold(batch.key, "rewrite"), len(batch.w)).to(draws.dtype)
        chosen = (point * draws < 1).unsqueeze(-1)
        return {"logits": torch.where(chosen, latest, stored), "draws": draws}

    def finish(self, learner: RunLearner, task: Task) -> None:
        learner.exemplars = self.memory.update(learner, task.train)
