"""What a stage may change of a learner, put back when the stage is to be begun again."""

from __future__ import annotations

from engram.learner.learner import Learner


class Rollback:
    """The learner before a stage; tensors are replaced by stages, never edited."""

    FIELDS = (
        "vector",
        "buffers",
        "free",
        "opened",
        "state",
        "opt",
        "exemplars",
        "values",
        "probes",
        "stage",
        "diverged",
        "units",
        "resume_point",
        "before",
    )

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.values = {name: getattr(learner, name) for name in self.FIELDS}
        self.ledger = learner.ledger.copy()

    def restore(self) -> None:
        for name, value in self.values.items():
            setattr(self.learner, name, value)
        self.learner.ledger = self.ledger.copy()
