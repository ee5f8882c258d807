"""ODIN: temperature and a small step towards certainty (Liang and others, 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from engram.errors import bad, check_float
from engram.learner.networks import Net
from engram.models.functional_call import differentiate
from engram.novelty.detector import Detector, Facts, State, mask_logits


@dataclass(frozen=True)
class ODIN(Detector):
    """Largest temperature-scaled softmax probability after perturbing the input towards it.

    Familiar inputs gain more from the step than foreign ones.

    Parameters
    ----------
    temperature
        Divides the logits.
    epsilon
        Size of the step in units of the raw input (a pixel lies between 0 and 1); divided by the
        deviation where inputs are normalised.
    """

    searched: ClassVar[Mapping[str, Sequence[Any]]] = {
        "epsilon": (0.0, 0.0005, 0.001, 0.0014, 0.002, 0.01)
    }
    temperature: float = 1000.0
    epsilon: float = 0.0014

    def __post_init__(self) -> None:
        check_float("temperature", self.temperature, 0.0, float("inf"), open_low=True)
        check_float("epsilon", self.epsilon, 0.0, float("inf"))

    @property
    def only_scores(self) -> tuple[str, ...]:
        return ("temperature", "epsilon")

    def start(self, facts: Facts) -> State:
        if facts.tokens and self.epsilon:
            raise bad(
                "ODIN.epsilon", "0 for texts, whose token ids take no small step", self.epsilon
            )
        return {"std": facts.std}

    def score(self, net: Net, x: Tensor, columns: Tensor, state: State) -> Tensor:
        def uncertainty(x: Tensor) -> Tensor:
            likely = (mask_logits(net(x).logits, columns) / self.temperature).log_softmax(-1)
            return -likely.amax(-1).sum()

        if self.epsilon:
            slope = differentiate(uncertainty)(x)
            x = x - self.epsilon * sign_or_one(slope) / state["std"]
        return (mask_logits(net(x).logits, columns) / self.temperature).softmax(-1).amax(-1)


def sign_or_one(slope: Tensor) -> Tensor:
    """Return the sign of a gradient, with 1 for 0."""
    return torch.where(slope >= 0, 1.0, -1.0).to(slope)
