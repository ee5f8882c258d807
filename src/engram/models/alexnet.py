"""AlexNet, from scratch or with the published weights of its classifier for ImageNet."""

from __future__ import annotations

from torch import Tensor, nn

from engram.errors import check_int
from engram.models.forward_pass import check_image_shape, make_average_pool
from engram.models.layers import Dropout
from engram.models.pretrained_weights import check_weights, load_into, read_weights

_POOLED = 6  # places of the last map on each side, whatever the size of the images
_MIN_SIZE = 63  # the smallest image of which the last pooling leaves a place
_PUBLISHED = {"convolutions": "features", "connected": "classifier"}  # names of its authors' parts


class AlexNet(nn.Module):
    """AlexNet: five convolutions (64, 192, 384, 256, 256), then two layers of 4096.

    Parameters
    ----------
    hidden
        Width of both fully connected layers, which is the feature width.
    dropout
        Probability of dropping before each of them.
    weights, sha256
        A file of weights and its SHA-256, such as torchvision's ``alexnet-owt-7be5be79.pth``,
        trained on ImageNet (the name ends in the first digits of its checksum). Without them the
        network begins from scratch. The layer for ImageNet's classes is left out.

    Notes
    -----
    The root (latent replay) ends after the convolutions. Detectors that read several layers find
    the last two convolutions as ``convolutions.8`` and ``convolutions.10``, what the first fully
    connected layer reads as ``pool`` and what the second reads as ``connected.3``.

    Examples
    --------
    >>> net = AlexNet((3, 224, 224), hidden=32)
    >>> net.connected[1].in_features, net.features
    (9216, 32)
    """

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        *,
        hidden: int = 4096,
        dropout: float = 0.5,
        weights: str | None = None,
        sha256: str | None = None,
    ) -> None:
        super().__init__()
        channels, height, width = check_image_shape("alexnet", sample_shape, least=_MIN_SIZE)
        check_weights(weights, sha256)
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.pool = make_average_pool((_output_size(height), _output_size(width)), _POOLED)
        self.connected = nn.Sequential(
            Dropout(dropout),
            nn.Linear(256 * _POOLED**2, check_int("hidden", hidden, 1)),
            nn.ReLU(),
            Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
        )
        self.features = hidden
        self.root_modules = ("convolutions", "pool")
        if weights is not None and sha256 is not None:
            load_into(self, read_weights(weights, sha256), weights, renamed=_PUBLISHED)

    def root(self, x: Tensor) -> Tensor:
        z: Tensor = self.pool(self.convolutions(x))
        return z.flatten(1)

    def body(self, z: Tensor) -> Tensor:
        y: Tensor = self.connected(z)
        return y

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))


def _output_size(size: int) -> int:
    """Edge length after all convolutions and poolings."""
    size = (size + 2 * 2 - 11) // 4 + 1
    for _ in range(3):
        size = (size - 3) // 2 + 1
    return size
