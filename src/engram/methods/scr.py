"""Supervised contrastive replay: features of a class draw near, and the nearest mean answers."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.errors import bad, check_choice, check_float, check_int
from engram.learner.batch import Batch
from engram.learner.feed import IMAGE_CHANGES
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import CLOSED_LOGIT, mean
from engram.memory import Memory, check_memory
from engram.methods.icarl import class_means, nearest_mean_scores
from engram.methods.method import Method, MethodNetworks, ReplaySpec, State, Terms
from engram.models.forward_pass import Output
from engram.per_run import PerRun
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline

LEAST_AREA = 0.2  # of an image that a crop keeps


def contrast_classes(z: Tensor, y: Tensor, w: Tensor, temperature: PerRun) -> Tensor:
    """Compute the supervised contrastive loss of unit vectors [N, d] with labels y [N].

    It is the mean over rows, and over the other rows of the same class, of -log of the share that
    the other row has among all others. Rows of weight 0 are no others.

    Examples
    --------
    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> float(contrast_classes(z, torch.tensor([0, 0, 1]), torch.ones(3), 1.0))  # log(1 + 1 / e)
    0.313261...
    """
    apart = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    others = apart & (w > 0)  # [N, N]
    alike = others & (y[:, None] == y)
    shares = (z @ z.mT / temperature).masked_fill(~others, CLOSED_LOGIT).log_softmax(-1)
    count = alike.sum(1)
    rows = -torch.where(alike, shares, 0.0).sum(1) / count.clamp(min=1)
    return mean(rows, w * (count > 0))


@dataclass(frozen=True, kw_only=True)
class SCR(Method):
    """Draw features of a class together, apart from others, and answer by nearest means (SCR).

    L = supervised contrastive loss of p(f(x)) over new rows, memory rows, and a changed view of
    each; f are the features, p is a network of two layers, the outputs of which are normalised

    After a task, the class whose exemplars' features have the nearest mean is the answer. The
    memory is a reservoir updated at every step.

    Parameters
    ----------
    temperature
        What cosines are divided by. Mai et al.: 0.07.
    views
        How a view of an image differs: ``resized_crop`` keeps 20 to 100 percent of its area,
        ``flip`` mirrors half of them. None of both: no views, rows are contrasted with each other.
        Samples other than images have no views.
    width
        Number of outputs of the projection p. Mai et al.: 128.
    size
        Memory rows per step; 0: as many as the batch size. Mai et al.: 100 beside 10 new ones.
    memory
        A reservoir. Mai et al.: 1000 to 10000 rows.

    Notes
    -----
    Until the first task is finished, the network's own head answers, which is not trained.

    Examples
    --------
    >>> SCR(views=("flip", "blur"))
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: views: unknown name 'blur'. Valid: flip, resized_crop

    References
    ----------
    Mai et al. 2021, IEEE/CVF CVPR Workshops.
    """

    temperature: PerRun = 0.07
    views: tuple[str, ...] = IMAGE_CHANGES
    width: int = 128
    size: int = 0
    memory: Memory = field(default=Memory(total=500, policy="reservoir"))

    def __post_init__(self) -> None:
        check_float("temperature", self.temperature, open_low=True)
        for view in self.views:
            check_choice("views", view, IMAGE_CHANGES)
        check_int("width", self.width, 1)
        check_int("size", self.size)
        check_memory(self.memory)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("pair", self.size, renew="step")

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        shape, features = stream.data.sample_shape, stream.features
        if self.views and len(shape) != 3:
            raise bad("views", f"() for samples of shape {shape}, no images", self.views)
        assert features is not None  # known when networks are made
        layers = nn.Linear(features, features), nn.ReLU(), nn.Linear(features, self.width)
        return {"projection": nn.Sequential(*layers)}

    def start(self, learner: RunLearner, task: Task) -> None:
        learner.state = {}  # means of the network before would be wrong as soon as weights move

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        if self.views:
            batch = net.views(batch, 2, self.views, least=LEAST_AREA)
        z = F.normalize(net.projection(net(batch.x, batch.w).features), dim=-1)
        return {"task": contrast_classes(z, batch.target, batch.w, self.temperature)}

    def finish(self, learner: RunLearner, task: Task) -> None:
        kept = learner.exemplars
        features = learner.outputs(kept.rows, kept.stages).features
        means, known = class_means(features, kept.columns, len(learner.opened))
        learner.state = {"means": means.to(learner.device), "known": known.to(learner.device)}

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        output = net(x)
        if "means" not in state:
            return output
        scores = nearest_mean_scores(output.features, state["means"], state["known"])
        return output._replace(logits=scores)
