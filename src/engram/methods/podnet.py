"""PODNet: pooled outputs of all layers are distilled; a class has several cosine proxies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram import keys
from engram.errors import BadArgument, bad, check_choice, check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import CLOSED_LOGIT, mean
from engram.memory import Memory, check_memory
from engram.methods.icarl import class_means, nearest_mean_scores
from engram.methods.lucir import MOST_IMPRINT_ROWS, cosine_distance
from engram.methods.method import Method, MethodNetworks, Phase, ReplaySpec, State, Terms
from engram.models.forward_pass import Output
from engram.per_run import PerRun
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline

VARIANTS = ("cnn", "nme")
BACKBONE = "net.backbone."
HEAD, SCALE = "net.head.weight", "net.head.scale"
MORE = "proxies.weight"
SMOOTH = 1e-4  # distances far below it have no slope
ROUNDS = 20  # of k-means


class Proxies(nn.Module):
    """The proxies of each class besides the one in the head."""

    class_rows = ("weight",)

    def __init__(self, classes: int, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, count, width) / width**0.5)

    def forward(self, features: Tensor, first: Tensor) -> Tensor:
        """Cosines [B, C, K + 1] of features [B, F]; `first` [C, F] are the proxies in the head."""
        rows = F.normalize(torch.cat([first.unsqueeze(1), self.weight], 1), dim=-1)
        cosines = F.linear(F.normalize(features, dim=-1), rows.flatten(0, 1))
        return cosines.unflatten(-1, rows.shape[:2])  # type: ignore[no-any-return]


def find_stages(backbone: nn.Module) -> tuple[str, ...]:
    """Return the names of the parts of a backbone that have weights; lists of parts are opened.

    Examples
    --------
    >>> from engram.models import MLP, resnet32
    >>> find_stages(MLP((4,), hidden=(8, 6, 5)))
    ('lower.0', 'upper.0', 'upper.1')
    >>> find_stages(resnet32((3, 32, 32)))
    ('stem', 'lower.0', 'lower.1', 'upper')
    """
    found: list[str] = []
    for name, part in backbone.named_children():
        lists = isinstance(part, nn.ModuleList) or (
            isinstance(part, nn.Sequential) and all(isinstance(one, nn.Sequential) for one in part)
        )
        if lists:
            found += [f"{name}.{inner}" for inner in find_stages(part)]
        elif any(weight.ndim > 1 for weight in part.parameters()):
            found.append(name)
    return tuple(found)


def pool_places(values: Tensor, rows: int) -> Tensor:
    """Pool outputs of a layer over one axis of places at a time, as unit vectors [rows, n].

    Of maps [B, C, ...] the squares are summed; vectors [B, n] are taken as they are.

    Examples
    --------
    >>> pool_places(torch.tensor([[[[1.0, 1.0], [0.0, 1.0]]]]), 1)  # columns, then rows
    tensor([[0.3162, 0.6325, 0.6325, 0.3162]])
    >>> pool_places(torch.tensor([[3.0, -4.0]]), 1)
    tensor([[ 0.6000, -0.8000]])
    """
    if values.ndim == 2:
        return F.normalize(values.reshape(rows, -1), dim=-1)
    squares = values.square()
    sums = [squares.sum(axis).reshape(rows, -1) for axis in range(2, values.ndim)]
    return F.normalize(torch.cat(sums, -1), dim=-1)


def pooled_distance(new: Tensor, old: Tensor, rows: int) -> Tensor:
    """Compute the distance [rows] of the pooled outputs of a layer.

    It is smooth where both are equal, as they are when a task begins: the slope of a distance there
    would be that of rounding errors.

    Examples
    --------
    >>> new, old = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[4.0, 3.0], [2.0, 0.0]])
    >>> pooled_distance(new, old, 2).round(decimals=3)
    tensor([0.2830, 0.0000])
    """
    squares = (pool_places(new, rows) - pool_places(old, rows)).square().sum(-1)
    return (squares + SMOOTH**2).sqrt() - SMOOTH


def nca_rows(
    scores: Tensor, target: Tensor, open_: Tensor, *, scale: Tensor, margin: Tensor | float
) -> Tensor:
    """Compute the loss [B] of each row: by how much the open classes beat its own minus a margin.

    Examples
    --------
    >>> scores, open_ = torch.tensor([[0.9, 0.5, 1.0]]), torch.tensor([[True, True, False]])
    >>> options = {"scale": torch.tensor(2.0), "margin": 0.6}
    >>> nca_rows(scores, torch.tensor([0]), open_, **options).round(decimals=4)  # 2 (0.5 - 0.3)
    tensor([0.4000])
    >>> nca_rows(scores, torch.tensor([1]), open_, scale=torch.tensor(2.0), margin=-2.0)
    tensor([0.])
    """
    own = scores.gather(-1, target.unsqueeze(-1)).squeeze(-1) - margin
    rivals = open_ & (torch.arange(scores.shape[-1], device=scores.device) != target[:, None])
    others = (scale * scores).masked_fill(~rivals, CLOSED_LOGIT).logsumexp(-1)
    return (others - scale * own).clamp(min=0)


def cluster_centres(points: Tensor, count: int, key: keys.Key) -> Tensor:
    """Compute the centres [count, d] of clusters of points [n, d], by k-means.

    It begins at points that are drawn; if there are fewer, some centres are equal.

    Examples
    --------
    >>> points = torch.tensor([[0.0], [0.2], [5.0], [5.2], [5.4]])
    >>> cluster_centres(points, 2, 0).sort(0).values.round(decimals=4)
    tensor([[0.1000],
            [5.2000]])
    """
    drawn = keys.permutation(key, len(points), len(points)).to(points.device)
    centres = points[drawn.repeat(-(-count // len(drawn)))[:count]]
    for _ in range(ROUNDS):
        nearest = torch.cdist(points, centres).argmin(-1)
        member = (nearest[:, None] == torch.arange(count, device=points.device)).to(points.dtype)
        sizes = member.sum(0)[:, None]
        centres = torch.where(sizes > 0, member.T @ points / sizes.clamp(min=1), centres)
    return centres


@dataclass(frozen=True, kw_only=True)
class PODNet(Method):
    """Distillation of pooled outputs of all layers, and classes with several cosine proxies.

    A class has `proxies` vectors. Its score s is the mean of their cosines with the features,
    weighted by the softmax of these cosines. The loss of a row is

    max(0, log(sum over the other classes of exp(scale * s)) - scale * (s of its class - margin))

    From the second task on are added, with r = sqrt(classes seen / classes of the task):

    strength * r * distance of the pooled outputs of each layer from those before the task, a mean
    over layers, and flat * r * (1 - cosine of features and features before the task)

    Maps are pooled over width and over height: sums of squares, as one vector of length 1. Before
    a task, proxies of its classes are set to the centres of clusters of their features. After it,
    all proxies are trained once more on the exemplars, which are balanced.

    Parameters
    ----------
    memory
        Exemplars to keep, all of them trained on in every epoch. The paper: 20 per class.
    variant
        How to predict. ``cnn``: the class of the largest score. ``nme``: the nearest class mean of
        the exemplars, once a task is finished; proxies are then not trained once more.
    proxies
        How many vectors a class has.
    scale
        Initial factor of the scores, which is then learnt. The original starts at 1 and trains for
        160 epochs; in few steps a scale of 1 cannot separate the classes.
    margin
        By how much the score of a row's class should be larger.
    strength
        Weight of the distances between layers. The paper: 3 for CIFAR, 8 for ImageNet.
    flat
        Weight of the distance between features. The paper: 1 for CIFAR, 10 for ImageNet.
    layers
        Names of layers in the backbone whose outputs are distilled, such as ``lower.0``; none:
        each stage of it but the last, which gives the features.
    balance
        Epochs of the proxies on the exemplars after a task; 0: none.

    Notes
    -----
    The training setting `loss` does not matter here.

    Examples
    --------
    >>> PODNet().head, [phase.name for phase in PODNet().phases(1)]
    ({'name': 'cosine', 'scale': 10.0}, ['task', 'balance'])

    References
    ----------
    Douillard et al. 2020, ECCV.
    """

    memory: Memory = field(default=Memory(per_class=20, policy="herding"))
    variant: str = "cnn"
    proxies: int = 10
    scale: PerRun = 10.0
    margin: PerRun = 0.6
    strength: PerRun = 3.0
    flat: PerRun = 1.0
    layers: tuple[str, ...] = ()
    balance: int = 20

    def __post_init__(self) -> None:
        check_memory(self.memory)
        check_choice("variant", self.variant, VARIANTS)
        check_int("proxies", self.proxies, 1)
        check_float("scale", self.scale, open_low=True)
        for name in ("margin", "strength", "flat"):
            check_float(name, getattr(self, name))
        check_int("balance", self.balance)
        given: Any = self.layers
        if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
            raise bad("layers", "names of layers, such as ('lower.0',)", given)
        object.__setattr__(self, "layers", tuple(given))  # a recipe has lists

    @property
    def head(self) -> dict[str, Any]:
        return {"name": "cosine", "scale": self.scale}

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        if self.proxies == 1:
            return {}
        assert stream.features is not None  # known when networks are made
        return {"proxies": Proxies(len(stream.order), self.proxies - 1, stream.features)}

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("union")

    def phases(self, stage: int) -> tuple[Phase, ...]:
        if not self._balances(stage):
            return (Phase(),)
        again = Phase(
            rows="memory", name="balance", trainable=("net.head.", "proxies."),
            epochs=self.balance, before=self.choose_exemplars,
        )  # fmt: skip
        return Phase(), again

    def _balances(self, stage: int) -> bool:
        return bool(stage and self.balance and self.variant == "cnn")

    def start(self, learner: RunLearner, task: Task) -> None:
        learner.state = {}
        if not learner.stage:
            self._check_layers(learner)
            return
        learner.state = {"teacher": learner.snapshot()}
        self.imprint_proxies(learner, task)

    def _check_layers(self, learner: RunLearner) -> None:
        """Refuse layers that the network does not have or does not call, before it is trained."""
        backbone = learner.networks.eval.get_submodule("net.backbone")
        for name in self.layers:
            check_choice("layers", name, [one for one, _ in backbone.named_modules() if one])
        if paths := self.paths(learner.networks.eval):
            x = learner.vector.new_zeros(1, *learner.stream.data.sample_shape)
            try:
                found = learner.net()(x, want=paths).layers
            except BadArgument as error:
                raise bad("layers", "layers that the forward pass calls", self.layers) from error
            for name, value in found.items():
                if not isinstance(value, Tensor) or value.ndim < 2:
                    wanted = "layers whose outputs are one tensor, [rows, ...]"
                    raise bad("layers", wanted, name.removeprefix(BACKBONE))

    def paths(self, networks: nn.Module) -> tuple[str, ...]:
        """Return the layers whose outputs are distilled, by names as in `Net.__call__`."""
        chosen = self.layers or find_stages(networks.get_submodule("net.backbone"))[:-1]
        return tuple(BACKBONE + name for name in chosen)

    def imprint_proxies(self, learner: RunLearner, task: Task) -> None:
        """Set the proxies of new classes to centres of their features, as long as old proxies."""
        rows, y = learner.params.head.weight, learner.labels(task.train)
        more = learner.params.get(MORE, rows[:, None, :][:, :0])
        known = learner.known.to(rows.device)
        length = torch.cat([rows[known][:, None], more[known]], 1).norm(dim=-1).mean()
        for column in learner.new.nonzero()[:, 0].tolist():
            own = task.train[(y == column).any(-1).to(task.train.device)][:MOST_IMPRINT_ROWS]
            features = F.normalize(learner.outputs(own).features, dim=-1)
            key = keys.fold(learner.seed, "PODNet", learner.stage, column)
            made = F.normalize(cluster_centres(features, self.proxies, key), dim=-1) * length.cpu()
            made = made.to(rows)
            before = torch.cat([rows[column][None], more[column]])
            # features of zeros have no direction
            made = torch.where(made.norm(dim=-1, keepdim=True) > 0, made, before)
            rows[column] = made[0]
            more[column] = made[1:]

    def choose_exemplars(self, learner: RunLearner, task: Task) -> None:
        """Choose those of the task; the features do not change any more."""
        learner.exemplars = self.memory.update(learner, task.train)
        learner.state = {}

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        if net.phase == "balance":
            return {"balance": self._task(net, batch, net.detached().backbone(batch.x))}
        if "teacher" not in state:
            return {"task": self._task(net, batch, net(batch.x, batch.w).features)}
        paths, rows = self.paths(net.networks.eval), len(batch.w)
        now = net(batch.x, batch.w, want=paths)
        before = net.frozen(state["teacher"])(batch.x, want=paths)
        grown = (batch.seen.sum() / batch.new.sum().clamp(min=1)).to(batch.w.dtype).sqrt()
        away = cosine_distance(now.features, before.features)
        terms = {
            "task": self._task(net, batch, now.features),
            "flat": self.flat * grown * mean(away, batch.w),
        }
        if paths:
            away = torch.stack(
                [pooled_distance(now.layers[one], before.layers[one], rows) for one in paths]
            )
            terms["pooled"] = self.strength * grown * mean(away.mean(0), batch.w)
        return terms

    def _task(self, net: Net, batch: Batch, features: Tensor) -> Tensor:
        rows = nca_rows(
            self.score(net, features), batch.target, batch.open, scale=net.params[SCALE],
            margin=self.margin,
        )  # fmt: skip
        return mean(rows, batch.w)

    def score(self, net: Net, features: Tensor) -> Tensor:
        """Compute the scores [B, C] of all classes, between -1 and 1."""
        if self.proxies == 1:
            alone: Tensor = net.head.cosines(features)
            return alone
        cosines: Tensor = net.proxies(features, net.params[HEAD])
        return (cosines.softmax(-1) * cosines).sum(-1)

    def finish(self, learner: RunLearner, task: Task) -> None:
        if not self._balances(learner.stage):
            learner.exemplars = self.memory.update(learner, task.train)
        learner.state = {}
        kept = learner.exemplars
        if self.variant == "nme" and len(kept):
            features = learner.outputs(kept.rows, kept.stages).features
            means, valid = class_means(features, kept.columns, len(learner.opened))
            learner.state = {"means": means.to(learner.device), "valid": valid.to(learner.device)}

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        output = net(x)
        if "means" in state:
            scores = nearest_mean_scores(output.features, state["means"], state["valid"])
        else:
            scores = net.params[SCALE] * self.score(net, output.features)
        return output._replace(logits=scores)
