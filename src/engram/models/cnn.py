"""The four-convolution network of the CIFAR-100 protocol of RWalk."""

from __future__ import annotations

from torch import Tensor, nn

from engram.models.forward_pass import check_image_shape
from engram.models.layers import Dropout


class CNN(nn.Module):
    """Four 3x3 convolutions (32, 32, 64, 64) with two pooling layers and dropout.

    Parameters
    ----------
    dropout
        Probability of dropping after each pooling.

    Examples
    --------
    >>> CNN((3, 32, 32)).features
    4096
    """

    def __init__(self, sample_shape: tuple[int, ...], *, dropout: float = 0.5) -> None:
        super().__init__()
        channels, height, width = check_image_shape("cnn", sample_shape, least=4)
        self.lower = _half(channels, 32, dropout)
        self.upper = _half(32, 64, dropout)
        self.features = 64 * (height // 4) * (width // 4)
        self.root_modules = ("lower",)

    def root(self, x: Tensor) -> Tensor:
        z: Tensor = self.lower(x)
        return z

    def body(self, z: Tensor) -> Tensor:
        y: Tensor = self.upper(z)
        return y.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))


def _half(inputs: int, outputs: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Dropout(dropout),
    )
