"""DynamicER: a feature extractor for each task, one classifier above all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram import keys
from engram.errors import bad, check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.losses import ce_rows, mean
from engram.memory import Memory, check_memory
from engram.methods.method import Method, MethodNetworks, Network, Phase, ReplaySpec, State, Terms
from engram.models.forward_pass import Output
from engram.models.heads import Linear
from engram.per_run import PerRun
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline


class Extractor(nn.Module):
    """A further backbone, and the part of the classifier that sees its features."""

    class_rows = ("head.weight",)

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.backbone, self.head = model.backbone, Linear(*count_outputs(model), bias=False)
        self.head.weight.data = model.head.weight.data.clone()

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.backbone(x)
        return features


class NewOrOld(nn.Module):
    """A classifier of new classes, whose last logit is for rows of all old ones together."""

    class_rows = ("new.weight", "new.bias")

    def __init__(self, model: Any) -> None:
        super().__init__()
        width, classes = count_outputs(model)
        self.new, self.old = Linear(width, classes), Linear(width, 1)

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([self.new(features), self.old(features)], -1)


def count_outputs(model: Any) -> tuple[int, int]:
    """Return the numbers of features and of classes of a model.

    Examples
    --------
    >>> from engram.models.build import build
    >>> count_outputs(build("mlp", sample_shape=(4,), classes=2, seed=0, hidden=(8, 6)))
    (6, 2)
    """
    return model.features, model.classes


def classifier_parts(stage: int) -> tuple[str, ...]:
    """Return the prefixes of the parts of the classifier in a task.

    Examples
    --------
    >>> classifier_parts(1)
    ('net.head.', 'extractor1.head.')
    """
    return ("net.head.", *(f"extractor{number}.head." for number in range(1, stage + 1)))


def need_linear_head(model: Any, method: str) -> None:
    """Raise unless the last layer of a model is linear."""
    if not isinstance(model.head, Linear):
        raise bad("model", f"a linear head, for {method}", type(model.head).__name__)


def copy_part(learner: RunLearner, source: str, target: str) -> None:
    """Copy parameters and buffers whose names begin with `source` to those with `target`."""
    params, size = learner.params, len(source)
    for name, value in params.items():
        if name.startswith(source):
            params[target + name[size:]].copy_(value)
    own = {k[size:]: v for k, v in learner.buffers.items() if k.startswith(source)}
    learner.buffers = {**learner.buffers, **{target + k: v.clone() for k, v in own.items()}}


@dataclass(frozen=True, kw_only=True)
class DynamicER(Method):
    """Replay with a new feature extractor for each task, beside the frozen older ones (DER).

    Features of all extractors together go into one classifier. A new extractor begins with the
    weights of the previous one and is trained, with the classifier, on the task and the exemplars:

    L = CE + auxiliary * CE of a classifier above the new features alone, which has to tell the new
    classes from each other and from all old ones, taken together

    Then the classifier is trained anew on the exemplars, which are balanced.

    Parameters
    ----------
    memory
        Exemplars to keep, all of them trained on in every epoch. The paper: 2000 by herding.
    auxiliary
        Weight of the auxiliary loss.
    balance
        Epochs of the classifier on the exemplars; 0: it stays as it was trained with the features.
    temperature
        Divides the logits while the classifier is trained on the exemplars.

    Notes
    -----
    Its authors call it DER. It has nothing in common with dark experience replay (`DERpp`).

    Examples
    --------
    >>> [phase.name for phase in DynamicER().phases(1)]
    ['task', 'balance']

    References
    ----------
    Yan et al. 2021, CVPR.
    """

    grows: ClassVar[bool] = True  # by a note on each extractor

    memory: Memory = field(default=Memory(total=500, policy="herding"))
    auxiliary: PerRun = 1.0
    balance: int = 30
    temperature: PerRun = 5.0

    def __post_init__(self) -> None:
        check_memory(self.memory)
        check_float("auxiliary", self.auxiliary)
        check_float("temperature", self.temperature, open_low=True)
        check_int("balance", self.balance)

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        made: dict[str, Network] = {}
        for stage in range(1, len(stream)):
            model: Any = stream.build_model()
            need_linear_head(model, "DynamicER")
            if stage == 1:
                made["auxiliary"] = Network(NewOrOld(model), opens=1)
            made[f"extractor{stage}"] = Network(Extractor(model), opens=stage)
        return made

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("union")

    def phases(self, stage: int) -> tuple[Phase, ...]:
        if not stage or not self.balance:
            return (Phase(),)
        again = Phase(
            rows="memory", name="balance", trainable=classifier_parts(stage), epochs=self.balance,
            before=self.restart_classifier,
        )  # fmt: skip
        return Phase(), again

    def start(self, learner: RunLearner, task: Task) -> None:
        if not learner.stage:
            learner.state = {"extractors": ()}
            return
        noted = torch.zeros((), device=learner.device)
        learner.state = {"extractors": (noted,) * learner.stage}  # besides the model's own
        names = [f"extractor{number}.backbone." for number in range(1, learner.stage + 1)]
        names = ["net.backbone.", *names]
        copy_part(learner, names[-2], names[-1])
        row = learner.params["auxiliary.old.weight"]
        row.copy_(self._draw(learner, "auxiliary", *row.shape))
        learner.params["auxiliary.old.bias"].zero_()
        for name, mask in learner.layout(learner.free).items():
            if name.startswith(tuple(names[:-1])):
                mask.fill_(False)

    def _draw(self, learner: RunLearner, purpose: str, count: int, width: int) -> Tensor:
        """Draw rows [count, F] for a linear layer that sees `width` features."""
        key = keys.fold(learner.seed, "DynamicER", purpose, learner.stage)
        rows = 2 * keys.uniform(key, count, learner.class_weights().shape[1]) - 1
        return (rows / math.sqrt(width)).to(learner.vector)

    def restart_classifier(self, learner: RunLearner, task: Task) -> None:
        """Choose the exemplars of the task, and draw the weights of the classifier anew."""
        learner.exemplars = self.memory.update(learner, task.train)
        seen, parts = learner.seen.to(learner.device), classifier_parts(learner.stage)
        for name, rows in learner.params.items():
            if not name.startswith(parts):
                continue
            fresh = torch.zeros_like(rows)
            if rows.ndim == 2:
                fresh = self._draw(learner, name, len(rows), len(parts) * rows.shape[1])
            rows[seen] = fresh[seen]

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        if not state["extractors"]:
            return {"task": net.task(batch)}
        found = self.extract(net, batch.x, state, batch.w)
        logits = self.classify(net, found)
        if net.phase == "balance":
            return {"balance": net.task(batch, logits=logits / self.temperature)}
        said, target = net.auxiliary(found[-1]), batch.target
        among = torch.cat([batch.new, torch.ones_like(batch.new[:1])]).expand_as(said)
        target = torch.where(batch.new[target], target, said.shape[-1] - 1)
        return {
            "task": net.task(batch, logits=logits),
            "auxiliary": self.auxiliary * mean(ce_rows(said, target, among), batch.w),
        }

    def finish(self, learner: RunLearner, task: Task) -> None:
        if not learner.stage or not self.balance:
            learner.exemplars = self.memory.update(learner, task.train)

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        if not state["extractors"]:
            return net(x)
        found = self.extract(net, x, state)
        return Output(torch.cat(found, -1), self.classify(net, found))

    def extract(self, net: Net, x: Tensor, state: State, w: Tensor | None = None) -> list[Tensor]:
        """Compute the features of each extractor; only the newest is trained, and with them."""
        count, older = len(state["extractors"]), net.detached()
        found = [older.backbone(x)]
        found += [getattr(older, f"extractor{number}")(x) for number in range(1, count)]
        name = f"extractor{count}"
        stands = net.phase == "balance"
        return [*found, getattr(older, name)(x) if stands else getattr(net, name)(x, w=w)]

    def classify(self, net: Net, features: list[Tensor]) -> Tensor:
        """Compute logits [B, C] from the features of all extractors."""
        params = net.params
        parts = (params[f"{name}weight"] for name in classifier_parts(len(features) - 1))
        return F.linear(torch.cat(features, -1), torch.cat([*parts], -1), params["net.head.bias"])
