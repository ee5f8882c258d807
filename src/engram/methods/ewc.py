"""Elastic weight consolidation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engram.learner.learner import RunLearner
from engram.methods.fisher import check_learner, check_options, fisher_information
from engram.methods.quadratic_penalty import Anchored, merge_quadratics
from engram.per_run import PerRun
from engram.streams.stream import Task


@dataclass(frozen=True, kw_only=True)
class EWC(Anchored):
    """Penalise moving from the weights after each past task, weighted by Fisher information.

    loss = task + strength / 2 * sum over past tasks t, parameters i of F_ti (theta_i - theta*_ti)^2

    The sum over tasks is kept as one quadratic, so the state does not grow.

    Parameters
    ----------
    strength
        Lambda. ConFER: 5000; CGL: 1e6 with its own Fisher information.
    half
        Multiply by strength / 2, as the paper does; CGLB does not.
    labels
        Labels of the Fisher information: ``true`` ones (the empirical Fisher: RWalk, CGL),
        ``pred``: the predicted class (ConFER's base code), ``sample``: one class drawn from the
        model, ``all``: the expectation over the model's classes.
    group
        1: square each sample's gradient; n or ``full``: square the mean gradient of n rows, or of
        all rows (CGLB). These are much smaller numbers.
    term
        Gradient of the log ``likelihood``, or of the training ``objective`` (CGLB).
    batch_statistics
        Batch normalisation uses the statistics of each group (`group` above 1, CGLB) instead of the
        running ones.
    memory
        Exemplars mixed into the task's rows (the "-S" rows of the RWalk paper); None: no exemplars.

    Examples
    --------
    >>> EWC(strength=100.0, labels="pred").describe()["labels"]
    'pred'
    >>> EWC(labels="predicted")
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: labels: unknown name 'predicted', did you mean 'pred'? ...

    References
    ----------
    Kirkpatrick et al. 2017, Proceedings of the National Academy of Sciences.
    """

    strength: PerRun = 5000.0
    half: bool = True
    labels: str = "true"
    group: int | str = 1
    term: str = "likelihood"
    batch_statistics: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.labels, self.group, self.term, self.batch_statistics)

    def factor(self) -> float | Tensor:
        return self.strength / 2 if self.half else self.strength

    def start(self, learner: RunLearner, task: Task) -> None:
        check_learner(learner, self.labels)  # raise before the training instead of after it

    def importance_of(self, learner: RunLearner) -> Tensor:
        """Compute the Fisher information [P] after the current task."""
        return fisher_information(
            learner, labels=self.labels, group=self.group, term=self.term,
            batch_statistics=self.batch_statistics,
        )  # fmt: skip

    def finish(self, learner: RunLearner, task: Task) -> None:
        learner.state = merge_quadratics(learner.state, self.importance_of(learner), learner.vector)
        self.store(learner, task)
