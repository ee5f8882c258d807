"""GPM: updates orthogonal to the directions that inputs of earlier tasks have in each layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram import keys
from engram.errors import check_float, check_int
from engram.learner.learner import RunLearner
from engram.methods.layer_inputs import hold_other_parameters, input_moments, project_step
from engram.methods.method import Method, State, Update
from engram.per_run import PerRun
from engram.streams.stream import Task

PART = "net.backbone"
FLOOR = 1e-10  # of the largest eigenvalue: below it, rounding decides


@dataclass(frozen=True, kw_only=True)
class GPM(Method):
    """Gradient projection memory: never move weights along what earlier tasks gave to a layer.

    R_l = inputs of layer l for `samples` rows of the task, one in each column
    B_l <- B_l and the first left singular vectors of R_l - B_l B_l' R_l, as many as are needed for
           |B_l B_l' R_l|^2 >= threshold |R_l|^2
    W_l <- W_l + (what the optimiser did to W_l) (1 - B_l B_l'), from the second task on

    Heads move freely; all other parameters stand still from the second task on.

    Parameters
    ----------
    threshold
        Share of the squared inputs that the directions of a task hold. Saha et al.: .95 to .97.
    increase
        What is added to it with every further task; it never exceeds 1.
    samples
        Rows of a task that the directions are computed from.

    Notes
    -----
    It is made for streams with known tasks, one head each: nothing protects a common head.

    Examples
    --------
    >>> GPM(threshold=0.99)
    GPM(threshold=0.99, increase=0.003, samples=300)

    References
    ----------
    Saha, Garg and Roy 2021, ICLR.
    """

    threshold: PerRun = 0.97
    increase: PerRun = 0.003
    samples: int = 300

    def __post_init__(self) -> None:
        check_float("threshold", self.threshold, 0.0, 1.0)
        check_float("increase", self.increase, 0.0, 1.0)
        check_int("samples", self.samples, 1)

    def start(self, learner: RunLearner, task: Task) -> None:
        hold_other_parameters(learner, PART)

    def step(self, update: Update, state: State) -> State | tuple[Tensor, State]:
        if "free" not in state:
            return state
        return project_step(update, state["free"]), state

    def finish(self, learner: RunLearner, task: Task) -> None:
        key = keys.fold(learner.seed, "directions", learner.stage)
        chosen = keys.permutation(key, len(task.train), len(task.train))[: self.samples]
        moments = input_moments(learner, task.train[chosen.to(task.train.device)], PART)
        share = min(1.0, self.threshold + learner.stage * self.increase)
        held, dtype = learner.state.get("held", {}), learner.vector.dtype
        held = {name: extend(held.get(name), one, share) for name, one in moments.items()}
        free = {
            k: torch.eye(len(v), device=v.device).to(dtype) - v.to(dtype) for k, v in held.items()
        }
        learner.state = {"held": held, "free": free}


def extend(held: Tensor | None, moment: Tensor, share: float) -> Tensor:
    """Return the projector [d, d] on directions, extended until it holds a share of a moment.

    The moment R R' has the squared singular values of R as eigenvalues, so R is not needed.

    Examples
    --------
    >>> moment = torch.diag(torch.tensor([6.0, 1.0, 3.0]).double())
    >>> first = extend(None, moment, share=0.6)
    >>> first.diagonal().tolist(), extend(first, moment, share=0.7).diagonal().round().tolist()
    ([1.0, 0.0, 0.0], [1.0, 0.0, 1.0])
    """
    held = torch.zeros_like(moment) if held is None else held
    rest = torch.eye(len(moment), dtype=moment.dtype, device=moment.device) - held
    values, vectors = torch.linalg.eigh(rest @ moment @ rest)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    missing = share * moment.trace() - (moment.trace() - values.sum())
    before = values.cumsum(0) - values  # what the directions before each one hold
    largest = torch.linalg.matrix_norm(moment, 2)
    basis = vectors * ((before < missing) & (values > FLOOR * largest))
    extended: Tensor = held + basis @ basis.mT
    return extended
