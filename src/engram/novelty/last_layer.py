"""The base class of detectors that compute with the weights of a linear last layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from engram.errors import bad
from engram.learner.networks import Net
from engram.models.forward_pass import Output
from engram.novelty.detector import Facts, OutputDetector, State, class_vectors, mask_logits


class LastLayer(NamedTuple):
    """A linear last layer.

    Examples
    --------
    >>> import torch
    >>> layer = LastLayer(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0.5, 0.0]))
    >>> layer.logits(torch.tensor([[3.0, 4.0]])).tolist()
    [[3.5, 8.0]]
    """

    weight: Tensor  # [C, F]
    bias: Tensor  # [C]

    def logits(self, features: Tensor) -> Tensor:
        """Compute logits [B, C] of features [B, F]."""
        return features @ self.weight.mT + self.bias

    def energy(self, features: Tensor, columns: Tensor) -> Tensor:
        """Compute the negative free energy [B] of features under the head with some columns."""
        return mask_logits(self.logits(features), columns).logsumexp(-1)


@dataclass(frozen=True)
class LastLayerDetector(OutputDetector):
    """A detector that computes with the weights of a linear last layer.

    Write `rate_features`, and `learn` where something is fitted. Other last layers are refused, and
    methods whose answers are not those of the last layer.
    """

    def rate_features(
        self, output: Output, layer: LastLayer, columns: Tensor, state: State
    ) -> Tensor:
        """Score [B] from features [B, F], logits [B, C] and the last layer."""
        raise NotImplementedError(f"{type(self).__name__}.rate_features is not written")

    def refuse(self, facts: Facts) -> None:
        learner, name = facts.learner, type(self).__name__
        if learner is None:
            return
        if learner.answer is not None:
            expected = f"one that answers by its network's last layer, for {name}"
            raise bad("method", expected, "one with an answer of its own")
        net = learner.networks.eval.get_submodule("net")
        if not isinstance(head := getattr(net, "head", None), nn.Linear):
            raise bad("model", f"a linear last layer for {name}", type(head).__name__)

    def _of(self, net: Net, output: Output, columns: Tensor, state: State) -> Tensor:
        rows, bias = class_vectors(net), net.params.head.get("bias")
        layer = LastLayer(rows, rows.new_zeros(len(rows)) if bias is None else bias)
        flat = Output(output.features.flatten(1), output.logits)
        return self.rate_features(flat, layer, columns, state)
