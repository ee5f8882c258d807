"""Length of the gradient towards a uniform answer (Huang and others, 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engram.errors import check_float
from engram.models.forward_pass import Output
from engram.novelty.detector import State, mask_logits
from engram.novelty.last_layer import LastLayer, LastLayerDetector


@dataclass(frozen=True)
class GradNorm(LastLayerDetector):
    """L1 norm of the gradient of the cross-entropy to uniform probabilities, of the last layer.

    The gradient of its weights is an outer product, so the norm is that of the features times that
    of the difference between probabilities and the uniform ones: long features look familiar, those
    of rows far away as well. Huang, Geng and Li, On the importance of gradients for detecting
    distributional shifts in the wild, NeurIPS 2021.

    Parameters
    ----------
    temperature
        Divides the logits.

    Examples
    --------
    >>> import torch
    >>> layer = LastLayer(torch.eye(2), torch.zeros(2))
    >>> output = Output(torch.tensor([[2.0, -1.0]]), torch.tensor([[0.2, 0.8]]).log())
    >>> seen = torch.ones(2, dtype=torch.bool)
    >>> round(GradNorm().rate_features(output, layer, seen, {}).item(), 6)  # 3 times 0.6
    1.8
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_float("temperature", self.temperature, 0.0, float("inf"), open_low=True)

    @property
    def only_scores(self) -> tuple[str, ...]:
        return ("temperature",)

    def rate_features(
        self, output: Output, layer: LastLayer, columns: Tensor, state: State
    ) -> Tensor:
        likely = mask_logits(output.logits / self.temperature, columns).softmax(-1)
        away = (likely - 1 / columns.to(likely).sum().clamp(min=1)) * columns
        return away.abs().sum(-1) * output.features.abs().sum(-1) / self.temperature
