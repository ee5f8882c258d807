"""Progressive neural networks: a further network for each task, fed by those before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.method import Method, MethodNetworks, Network, State, Terms
from engram.models.forward_pass import Output
from engram.models.mlp import MLP
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline

Layers = tuple[Tensor, ...]  # outputs of the hidden layers of a column; the last are its features


class Column(nn.Module):
    """A network like the model, whose layers also see the layers below in `older` columns."""

    def __init__(self, model: Any, older: int) -> None:
        super().__init__()
        self.model = model
        fed = [*hidden_layers(model)[1:], model.head]
        self.lateral = nn.ParameterList(draw_lateral(layer, older) for layer in fed)
        last = f"lateral.{len(fed) - 1}"
        self.class_rows = (*(f"model.{name}" for name in model.class_rows), last)

    def hidden(self, x: Tensor, older: tuple[Layers, ...]) -> Layers:
        """Compute the hidden layers from those of older columns."""
        model: Any = self.model
        layers = hidden_layers(model)
        seen = [torch.relu(layers[0](x.flatten(1))) if layers else model.backbone(x)]
        for place, layer in enumerate(layers[1:]):
            seen.append(torch.relu(layer(seen[-1]) + self._from(older, place)))
        return tuple(seen)

    def forward(self, x: Tensor, older: tuple[Layers, ...]) -> tuple[Layers, Tensor]:
        """Compute the hidden layers, and the logits."""
        seen, model = self.hidden(x, older), cast(Any, self.model)
        return seen, model.head(seen[-1]) + self._from(older, len(self.lateral) - 1)

    def _from(self, older: tuple[Layers, ...], place: int) -> Tensor:
        return F.linear(torch.cat([one[place] for one in older], -1), self.lateral[place])


def draw_lateral(layer: Any, older: int) -> Tensor:
    """Draw the weights by which a layer sees the layers below of older columns, side by side."""
    above, below = layer.weight.shape
    parts = (nn.Linear(below, above, bias=False).weight.detach() for _ in range(older))
    return torch.cat([*parts], 1)


def hidden_layers(model: Any) -> list[nn.Linear]:
    """Return the hidden layers of an MLP; of other backbones there are only features.

    Examples
    --------
    >>> from engram.models.build import build
    >>> model = build("mlp", sample_shape=(4,), classes=2, seed=0, hidden=(8, 6))
    >>> [layer.out_features for layer in hidden_layers(model)]
    [8, 6]
    """
    known = isinstance(model.backbone, MLP) and model.backbone.latent is None
    return [*model.backbone.lower, *model.backbone.upper] if known else []


def name_hidden_layers(model: Any) -> tuple[str, ...]:
    """Return the full names of the `hidden_layers` of the model."""
    split, count = len(getattr(model.backbone, "lower", ())), len(hidden_layers(model))
    places = ((("lower", k) if k < split else ("upper", k - split)) for k in range(count))
    return tuple(f"net.backbone.{part}.{k}" for part, k in places)


@dataclass(frozen=True, kw_only=True)
class PNN(Method):
    """Progressive networks: every task gets a network of its own, which also sees all older ones.

    The model is the first column. Each further task adds a column of the same form, with initial
    weights of its own, whose layers also receive the layers below of all older columns, which are
    frozen. Rows of a task are answered by its column, so nothing is forgotten, but the task of a
    row must be given, and the number of weights grows with the square of the number of tasks.

    Examples
    --------
    >>> PNN().task_identity, PNN().grows
    ('required', True)

    References
    ----------
    Rusu et al. 2016, arXiv:1606.04671.
    """

    task_identity: ClassVar[str] = "required"
    grows: ClassVar[bool] = True  # by a note on each column

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        return {
            f"column{stage}": Network(Column(stream.build_model(), stage), opens=stage)
            for stage in range(1, len(stream))
        }

    def start(self, learner: RunLearner, task: Task) -> None:
        if learner.stage:
            own = learner.layout(learner.free)
            for name, mask in own.items():
                if not name.startswith(f"column{learner.stage}."):
                    mask.fill_(False)
        noted = torch.zeros((), device=learner.device)
        learner.state = {"columns": (noted,) * learner.stage}  # besides the first

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        if not (count := len(state["columns"])):
            return {"task": net.task(batch)}
        still = net.detached()  # older columns are not trained
        with torch.no_grad():
            older: tuple[Layers, ...] = (self._see_first(still, net, batch.x),)
        for number in range(1, count):
            older = (*older, getattr(still, f"column{number}").hidden(batch.x, older))
        _, logits = getattr(net, f"column{count}")(batch.x, older, w=batch.w)
        return {"task": net.task(batch, logits=logits)}

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        count = len(state["columns"])
        first = self._see_first(net, net, x)
        each = [(first, net.head(first[-1]))]
        for number in range(1, count + 1):
            older = tuple(layers for layers, _ in each)
            each.append(getattr(net, f"column{number}")(x, older))
        place = torch.where(stage < 0, torch.full_like(stage, count), stage).reshape(1)
        features = torch.stack([layers[-1].flatten(1) for layers, _ in each])
        logits = torch.stack([logits for _, logits in each])
        return Output(features.index_select(0, place)[0], logits.index_select(0, place)[0])

    def _see_first(self, column: Any, net: Net, x: Tensor) -> Layers:
        """Compute the hidden layers of the model itself."""
        hidden = name_hidden_layers(net.networks.eval.get_submodule("net"))
        if not hidden:
            return (column.backbone(x),)
        params, seen = net.params, [x.flatten(1)]
        for name in hidden:
            own = params[f"{name}.weight"], params[f"{name}.bias"]
            seen.append(torch.relu(F.linear(seen[-1], *own)))
        return tuple(seen[1:])
