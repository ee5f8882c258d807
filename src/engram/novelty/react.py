"""Energy of features that are cut off above (Sun and others, 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from engram.errors import check_float, check_int
from engram.learner.batch import Batch
from engram.models.forward_pass import Output
from engram.novelty.class_bank import (
    PER_CLASS,
    add_to_class_bank,
    make_class_bank,
    masked_quantile,
)
from engram.novelty.detector import Facts, State
from engram.novelty.last_layer import LastLayer, LastLayerDetector


@dataclass(frozen=True)
class ReAct(LastLayerDetector):
    """Energy after features are cut off at a quantile of those of training rows.

    Novel rows owe much of their energy to a few features that are very large. Sun, Guo and Li,
    ReAct: out-of-distribution detection with rectified activations, NeurIPS 2021.

    Parameters
    ----------
    share
        Share of the features of training rows that are below the cut.
    per_class
        Rows kept of every class, drawn at random.

    Examples
    --------
    >>> layer, seen = LastLayer(torch.eye(2), torch.zeros(2)), torch.tensor([True, False])
    >>> output = Output(torch.tensor([[3.0, 1.0]]), torch.zeros(1, 2))
    >>> ReAct().rate_features(output, layer, seen, {"cut": torch.tensor(2.0)}).item()
    2.0
    """

    fits: ClassVar[bool] = True
    for_label_sets: ClassVar[bool] = True
    searched: ClassVar[Mapping[str, Sequence[Any]]] = {"share": (0.8, 0.85, 0.9, 0.95, 0.99)}
    share: float = 0.9
    per_class: int = PER_CLASS

    def __post_init__(self) -> None:
        check_float("share", self.share, 0.0, 1.0)
        check_int("per_class", self.per_class, 1)

    @property
    def name(self) -> str:
        return super().name.replace("re_act", "react")

    def start(self, facts: Facts) -> State:
        bank = make_class_bank(facts.like, facts.columns, self.per_class, features=facts.features)
        return {**bank, "cut": facts.like.new_full((), torch.inf)}

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        bank = add_to_class_bank(state, {"features": output.features}, batch, "react")
        return {**state, **bank}

    def finish(self, state: State) -> State:
        features = state["rows"]["features"]
        there = (state["rank"] > 0)[..., None].expand_as(features)
        return {**state, "cut": masked_quantile(features, there, self.share)}

    def rate_features(
        self, output: Output, layer: LastLayer, columns: Tensor, state: State
    ) -> Tensor:
        return layer.energy(torch.minimum(output.features, state["cut"]), columns)
