"""Residual networks: ResNet-32 (IIRC), slim ResNet-18 (GEM, CND), ResNet-50 for large images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from engram.errors import check_int
from engram.models.forward_pass import check_image_shape
from engram.models.layers import BatchNorm, Dropout


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, relu: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = BatchNorm(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = BatchNorm(outputs)
        self.shortcut = _projection(inputs, outputs, stride)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first_norm(self.first(x)).relu()
        y = self.second_norm(self.second(y))
        y = y + (x if self.shortcut is None else self.shortcut(x))
        return y.relu() if self.relu else y


class Bottleneck(nn.Module):
    """Convolutions 1x1, 3x3 and 1x1, the last four times as wide, and a shortcut."""

    WIDER = 4

    def __init__(self, inputs: int, width: int, stride: int, *, relu: bool = True) -> None:
        super().__init__()
        outputs = self.WIDER * width
        self.first = nn.Conv2d(inputs, width, 1, bias=False)
        self.first_norm = BatchNorm(width)
        self.second = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.second_norm = BatchNorm(width)
        self.third = nn.Conv2d(width, outputs, 1, bias=False)
        self.third_norm = BatchNorm(outputs)
        self.shortcut = _projection(inputs, outputs, stride)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first_norm(self.first(x)).relu()
        y = self.second_norm(self.second(y)).relu()
        y = self.third_norm(self.third(y))
        y = y + (x if self.shortcut is None else self.shortcut(x))
        return y.relu() if self.relu else y


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """What a shortcut needs where shapes differ: a 1x1 convolution (option B)."""
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), BatchNorm(outputs))


class StagedNetwork(nn.Module):
    """A stem, stages of blocks, the mean over all places; the root ends before the last stage."""

    stem: nn.Module

    def add_stages(
        self, stages: Sequence[nn.Module], *, features: int, dropout: float, he: bool,
        embedding: int = 0,
    ) -> None:  # fmt: skip
        """Lay the stages behind the stem; `he` draws all convolutions as He et al. do."""
        self.lower = nn.Sequential(*stages[:-1])
        self.upper = stages[-1]
        self.dropout = Dropout(dropout)
        self.features = check_int("embedding", embedding, 0) or features
        self.embedding = nn.Linear(features, embedding) if embedding else None
        self.root_modules = ("stem", "lower")
        if he:
            for module in self.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def root(self, x: Tensor) -> Tensor:
        z: Tensor = self.lower(self.stem(x))
        return z

    def body(self, z: Tensor) -> Tensor:
        y: Tensor = self.upper(z).mean((-2, -1))
        if self.embedding is not None:
            y = self.embedding(y)
        y = self.dropout(y)
        return y

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))


class ResNet(StagedNetwork):
    """Residual network with a 3x3 stem of stride 1, no early pooling, a mean over the last map.

    Parameters
    ----------
    widths
        Channels of each stage; every stage but the first halves the map.
    blocks
        Blocks per stage.
    last_relu
        Whether the last block ends in ReLU; cosine heads want features of both signs.
    dropout
        Probability of dropping features before the head.
    embedding
        Width of a linear layer after the mean, whose outputs are then the features; 0: none.
    he
        He's normal initialisation of the convolutions instead of torch's default.

    Examples
    --------
    >>> ResNet((3, 32, 32), widths=(8, 16), blocks=1).features
    16
    """

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        *,
        widths: tuple[int, ...],
        blocks: int,
        last_relu: bool = True,
        dropout: float = 0.0,
        embedding: int = 0,
        he: bool = False,
    ) -> None:
        super().__init__()
        channels, _, _ = check_image_shape("resnet", sample_shape)
        inputs = widths[0]
        self.stem = nn.Sequential(
            nn.Conv2d(channels, inputs, 3, 1, 1, bias=False), BatchNorm(inputs), nn.ReLU()
        )
        stages = []
        for stage, width in enumerate(widths):
            layers = []
            for block in range(blocks):
                final = stage == len(widths) - 1 and block == blocks - 1
                stride = 2 if stage and not block else 1
                layers.append(BasicBlock(inputs, width, stride, relu=last_relu or not final))
                inputs = width
            stages.append(nn.Sequential(*layers))
        self.add_stages(stages, features=inputs, dropout=dropout, he=he, embedding=embedding)


def resnet32(
    sample_shape: tuple[int, ...], *, last_relu: bool = False, dropout: float = 0.0
) -> ResNet:
    """ResNet-32: 3 stages of 5 blocks (16, 32, 64), the last block without ReLU.

    Examples
    --------
    >>> resnet32((3, 32, 32)).features
    64
    """
    return ResNet(
        sample_shape,
        widths=(16, 32, 64),
        blocks=5,
        last_relu=last_relu,
        dropout=dropout,
        he=True,
    )


def resnet18_slim(
    sample_shape: tuple[int, ...], *, nf: int = 20, last_relu: bool = True, dropout: float = 0.0,
    embedding: int = 0,
) -> ResNet:  # fmt: skip
    """Slim ResNet-18: 4 stages of 2 blocks, nf (20: GEM, 40: novelty detection) to 8 nf wide.

    Examples
    --------
    >>> resnet18_slim((3, 56, 56), nf=40).features
    320
    >>> resnet18_slim((3, 56, 56), nf=40, embedding=200).features
    200
    """
    base = check_int("nf", nf, 1)
    return ResNet(
        sample_shape,
        widths=(base, 2 * base, 4 * base, 8 * base),
        blocks=2,
        last_relu=last_relu,
        dropout=dropout,
        embedding=embedding,
    )


class ResNet50(StagedNetwork):
    """ResNet-50: a 7x7 stem with 4x downsampling; 3, 4, 6, 3 bottlenecks; 2048 features.

    Parameters
    ----------
    last_relu
        Whether the last block ends in ReLU; cosine heads want features of both signs.
    dropout
        Probability of dropping features before the head.

    Examples
    --------
    >>> ResNet50((3, 224, 224)).features
    2048
    """

    def __init__(
        self, sample_shape: tuple[int, ...], *, last_relu: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        channels, _, _ = check_image_shape("resnet50", sample_shape)
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 64, 7, 2, 3, bias=False), BatchNorm(64), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        inputs, stages = 64, []
        for stage, blocks in enumerate((3, 4, 6, 3)):
            layers = []
            for block in range(blocks):
                final = stage == 3 and block == blocks - 1
                stride = 2 if stage and not block else 1
                relu = last_relu or not final
                layers.append(Bottleneck(inputs, 64 * 2**stage, stride, relu=relu))
                inputs = Bottleneck.WIDER * 64 * 2**stage
            stages.append(nn.Sequential(*layers))
        self.add_stages(stages, features=inputs, dropout=dropout, he=True)
