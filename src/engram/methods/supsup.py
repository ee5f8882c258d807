"""SupSup: a mask for each task over random weights that never move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from engram import keys
from engram.errors import bad, check_float
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.learner.parameter_layout import Views
from engram.methods.method import Method, MethodNetworks, State, Terms
from engram.methods.task_masks import (
    append,
    choose_row,
    choose_statistics,
    keep_statistics,
    refuse_known_classes,
)
from engram.models.forward_pass import Output
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline


@dataclass(frozen=True, kw_only=True)
class SupSup(Method):
    """A network of random weights that stand still, and a mask over them for each task.

    Every weight of a linear or convolutional layer is plus or minus one constant. A task learns a
    score for each weight, and the weights with the largest |score| of a layer are in its mask; the
    gradient passes through as if the mask were |score| (edge-popup). Masks are kept, so nothing is
    forgotten, but the task of a row must be given.

    Parameters
    ----------
    share
        Share of the weights of every layer that a mask holds.

    Examples
    --------
    >>> SupSup().task_identity, SupSup().grows
    ('required', True)
    >>> SupSup(share=0.0)
    Traceback (most recent call last):
    ...
    engram.errors.BadArgument: share: expected a number in (0, 1], got 0.0

    References
    ----------
    Wortsman et al. 2020, Advances in Neural Information Processing Systems.
    """

    task_identity: ClassVar[str] = "required"
    grows: ClassVar[bool] = True  # by the masks of each task

    share: float = 0.5

    def __post_init__(self) -> None:
        check_float("share", self.share, 0.0, 1.0, open_low=True)

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        return {"scores": Scores(stream.build_model())}

    def start(self, learner: RunLearner, task: Task) -> None:
        if not learner.stage:
            refuse_known_classes(learner, "SupSup")
        weights, rows = learner.params, learner.networks.class_rows
        scores: Any = learner.networks.eval.get_submodule("scores")
        for place, layer in enumerate(scores.layers):
            weight, score = weights[f"net.{layer}.weight"], weights[f"scores.each.{place}"]
            own = learner.new.to(learner.device) if f"scores.each.{place}" in rows else slice(None)
            inputs = weight[0].numel()
            weight[own] = weight[own].sign() * math.sqrt(2 / inputs)  # the same after it
            if (bias := weights.get(f"net.{layer}.bias")) is not None:
                bias[own] = 0.0
            key = keys.fold(learner.seed, "scores", learner.stage, place)
            drawn = (2 * keys.uniform(key, *score.shape) - 1) / math.sqrt(inputs)
            score[own] = drawn.to(score)[own]
        learner.free = learner.free.clone()
        for name, free in learner.layout(learner.free).items():
            if not name.startswith("scores."):
                free.fill_(False)

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        chosen = {}
        for name, score in self._scores(net).items():
            size = score.abs()
            mask = choose_largest(size.detach(), self.share, by_row=self._is_head(net, name))
            chosen[name] = mask.to(size) + (size - size.detach())  # the mask, with |score|'s slope
        inner = net.given(mask_weights(net, chosen), moves_statistics=True)
        return {"task": inner.task(batch)}

    def finish(self, learner: RunLearner, task: Task) -> None:
        net, kept = learner.net(), learner.state.get("masks", {})
        masks = {name: append(kept.get(name), mask) for name, mask in self._masks(net).items()}
        learner.state = {**learner.state, "masks": masks}
        keep_statistics(learner)

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        masks, kept = self._masks(net), state.get("masks", {})
        for name in kept:
            masks[name] = choose_row(kept[name], stage, masks[name])
        vector = net.networks.layout.flatten(mask_weights(net, masks).values())
        found: Output = net.frozen(
            {"vector": vector, "buffers": choose_statistics(net, state, stage)}
        )(x)
        return found

    def _scores(self, net: Net) -> dict[str, Tensor]:
        """Return the scores by the names of the weights."""
        params = net.params
        return {
            f"net.{layer}.weight": params[f"scores.each.{place}"]
            for place, layer in enumerate(net.scores.layers)
        }

    def _masks(self, net: Net) -> dict[str, Tensor]:
        return {
            name: choose_largest(score.abs(), self.share, by_row=self._is_head(net, name))
            for name, score in self._scores(net).items()
        }

    def _is_head(self, net: Net, name: str) -> bool:
        return name in net.networks.class_rows


def choose_largest(sizes: Tensor, share: float, *, by_row: bool = False) -> Tensor:
    """Return a mask of a share of the entries, the largest ones; of every row, if `by_row`.

    Examples
    --------
    >>> choose_largest(torch.tensor([[4.0, 3.0], [1.0, 2.0]]), 0.5).tolist()
    [[True, True], [False, False]]
    >>> choose_largest(torch.tensor([[4.0, 3.0], [1.0, 2.0]]), 0.5, by_row=True).tolist()
    [[True, False], [False, True]]
    """
    rows = sizes.flatten(1) if by_row else sizes.reshape(1, -1)
    length = rows.shape[-1]
    least = rows.kthvalue(length - max(1, round(share * length)) + 1, -1, keepdim=True).values
    return (rows >= least).view(sizes.shape)


def mask_weights(net: Net, masks: Mapping[str, Tensor]) -> Views:
    """Return the weights of a network, some of them multiplied by masks."""
    weights = Views(net.params)
    for name, mask in masks.items():
        weights[name] = weights[name] * mask
    return weights


class Scores(nn.Module):
    """Scores of the weights of all linear and convolutional layers of a model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        own = dict(model.named_parameters())
        kinds = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
        self.layers = tuple(
            name for name, module in model.named_modules()
            if f"{name}.weight" in own and (isinstance(module, kinds) or name == "head")
        )  # fmt: skip
        if self.layers == ("head",):
            raise bad("model", "linear or convolutional layers to mask", type(model.backbone))
        self.each = nn.ParameterList(
            torch.zeros_like(own[f"{name}.weight"]) for name in self.layers
        )
        self.class_rows = tuple(
            f"each.{place}" for place, name in enumerate(self.layers)
            if f"{name}.weight" in model.class_rows
        )  # fmt: skip
