"""Maximum softmax probability (Hendrycks and Gimpel, 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engram.models.forward_pass import Output
from engram.novelty.detector import OutputDetector, State, mask_logits


@dataclass(frozen=True)
class Softmax(OutputDetector):
    """Largest softmax probability of the head: a network is more confident on what it knows.

    Examples
    --------
    >>> import torch
    >>> logits, seen = torch.tensor([[2.0, 1.0, 0.0]]), torch.ones(3, dtype=torch.bool)
    >>> output = Output(torch.zeros(1, 2), logits)
    >>> round(Softmax().familiarity(output, torch.zeros(3, 2), seen, {}).item(), 6)
    0.665241
    """

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        return mask_logits(output.logits, columns).softmax(-1).amax(-1)
