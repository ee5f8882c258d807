"""NCM: the nearest class mean of features that stand still (SimpleCIL)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engram.errors import check_choice
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.first_session import FirstSession, class_sums, read_features
from engram.methods.method import State
from engram.models.forward_pass import Output
from engram.streams.stream import Task

DISTANCES = ("cosine", "euclidean")
FARTHEST_COSINE = 2.0  # largest cosine distance


def mean_scores(features: Tensor, means: Tensor, seen: Tensor, distance: str) -> Tensor:
    """Compute scores [B, C], minus the distance to each class mean [C, d]; unseen ones are last.

    The distance is one minus the cosine, or the squared Euclidean one. Distances rather than
    cosines, because small numbers keep more digits in the records.

    Examples
    --------
    >>> means, seen = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([True, False])
    >>> mean_scores(torch.tensor([[0.0, 3.0]]), means, seen, "cosine").tolist()
    [[-1.0, -3.0]]
    >>> mean_scores(torch.tensor([[0.0, 3.0]]), means, seen, "euclidean").tolist()
    [[-13.0, -14.0]]
    """
    if distance == "cosine":
        away = 1 - F.normalize(features, dim=-1) @ F.normalize(means, dim=-1).T
        return torch.where(seen, -away, -FARTHEST_COSINE - 1)
    squares = features.square().sum(-1, keepdim=True) + means.square().sum(-1)
    away = (squares - 2 * features @ means.T).clamp(min=0)
    farthest = torch.where(seen, away, 0.0).amax(-1, keepdim=True)
    return torch.where(seen, -away, -farthest - 1)


@dataclass(frozen=True, kw_only=True)
class NCM(FirstSession):
    """The nearest class mean of frozen features (SimpleCIL): no training, no exemplars.

    After a task, the mean feature vector of each of its classes is computed; a row belongs to the
    class whose mean is nearest. On a pre-trained backbone this is the baseline that more elaborate
    methods have to beat.

    Parameters
    ----------
    distance
        ``cosine``: one minus the cosine of the features and the mean (SimpleCIL); ``euclidean``:
        the squared distance.
    train_first
        Train the network on the first task. Under a frozen backbone (``model.freeze``) there is
        nothing to train.

    Examples
    --------
    >>> [phase.rows for phase in NCM().phases(0)]
    ['none']

    References
    ----------
    Zhou et al. 2024, International Journal of Computer Vision (SimpleCIL); Mensink et al. 2013,
    IEEE Transactions on Pattern Analysis and Machine Intelligence.
    """

    distance: str = "cosine"
    train_first: bool = False

    def __post_init__(self) -> None:
        check_choice("distance", self.distance, DISTANCES)

    def finish(self, learner: RunLearner, task: Task) -> None:
        found = read_features(learner, task.train)
        count, total = class_sums(found.features.double(), found.labels, len(learner.opened))
        if learner.state:
            count += learner.state["count"].cpu()
            total += learner.state["sum"].cpu()
        learner.state = {"count": count.to(learner.device), "sum": total.to(learner.device)}

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        output = net(x)
        if "count" not in state:  # before the first task is over
            return output
        count = state["count"]
        means = state["sum"] / count.clamp(min=1)[:, None]
        features = output.features.to(means.dtype)
        return output._replace(logits=mean_scores(features, means, count > 0, self.distance))
