"""BiC: distillation, followed by a correction of the new classes' logits whose two parameters are
fitted by Newton's method.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from engram.errors import bad, check_choice, check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import balancing_weights, bce_rows, ce_rows, distill_rows, mean, multi_hot
from engram.memory import Exemplars, Memory, check_memory
from engram.methods.icarl import soft_targets
from engram.methods.method import ARGMAX_OR_THRESHOLD, Method, ReplaySpec, State, Terms
from engram.methods.new_classes import need_new_classes
from engram.models.forward_pass import Output
from engram.per_run import PerRun
from engram.streams.stream import Task

VARIANTS = ("softmax", "sigmoid", "distil")
HISTORIES = ("latest", "all")
SCOPES = ("all", "new")
ROWS_PER_PASS = 1024


def correct_logits(logits: Tensor, state: State, which: str = "") -> Tensor:
    """Apply the scale and shift of each class."""
    scale, shift = state[f"{which}scale"], state[f"{which}shift"]
    return torch.addcmul(shift, scale, logits)


def bias_correction_factors(
    alpha: Tensor, beta: Tensor, new: Tensor, variant: str
) -> tuple[Tensor, Tensor]:
    """Return scales [C] and shifts [C] with which new logits become ``alpha * o + beta``.

    Old classes are unchanged (``softmax``), or become ``o / alpha - beta`` (other variants).

    Examples
    --------
    >>> o, new = torch.tensor([2.0, 1.0, 3.0]), torch.tensor([False, False, True])
    >>> for variant in ("softmax", "sigmoid"):
    ...     scale, shift = bias_correction_factors(
    ...         torch.tensor(0.5), torch.tensor(0.2), new, variant
    ...     )
    ...     print([round(q, 4) for q in (scale * o + shift).tolist()])
    [2.0, 1.0, 1.7]
    [3.8, 1.8, 1.7]
    """
    if variant == "softmax":
        return torch.where(new, alpha, 1.0), torch.where(new, beta, 0.0)
    return torch.where(new, alpha, 1 / alpha), torch.where(new, beta, -beta)


@dataclass(frozen=True, kw_only=True)
class BiC(Method):
    """Distil the old network, then correct the new classes' logits by a fitted scale and shift.

    With n old and m new classes the loss is ``n/(n+m) * distillation + m/(n+m) * task``; the
    teacher's logits include the correction fitted after its own task. After the task, alpha and
    beta are fitted with the network frozen.

    Parameters
    ----------
    memory
        Exemplars to keep; ``softmax`` needs the policy ``random``, since rows are held out before
        the task is trained. Original: 2000 in all; IIRC: 20 per class.
    variant
        ``softmax``: the original, fitted on exemplars and new rows that are never trained on.
        ``sigmoid``: one binary output per label, fitted on the whole memory after the task; old
        classes are corrected as well (IIRC). ``distil``: the same, but the fit's targets for old
        classes are the outputs of the network before the task (IIRC's ablation).
    temperature
        T of the distillation, for ``softmax``.
    hold_every
        For ``softmax``: hold out one in this many exemplars of each class, from the second on.
    shift_decay
        For ``softmax``: the fit adds ``shift_decay / 2 * beta**2``.
    history
        ``latest``: only the latest classes are corrected (official code); ``all``: every task's
        classes keep their correction (``softmax`` only, PyCIL).
    label_scope
        Classes of the task term of ``sigmoid`` and ``distil``: ``all`` seen ones, or the ``new``
        ones.

    Notes
    -----
    Wu et al. 2019 (CVPR); with label sets Abdelsalam et al. 2021 (CVPR).

    Examples
    --------
    >>> BiC().decides, BiC(variant="sigmoid").decides
    (('argmax',), ('argmax', 'threshold'))
    """

    for_label_sets: ClassVar[str] = "variant=sigmoid"

    memory: Memory = field(default=Memory(total=500))
    variant: str = "softmax"
    temperature: PerRun = 2.0
    hold_every: int = 10
    shift_decay: PerRun = 0.1
    history: str = "latest"
    label_scope: str = "all"

    def __post_init__(self) -> None:
        check_memory(self.memory)
        check_choice("variant", self.variant, VARIANTS)
        check_choice("history", self.history, HISTORIES)
        check_choice("label_scope", self.label_scope, SCOPES)
        check_float("temperature", self.temperature, open_low=True)
        check_float("shift_decay", self.shift_decay)
        check_int("hold_every", self.hold_every, 2)
        if self.variant == "softmax" and self.memory.policy != "random":
            wanted = "'random' for variant softmax, which holds out rows before the task is trained"
            raise bad("memory.policy", wanted, self.memory.policy)
        if self.variant != "softmax" and self.history != "latest":
            raise bad("history", f"'latest' for variant {self.variant}", self.history)

    @property
    def decides(self) -> tuple[str, ...]:
        return ("argmax",) if self.variant == "softmax" else ARGMAX_OR_THRESHOLD

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("union")

    def start(self, learner: RunLearner, task: Task) -> None:
        if learner.stage == 0:
            strict = self.variant == "softmax"
            need_new_classes(learner, "BiC's softmax" if strict else "BiC", strict=strict)
            self._need_room(learner)
        if self.variant == "softmax":
            self._hold_out(learner, task)
        if learner.stage == 0:
            ones = torch.ones(
                len(learner.opened), device=learner.device, dtype=learner.vector.dtype
            )
            learner.state = {"scale": ones, "shift": 0 * ones}
            return
        scale, shift = learner.state["scale"], learner.state["shift"]
        learner.state = {
            "scale": torch.ones_like(scale), "shift": torch.zeros_like(shift),
            "old scale": scale, "old shift": shift, "teacher": learner.snapshot(),
        }  # fmt: skip

    def _hold_out(self, learner: RunLearner, task: Task) -> None:
        """Set aside the rows on which corrections are, or will be, fitted."""
        # a random memory chooses by keys alone, so what it will keep of the task is known
        for kept in (learner.exemplars, self.memory.update(learner, task.train)):
            learner.set_aside(select_held_out(kept, self.hold_every).rows)

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        logits = net(batch.x, batch.w).logits
        task = self._task(net, batch, logits)
        if "teacher" not in state:
            return {"task": task}
        old = correct_logits(net.frozen(state["teacher"])(batch.x).logits, state, "old ")
        if self.variant == "softmax":
            rows = distill_rows(logits, old, batch.known, temperature=self.temperature)
        else:
            rows = bce_rows(logits, old.sigmoid(), batch.known)
        share = batch.known.sum().to(task.dtype) / batch.seen.sum().clamp(min=1)
        return {"task": (1 - share) * task, "distill": share * mean(rows, batch.w)}

    def _task(self, net: Net, batch: Batch, logits: Tensor) -> Tensor:
        if self.variant == "softmax":
            return net.task(batch)
        among = batch.seen if self.label_scope == "all" else batch.new
        return mean(bce_rows(logits, multi_hot(batch.y, len(among), logits.dtype), among), batch.w)

    def finish(self, learner: RunLearner, task: Task) -> None:
        before = learner.state
        learner.exemplars = self.memory.update(learner, task.train)
        state = {name: before[name] for name in ("scale", "shift")}
        if self.history == "all" and "old scale" in before:
            state = {name: before[f"old {name}"] for name in state}
        if learner.stage:
            new = learner.new.to(learner.device)
            scale, shift = bias_correction_factors(*self._fit(learner, before), new, self.variant)
            changed = new if self.variant == "softmax" else learner.seen.to(learner.device)
            state["scale"] = torch.where(changed, scale.to(new.device), state["scale"])
            state["shift"] = torch.where(changed, shift.to(new.device), state["shift"])
            state = {name: value.to(before[name].dtype) for name, value in state.items()}
        learner.state = state

    def _fit(self, learner: RunLearner, before: State) -> tuple[Tensor, Tensor]:
        """Fit (alpha, beta) to the labels of held-out rows, or of the whole memory."""
        kept = learner.exemplars
        rows = select_held_out(kept, self.hold_every) if self.variant == "softmax" else kept
        _need_rows(rows, learner.stage)
        y, logits, old = collect_logits(learner, rows, before)
        seen, new = learner.seen.cpu(), learner.new.cpu()
        if self.variant == "softmax":
            cost = self._softmax_cost(logits, y[:, 0].clamp(min=0), seen, before)
        else:
            targets = multi_hot(y, logits.shape[-1], logits.dtype)
            if self.variant == "distil":
                targets = soft_targets(y, old, seen & ~new)
            cost = _sigmoid_cost(logits, targets, seen)
        fitted = minimize_cost(
            lambda alpha, beta: cost(*bias_correction_factors(alpha, beta, new, self.variant), beta)
        )
        return fitted[0].to(learner.device), fitted[1].to(learner.device)

    def _softmax_cost(
        self, logits: Tensor, y: Tensor, seen: Tensor, before: State
    ) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        if self.history == "all":
            past = {name: value.cpu().double() for name, value in before.items()
                    if name in ("old scale", "old shift")}  # fmt: skip
            logits = correct_logits(logits, past, "old ")
        w = balancing_weights(y, torch.ones(len(y), dtype=logits.dtype), logits.shape[-1])

        def cost(scale: Tensor, shift: Tensor, beta: Tensor) -> Tensor:
            rows = ce_rows(scale * logits + shift, y, seen.expand_as(logits))
            return mean(rows, w) + 0.5 * self.shift_decay * beta**2

        return cost

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        output = net(x)
        return output._replace(logits=correct_logits(output.logits, state))

    def _need_room(self, learner: RunLearner) -> None:
        """Raise if classes have a single exemplar, so that none can be held out."""
        classes = len(learner.stream.order)
        most = self.memory.per_class or (self.memory.total and self.memory.total // classes)
        if self.variant == "softmax" and most is not None and most < 2:
            raise bad("memory", f"at least 2 exemplars for each of {classes} classes, one of them "
                      "to be held out", self.memory.describe())  # fmt: skip


def select_held_out(kept: Exemplars, every: int) -> Exemplars:
    """Select one in `every` exemplars of each class, from the second on."""
    return kept.take(kept.ranks % every == 1)


@torch.no_grad()
def collect_logits(
    learner: RunLearner, rows: Exemplars, before: State
) -> tuple[Tensor, Tensor, Tensor]:
    """Return labels [n, L], logits [n, C], and corrected logits [n, C] of the old network.

    On the CPU, in double precision.
    """
    past = {name: before[name].cpu().double() for name in ("old scale", "old shift")}
    net, parts = learner.net(), []
    for chosen, stages in zip(
        rows.rows.split(ROWS_PER_PASS), rows.stages.split(ROWS_PER_PASS), strict=True
    ):
        batch = learner.batch(chosen, stages)
        found = batch.y, net(batch.x).logits, net.frozen(before["teacher"])(batch.x).logits
        parts.append([one.cpu() for one in found])
    y, logits, old = (torch.cat(one) for one in zip(*parts, strict=True))
    return y, logits.double(), correct_logits(old.double(), past, "old ")


def _sigmoid_cost(
    logits: Tensor, targets: Tensor, seen: Tensor
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def cost(scale: Tensor, shift: Tensor, beta: Tensor) -> Tensor:
        return bce_rows(scale * logits + shift, targets, seen.expand_as(logits)).mean()

    return cost


def _need_rows(rows: Exemplars, stage: int) -> None:
    if not bool((rows.stages < stage).any()) or not bool((rows.stages == stage).any()):
        raise bad("memory", "exemplars of old and of new classes to fit the correction on", "none")


# -- Newton's method for the two parameters of the correction --------------------------------------

STEPS = 30
RIDGE = 1e-3  # keeps the minimum finite if the labels are separable
FLAT_CURVATURE = 1e-6  # lower bound of the curvature


def minimize_cost(cost: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Minimise ``cost(alpha, beta)`` with alpha > 0, starting at (1, 0).

    Newton's method on log alpha and beta, with steps of length at most 1 and a small ridge towards
    (1, 0).

    Examples
    --------
    >>> alpha, beta = minimize_cost(lambda a, b: 100 * ((a - 2) ** 2 + (b + 3) ** 2))
    >>> round(alpha.item(), 3), round(beta.item(), 3)
    (2.0, -3.0)
    """

    def ridged(point: Tensor) -> Tensor:
        return cost(point[0].exp(), point[1]) + 0.5 * RIDGE * (point**2).sum()

    point = torch.zeros(2, dtype=torch.float64)
    with torch.enable_grad():
        for _ in range(STEPS):
            leaf = point.clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(ridged(leaf), leaf)
            curve = torch.autograd.functional.hessian(ridged, point)
            values, axes = torch.linalg.eigh(curve)
            move = axes @ ((axes.T @ slope) / values.abs().clamp(min=FLAT_CURVATURE))
            point = point - move / move.norm().clamp(min=1.0)
    return point[0].exp(), point[1]
