"""Multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from engram.errors import bad, check_bool, check_int


class MLP(nn.Module):
    """Multi-layer perceptron with ReLU on flattened inputs of any shape.

    Parameters
    ----------
    hidden
        Widths of the hidden layers; the last one is the feature width.
    split
        How many hidden layers belong to the root (latent replay).
    latent
        Width of a further sigmoid layer that ends the root, for generators of latents in [0, 1].
    xavier
        Initial weights of the hidden layers by Glorot and Bengio (uniform), biases 0, instead of
        PyTorch's. The head has an option of the same name.

    Examples
    --------
    >>> MLP((1, 28, 28))(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 256])
    """

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        *,
        hidden: Sequence[int] = (256, 256),
        split: int = 1,
        latent: int | None = None,
        xavier: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(hidden, (list, tuple)) or not hidden:
            raise bad("hidden", "widths such as (256, 256)", hidden)
        widths = [check_int("hidden", width, 1) for width in hidden]
        if check_int("split", split) > len(widths):
            raise bad("split", f"at most the {len(widths)} hidden layers", split)
        width = 1
        for size in sample_shape:
            width *= size
        self.lower, width = _stack(width, widths[:split])
        self.latent = None if latent is None else nn.Linear(width, check_int("latent", latent, 1))
        self.upper, width = _stack(width if latent is None else latent, widths[split:])
        self.features = width
        self.root_modules = ("lower", "latent")
        self.unit_latents = latent is not None  # a sigmoid ends the root
        if check_bool("xavier", xavier):
            for layer in (*self.lower, *self.upper):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def root(self, x: Tensor) -> Tensor:
        if x.ndim != 2:
            x = x.flatten(1)
        for layer in self.lower:
            x = torch.relu(layer(x))
        return x if self.latent is None else torch.sigmoid(self.latent(x))

    def body(self, z: Tensor) -> Tensor:
        for layer in self.upper:
            z = torch.relu(layer(z))
        return z

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))


def _stack(width: int, widths: list[int]) -> tuple[nn.ModuleList, int]:
    layers = nn.ModuleList()
    for size in widths:
        layers.append(nn.Linear(width, size))
        width = size
    return layers, width
