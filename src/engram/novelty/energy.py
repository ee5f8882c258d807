"""Free energy of the logits (Liu and others, 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from engram.errors import check_float
from engram.models.forward_pass import Output
from engram.novelty.detector import OutputDetector, State, mask_logits


@dataclass(frozen=True)
class Energy(OutputDetector):
    """Negative free energy, T logsumexp(z / T): large where any logit of the head is large.

    Parameters
    ----------
    temperature
        T above.

    Examples
    --------
    >>> import torch
    >>> output = Output(torch.zeros(1, 2), torch.tensor([[1.0, 1.0, 5.0]]))
    >>> two = torch.tensor([True, True, False])  # the third column is not this head's
    >>> round(Energy().familiarity(output, torch.zeros(3, 2), two, {}).item(), 4)
    1.6931
    """

    for_label_sets: ClassVar[bool] = True  # it grows with every logit, whatever the others are
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_float("temperature", self.temperature, 0.0, float("inf"), open_low=True)

    @property
    def only_scores(self) -> tuple[str, ...]:
        return ("temperature",)

    def familiarity(self, output: Output, rows: Tensor, columns: Tensor, state: State) -> Tensor:
        t = self.temperature
        return t * (mask_logits(output.logits, columns) / t).logsumexp(-1)
