"""Progressive neural networks: a further network for each task, fed by those before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
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
        self.lateral = nn.ModuleList(
            nn.ModuleList(
                nn.Linear(layer.weight.shape[1], layer.weight.shape[0], bias=False)
                for _ in range(older)
            )
            for layer in fed
        )
        last = len(fed) - 1
        self.class_rows = (
            *(f"model.{name}" for name in model.class_rows),
            *(f"lateral.{last}.{k}.weight" for k in range(older)),
        )

    def forward(self, x: Tensor, older: tuple[Layers, ...]) -> tuple[Layers, Tensor]:
        """Compute the hidden layers and the logits from the hidden layers of older columns."""
        model: Any = self.model
        layers = hidden_layers(model)
        seen = [torch.relu(layers[0](x.flatten(1))) if layers else model.backbone(x)]
        for place, layer in enumerate(layers[1:]):
            seen.append(torch.relu(layer(seen[-1]) + self._from(older, place)))
        logits = model.head(seen[-1]) + self._from(older, len(self.lateral) - 1)
        return tuple(seen), logits

    def _from(self, older: tuple[Layers, ...], place: int) -> Tensor:
        links: Any = self.lateral[place]
        parts = [link(one[place]) for link, one in zip(links, older, strict=True)]
        return torch.stack(parts).sum(0)


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
        *_, (_, logits) = self.pass_columns(net, batch.x, state, batch.w)
        return {"task": net.task(batch, logits=logits)}

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        each = self.pass_columns(net, x, state)
        newest = torch.full_like(stage, len(each) - 1)
        place = torch.where(stage < 0, newest, stage).reshape(1)
        features = torch.stack([layers[-1].flatten(1) for layers, _ in each])
        logits = torch.stack([logits for _, logits in each])
        return Output(features.index_select(0, place)[0], logits.index_select(0, place)[0])

    def pass_columns(
        self, net: Net, x: Tensor, state: State, w: Tensor | None = None
    ) -> list[tuple[Layers, Tensor]]:
        """Compute the hidden layers and logits of all columns; older ones are not trained."""
        count = len(state["columns"])
        found = [self._first(net if not count else net.detached(), net, x, w)]
        for number in range(1, count + 1):
            older = tuple(layers for layers, _ in found)
            if number < count:
                found.append(getattr(net.detached(), f"column{number}")(x, older))
            else:
                found.append(getattr(net, f"column{number}")(x, older, w=w))
        return found

    def _first(self, column: Any, net: Net, x: Tensor, w: Tensor | None) -> tuple[Layers, Tensor]:
        """Compute those of the model itself."""
        names = [f"net.backbone.{name}" for name in ("lower", "upper")]
        hidden = [
            name
            for name, layer in net._skeleton().named_modules()
            if isinstance(layer, nn.Linear) and name.rpartition(".")[0] in names
        ]
        whole = column(x, want=tuple(hidden)) if column is not net else net(x, w, tuple(hidden))
        layers = tuple(torch.relu(whole.layers[name]) for name in hidden)
        return layers or (whole.features,), whole.logits
