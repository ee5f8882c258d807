"""Energy of a sparse last layer (Sun and Li, 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from engram.errors import check_float
from engram.learner.batch import Batch
from engram.models.forward_pass import Output
from engram.novelty.class_bank import masked_quantile
from engram.novelty.detector import Facts, State
from engram.novelty.last_layer import LastLayer, LastLayerDetector


@dataclass(frozen=True)
class DICE(LastLayerDetector):
    """Energy by those weights alone that contribute most for training rows.

    The contribution of a weight is its product with the mean of its feature. Sun and Li, DICE:
    leveraging sparsification for out-of-distribution detection, ECCV 2022.

    Parameters
    ----------
    share
        Share of the weights of the head, those of the least contribution, that become 0.

    Examples
    --------
    >>> layer = LastLayer(torch.tensor([[1.0, 2.0]]), torch.zeros(1))
    >>> output, seen = Output(torch.tensor([[3.0, 5.0]]), torch.zeros(1, 1)), torch.tensor([True])
    >>> state = {"sums": torch.tensor([8.0, 2.0]), "rows": torch.tensor(2)}  # 4 and 2 contributed
    >>> DICE(share=0.5).rate_features(output, layer, seen, state).item()
    3.0
    """

    fits: ClassVar[bool] = True
    for_label_sets: ClassVar[bool] = True
    searched: ClassVar[Mapping[str, Sequence[Any]]] = {"share": (0.1, 0.3, 0.5, 0.7, 0.9)}
    share: float = 0.9

    def __post_init__(self) -> None:
        check_float("share", self.share, 0.0, 1.0)

    @property
    def only_scores(self) -> tuple[str, ...]:
        return ("share",)

    def start(self, facts: Facts) -> State:
        like = facts.like.double()
        return {"sums": like.new_zeros(facts.features), "rows": like.new_zeros(())}

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        w = (batch.w > 0).double()
        sums = state["sums"] + (output.features.double() * w[:, None]).sum(0)
        return {"sums": sums, "rows": state["rows"] + w.sum()}

    def rate_features(
        self, output: Output, layer: LastLayer, columns: Tensor, state: State
    ) -> Tensor:
        mean = state["sums"] / state["rows"].clamp(min=1)
        gives = mean.to(layer.weight) * layer.weight
        least = masked_quantile(gives, columns[:, None].expand_as(gives), self.share)
        weight = torch.where(gives > least, layer.weight, 0.0)
        return layer._replace(weight=weight).energy(output.features, columns)
