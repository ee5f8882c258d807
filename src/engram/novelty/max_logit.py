"""Largest logit (Hendrycks and others, 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from engram.models.forward_pass import Output
from engram.novelty.detector import OutputDetector, State, mask_logits


@dataclass(frozen=True)
class MaxLogit(OutputDetector):
    """Largest logit of the head, which, unlike a probability, falls if all of them are small.

    Hendrycks and others, Scaling out-of-distribution detection for real-world settings, ICML 2022.

    Examples
    --------
    >>> import torch
    >>> output = Output(torch.zeros(1, 2), torch.tensor([[1.0, 3.0, 5.0]]))
    >>> two = torch.tensor([True, True, False])  # the third column is not this head's
    >>> MaxLogit().familiarity(output, torch.zeros(3, 2), two, {}).item()
    3.0
    """

    for_label_sets: ClassVar[bool] = True

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        return mask_logits(output.logits, columns).amax(-1)
