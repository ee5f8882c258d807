"""The greedy sampler and dumb learner: keep balanced exemplars, learn from them alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from engram.errors import check_int
from engram.learner.learner import RunLearner
from engram.memory import Memory, check_memory
from engram.methods.method import Method, Phase
from engram.streams.stream import Task


@dataclass(frozen=True, kw_only=True)
class GDumb(Method):
    """Retrain from the initial weights on the exemplars alone, at every task.

    Its accuracy shows how much of a stream the memory alone explains.

    Parameters
    ----------
    memory
        Exemplars to keep; by default balanced over all classes seen. Prabhu et al.: 300 to 4500 in
        all.
    epochs
        Passes over the memory at each task. Prabhu et al.: 256.

    Examples
    --------
    >>> GDumb(epochs=20).phases(3)[0].rows
    'memory'

    References
    ----------
    Prabhu et al. 2020, European Conference on Computer Vision.
    """

    memory: Memory = field(default=Memory(total=500))
    epochs: int = 50

    def __post_init__(self) -> None:
        check_memory(self.memory)
        check_int("epochs", self.epochs, 1)

    def phases(self, stage: int) -> tuple[Phase, ...]:
        return (Phase(rows="memory", reinitialise=True, epochs=self.epochs),)

    def start(self, learner: RunLearner, task: Task) -> None:
        learner.exemplars = self.memory.update(learner, task.train)
