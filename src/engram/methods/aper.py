"""APER: a network adapted to the first task, beside the one that it began as."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.errors import bad, check_choice
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.first_session import class_sums
from engram.methods.method import Method, Phase, State
from engram.methods.ncm import DISTANCES, mean_scores
from engram.models.forward_pass import Output
from engram.streams.stream import Task


@dataclass(frozen=True, kw_only=True)
class APER(Method):
    """First-session adaptation: features of the adapted network and of the one it began as.

    The network is trained on the first task and then frozen. Its features and those of the network
    before, concatenated, are compared with their means for each class: the first know the data,
    the second what was learnt in pre-training. No exemplars are kept.

    Parameters
    ----------
    distance
        ``cosine``: one minus the cosine of the features and the mean; ``euclidean``: the squared
        distance.

    Examples
    --------
    >>> [phase.rows for stage in (0, 1) for phase in APER().phases(stage)]
    ['task', 'none']

    References
    ----------
    Zhou et al. 2024, International Journal of Computer Vision (first called ADAM, 2023).
    """

    distance: str = "cosine"

    def __post_init__(self) -> None:
        check_choice("distance", self.distance, DISTANCES)

    def phases(self, stage: int) -> tuple[Phase, ...]:
        return (Phase(rows="none" if stage else "task"),)

    def start(self, learner: RunLearner, task: Task) -> None:
        if learner.stage:
            return
        if not any(name.startswith("net.backbone.") for name in learner.params):
            raise bad(
                "model", "a backbone that the first task can adapt, not freeze=true", "freeze"
            )
        learner.state = {"begun": learner.snapshot()}

    def finish(self, learner: RunLearner, task: Task) -> None:
        # of both networks, before which there are no means to compare them with
        features, labels = learner.answers(task.train).features, learner.labels(task.train)[:, 0]
        known, kept = labels >= 0, learner.state
        count, total = class_sums(features[known].double(), labels[known], len(learner.opened))
        if "count" in kept:
            count, total = count + kept["count"].cpu(), total + kept["sum"].cpu()
        sums = {"count": count.to(learner.device), "sum": total.to(learner.device)}
        learner.state = {"begun": kept["begun"], **sums}

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        output = net(x)
        if not state:
            return output
        begun = net.frozen(state["begun"])(x).features
        features = torch.cat([begun, output.features], -1)
        if "count" not in state:  # before the first task is over
            return Output(features, output.logits)
        count = state["count"]
        means = state["sum"] / count.clamp(min=1)[:, None]
        scores = mean_scores(features.to(means.dtype), means, count > 0, self.distance)
        return Output(features, scores)
