"""The slim VGG network of the novelty-detection benchmark."""

from __future__ import annotations

from torch import Tensor, nn

from engram.errors import check_int
from engram.models.forward_pass import check_image_shape, make_average_pool
from engram.models.layers import Dropout

# Convolutions of each stage as multiples of the width; stages but the last end in a pooling.
_STAGES = ((1,), (2,), (4, 4), (8, 8))
_POOLED = 7  # places of the last map on each side, whatever the size of the images


class VGG11Slim(nn.Module):
    """Slim VGG-11: six 3x3 convolutions (64, 128, 256, 256, 512, 512), then two layers of 500.

    Parameters
    ----------
    width
        Channels of the first convolution; the last ones have eight times as many.
    hidden
        Width of both fully connected layers, which is the feature width.
    dropout
        Probability of dropping after each of them.

    Notes
    -----
    The root (latent replay) ends after the convolutions. Detectors that read several layers find
    the last two convolutions as ``convolutions.11`` and ``convolutions.13``, what the first fully
    connected layer reads as ``pool`` and what the second reads as ``connected.2``.

    Examples
    --------
    >>> net = VGG11Slim((3, 56, 56))
    >>> net.connected[0].in_features, net.features
    (25088, 500)
    """

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        *,
        width: int = 64,
        hidden: int = 500,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        inputs, height, wide = check_image_shape("vgg11_slim", sample_shape, least=8)
        layers: list[nn.Module] = []
        for stage, factors in enumerate(_STAGES):
            if stage:
                layers.append(nn.MaxPool2d(2))
            for outputs in (factor * check_int("width", width, 1) for factor in factors):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
                inputs = outputs
        self.convolutions = nn.Sequential(*layers)
        self.pool = make_average_pool((height // 8, wide // 8), _POOLED)
        self.connected = nn.Sequential(
            nn.Linear(inputs * _POOLED**2, check_int("hidden", hidden, 1)),
            nn.ReLU(),
            Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            Dropout(dropout),
        )
        self.features = hidden
        self.root_modules = ("convolutions", "pool")
        for layer in self.modules():
            _initialize(layer)

    def root(self, x: Tensor) -> Tensor:
        z: Tensor = self.pool(self.convolutions(x))
        return z.flatten(1)

    def body(self, z: Tensor) -> Tensor:
        y: Tensor = self.connected(z)
        return y

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))


def _initialize(layer: nn.Module) -> None:
    """He's initialisation of convolutions, small normal numbers elsewhere, no biases."""
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, 0, 0.01)
    if isinstance(layer, (nn.Conv2d, nn.Linear)) and layer.bias is not None:
        nn.init.zeros_(layer.bias)
