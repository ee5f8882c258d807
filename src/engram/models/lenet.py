"""The two-convolution network of the facial-expression benchmark (ConFER)."""

from __future__ import annotations

from torch import Tensor, nn

from engram.errors import bad, check_choice, check_int
from engram.models.conv_blocks import ConvBlocks
from engram.models.forward_pass import check_image_shape
from engram.models.layers import BatchNorm


class LeNet(nn.Module):
    """Two 5x5 convolutions (20, 50) with batch norm and pooling, then a layer of 500.

    Parameters
    ----------
    hidden
        Width of the fully connected layer, which is the feature width.
    padding
        Padding of the convolutions: 0 as published; 2 admits images below 16 x 16.
    latent
        Where the root ends (latent replay). None: after the convolutions. A whole number: after a
        further sigmoid layer of that width (200 in the benchmark). "hidden": after `hidden`.

    Examples
    --------
    >>> net = LeNet((3, 100, 100))
    >>> net.hidden.in_features, net.features
    (24200, 500)
    """

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        *,
        hidden: int = 500,
        padding: int = 0,
        latent: int | str | None = None,
    ) -> None:
        super().__init__()
        check_int("padding", padding)
        channels, height, width = check_image_shape("lenet", sample_shape)
        maps = [_output_size(_output_size(size, padding), padding) for size in (height, width)]
        if min(maps) < 1:
            expected = f"images [C, H, W] of at least 16 x 16 for lenet (padding={padding})"
            raise bad("sample_shape", expected + ", or padding=2", sample_shape)
        self.convolutions = ConvBlocks(
            *_block(channels, 20, padding), *_block(20, 50, padding), nn.Flatten()
        )
        size = 50 * maps[0] * maps[1]
        self.squeeze: nn.Module | None = None
        if isinstance(latent, str):
            check_choice("latent", latent, ["hidden"])
        elif latent is not None:
            self.squeeze = nn.Sequential(
                nn.Linear(size, check_int("latent", latent, 1)), nn.Sigmoid()
            )
            size = latent
        self.hidden = nn.Linear(size, check_int("hidden", hidden, 1))
        self.norm = BatchNorm(hidden)
        self.features = hidden
        self._hidden_in_root = latent == "hidden"
        self.unit_latents = self.squeeze is not None  # a sigmoid ends the root
        self.root_modules: tuple[str, ...] = ("convolutions", "squeeze")
        if self._hidden_in_root:
            self.root_modules += ("hidden", "norm")

    def root(self, x: Tensor) -> Tensor:
        z: Tensor = self.convolutions(x)
        if self.squeeze is not None:
            z = self.squeeze(z)
        return self._last(z) if self._hidden_in_root else z

    def body(self, z: Tensor) -> Tensor:
        return z if self._hidden_in_root else self._last(z)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))

    def _last(self, z: Tensor) -> Tensor:
        y: Tensor = self.norm(self.hidden(z))
        return y.relu()


def _block(inputs: int, outputs: int, padding: int) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, 5, padding=padding)
    return [convolution, BatchNorm(outputs), nn.ReLU(), nn.MaxPool2d(2)]


def _output_size(size: int, padding: int) -> int:
    """Edge length after one convolution and pooling."""
    return (size - 4 + 2 * padding) // 2
