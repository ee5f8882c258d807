"""Activations shaped row by row (Djurisic and others, 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from engram.errors import check_choice, check_float
from engram.models.forward_pass import Output
from engram.novelty.detector import State
from engram.novelty.last_layer import LastLayer, LastLayerDetector


@dataclass(frozen=True)
class ASH(LastLayerDetector):
    """Energy after each row has lost its small features: those of known rows keep their class.

    Supposes features that are not negative, as after ReLU. Djurisic and others, Extremely simple
    activation shaping for out-of-distribution detection, ICLR 2023.

    Parameters
    ----------
    share
        Share of the features, the smallest of the row, that become 0.
    variant
        What becomes of the others. ``s``: all grow by exp(sum before / sum after). ``b``: all
        become equal, with the sum before. ``p``: nothing.

    Examples
    --------
    >>> layer, seen = LastLayer(torch.eye(2), torch.zeros(2)), torch.tensor([True, False])
    >>> output = Output(torch.tensor([[3.0, 1.0]]), torch.zeros(1, 2))
    >>> ASH(share=0.5, variant="b").rate_features(output, layer, seen, {}).item()
    4.0
    """

    for_label_sets: ClassVar[bool] = True
    searched: ClassVar[Mapping[str, Sequence[Any]]] = {"share": (0.65, 0.7, 0.75, 0.8, 0.85, 0.9)}
    share: float = 0.65
    variant: str = "s"

    def __post_init__(self) -> None:
        check_float("share", self.share, 0.0, 1.0)
        check_choice("variant", self.variant, ("s", "b", "p"))

    @property
    def only_scores(self) -> tuple[str, ...]:
        return ("share", "variant")

    def rate_features(
        self, output: Output, layer: LastLayer, columns: Tensor, state: State
    ) -> Tensor:
        return layer.energy(self._shape(output.features), columns)

    def _shape(self, features: Tensor) -> Tensor:
        width = features.shape[-1]
        stay = max(1, width - round(width * self.share))
        values, places = features.topk(stay, dim=-1)
        whole, rest = features.sum(-1, keepdim=True), values.sum(-1, keepdim=True)
        if self.variant == "b":
            values = (whole / stay).expand_as(values)
        if self.variant == "s":
            # of features that are not negative, the ratio lies between these bounds
            ratio = torch.where(rest > 0, whole / rest, 1.0).clamp(1.0, width / stay)
            values = values * ratio.exp()
        return torch.zeros_like(features).scatter(-1, places, values)
