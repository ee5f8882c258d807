"""Energy less a virtual logit of what lies outside the space of training rows (Wang and others,
2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from engram.errors import bad, check_int
from engram.learner.batch import Batch
from engram.models.forward_pass import Output
from engram.novelty.class_bank import PER_CLASS, add_to_class_bank, make_class_bank
from engram.novelty.detector import Facts, State, mask_logits
from engram.novelty.last_layer import LastLayer, LastLayerDetector

LEAST_RESIDUAL = 1e-6  # of training rows, relative to their length: less is rounding


@dataclass(frozen=True)
class ViM(LastLayerDetector):
    """Energy, less a virtual logit: how far features are outside the space of training rows.

    Features are centred where all logits are nearest to 0; the space is that of their largest
    variances. The virtual logit is the length of the rest, in a unit that makes its mean over
    training rows that of the largest logits. Where these lie in the space entirely, the energy
    alone counts. Computed with the present last layer, for the rows kept of the head's classes.
    Wang and others, ViM: out-of-distribution with virtual-logit matching, CVPR 2022.

    Parameters
    ----------
    dimensions
        Those of the space; 0: as in the paper, 1000 of 2048 features or more, 512 of 768 or more,
        otherwise half of them.
    per_class
        Rows kept of every class, drawn at random.

    Examples
    --------
    >>> layer, seen = LastLayer(torch.tensor([[1.0, 0.0]]), torch.zeros(1)), torch.tensor([True])
    >>> kept = torch.tensor([[[4.0, 0.0], [4.0, 1.0], [4.0, -1.0]]])
    >>> state = {"rows": {"features": kept}, "rank": torch.ones(1, 3)}
    >>> some = torch.tensor([[4.0, 0.0], [4.0, 1.0]])  # a unit of 4 / (2 / 3)
    >>> output = Output(some, layer.logits(some))
    >>> ViM(dimensions=1).rate_features(output, layer, seen, state).round(decimals=4).tolist()
    [4.0, -2.0]
    """

    fits: ClassVar[bool] = True
    for_label_sets: ClassVar[bool] = True
    dimensions: int = 0
    per_class: int = PER_CLASS

    def __post_init__(self) -> None:
        check_int("dimensions", self.dimensions)
        check_int("per_class", self.per_class, 1)

    @property
    def name(self) -> str:
        return super().name.replace("vi_m", "vim")

    @property
    def only_scores(self) -> tuple[str, ...]:
        return ("dimensions",)

    def refuse(self, facts: Facts) -> None:
        super().refuse(facts)
        if self.dimensions >= facts.features:
            raise bad("dimensions", f"fewer than the {facts.features} features", self.dimensions)

    def start(self, facts: Facts) -> State:
        return make_class_bank(facts.like, facts.columns, self.per_class, features=facts.features)

    def learn(self, output: Output, batch: Batch, state: State) -> State:
        return add_to_class_bank(state, {"features": output.features}, batch, "vim")

    def rate_features(
        self, output: Output, layer: LastLayer, columns: Tensor, state: State
    ) -> Tensor:
        there = ((state["rank"] > 0) & columns[:, None]).flatten().double()
        own = LastLayer(*(one.double() for one in layer))
        own = LastLayer(own.weight * columns[:, None], own.bias * columns)
        origin = -torch.linalg.pinv(own.weight) @ own.bias
        rows = state["rows"]["features"].double().flatten(0, 1)
        centred = (rows - origin) * there[:, None]
        count = there.sum().clamp(min=1)
        basis = torch.linalg.eigh(centred.mT @ centred / count).eigenvectors
        outside = basis[:, : basis.shape[0] - self._dimensions(len(basis))]  # in rising order
        far = (centred @ outside).norm(dim=-1).sum() / count
        largest = (mask_logits(own.logits(rows), columns).amax(-1) * there).sum() / count
        exists = far > LEAST_RESIDUAL * centred.norm(dim=-1).sum() / count
        unit = torch.where(exists, largest / torch.where(exists, far, 1.0), 0.0)
        virtual: Tensor = ((output.features.double() - origin) @ outside).norm(dim=-1) * unit
        return own.energy(output.features.double(), columns) - virtual

    def _dimensions(self, features: int) -> int:
        usual = 1000 if features >= 2048 else 512 if features >= 768 else features // 2
        return self.dimensions or usual
