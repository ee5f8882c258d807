"""`Classifier`, a network of a backbone and a head, and `Encoder`, a frozen backbone whose features
are the inputs of a network.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engram.errors import bad
from engram.models.block_views import need_blocks
from engram.models.forward_pass import Output
from engram.models.insertions import Insertions, compute_features, compute_moments
from engram.models.layers import Dropout


class Classifier(nn.Module):
    """A backbone followed by a head; if the backbone has a root and a body, also its two parts.

    ``top(root(x))`` equals ``forward(x)``, so latents can be stored and the root be frozen.

    Parameters
    ----------
    backbone
        Module [B, ...] -> [B, F]. It may offer ``root(x)``, ``body(z)`` and ``root_modules``, the
        names of its submodules that belong to the root; and ``unit_latents = True`` if all outputs
        of the root are in [0, 1].
    head
        Module [B, F] -> [B, C] with ``class_parameters`` and ``reset_columns``.
    frozen
        The frozen backbone that computes the inputs of this network, if any.

    Examples
    --------
    >>> import torch
    >>> from engram.models import MLP, Linear
    >>> net = Classifier(MLP((4,), hidden=(8, 8)), Linear(8, 3))
    >>> net(torch.zeros(2, 4)).logits.shape, net.class_rows
    (torch.Size([2, 3]), ('head.weight', 'head.bias'))
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, frozen: Encoder | None = None) -> None:
        super().__init__()
        self.frozen = frozen
        self.backbone = backbone
        self.head = head
        self.mappable: bool = getattr(backbone, "mappable", True)
        self.unmappable = read_unmappable(backbone)
        self.mixes_rows: bool = getattr(backbone, "mixes_rows", False)
        for path, module in self.named_modules():
            if isinstance(module, Dropout):
                module.name = path  # two layers must not draw the same mask

    def forward(self, x: Tensor) -> Output:
        return self._classify(self.backbone(x))

    def _classify(self, features: Tensor) -> Output:
        logits: Tensor = self.head(features)
        # half precision has no number as low as the logit of a closed class
        return Output(features, logits.float() if logits.dtype == torch.float16 else logits)

    def root(self, x: Tensor) -> Tensor:
        """The latent of x, [B, ...]."""
        self._need_split()
        latent: Tensor = self._backbone.root(x)
        return latent

    def top(self, z: Tensor) -> Output:
        """Compute the output from a latent."""
        self._need_split()
        return self._classify(self._backbone.body(z))

    def insert(self, x: Tensor, more: Insertions, at_prompts: bool = False) -> Output:
        """Compute the output of a transformer with insertions (`engram.models.insertions`).

        `at_prompts`: from the outputs at inserted tokens, if there are any, instead of the row's.
        """
        blocks = need_blocks(self.backbone, "insert")
        return self._classify(compute_features(blocks, x, more, at_prompts=at_prompts))

    def input_moments(self, x: Tensor, more: Insertions) -> Tensor:
        """Compute the sums [depth, W, W] of h h' over the tokens h that attention is given."""
        return compute_moments(need_blocks(self.backbone, "input_moments"), x, more)

    @property
    def features(self) -> int:
        """Width of the features."""
        return int(self._head.features)

    @property
    def classes(self) -> int:
        """Number of classes the head has room for."""
        return int(self._head.classes)

    @property
    def class_rows(self) -> tuple[str, ...]:
        """Names of the parameters whose first axis is the class."""
        return tuple(f"head.{name}" for name in self._head.class_parameters)

    @property
    def splits(self) -> bool:
        """Whether the network has a root and a top."""
        return all(hasattr(self.backbone, name) for name in ("root", "body", "root_modules"))

    @property
    def root_names(self) -> tuple[str, ...]:
        """Names of the parameters of the root, to be frozen for latent replay."""
        inside = self.root_prefixes
        return tuple(name for name, _ in self.named_parameters() if name.startswith(inside))

    @property
    def root_prefixes(self) -> tuple[str, ...]:
        """Prefixes of the names of parameters and buffers of the root."""
        self._need_split()
        return tuple(f"backbone.{name}." for name in self._backbone.root_modules)

    @property
    def unit_latents(self) -> bool:
        """Whether latents are declared to lie in [0, 1]."""
        return bool(getattr(self.backbone, "unit_latents", False))

    # attributes of modules are typed Tensor | Module; duck typing is intended here
    @property
    def _backbone(self) -> Any:
        return self.backbone

    @property
    def _head(self) -> Any:
        return self.head

    def _need_split(self) -> None:
        if not self.splits:
            kind = type(self.backbone).__name__
            raise bad(
                "model", "a backbone with root_modules, root(x) and body(z) for latents", kind
            )


# -- What a network says about itself --------------------------------------------------------------


class NetworkTraits(NamedTuple):
    """What a network declares about itself; a module that declares nothing has the defaults."""

    class_rows: tuple[str, ...] = ()  # parameters whose first axis is the class
    splits: bool = False  # whether it has a root and a top
    sample_axes: tuple[int, ...] | None = None  # memory order that it prefers; None: as stored


class EdgeLayers(NamedTuple):
    """The layers of a graph network that pass messages along its edges."""

    edges: Tensor  # [2, E] from node, to node
    linear: tuple[str, ...]  # names of the linear map of each layer


def read_traits(network: nn.Module) -> NetworkTraits:
    """Return what a network, or one of its layers for the memory order, declares.

    Examples
    --------
    >>> read_traits(nn.Linear(2, 2))
    NetworkTraits(class_rows=(), splits=False, sample_axes=None)
    """
    usual = NetworkTraits()
    orders = (getattr(module, "sample_axes", None) for module in network.modules())
    return NetworkTraits(
        class_rows=tuple(getattr(network, "class_rows", usual.class_rows)),
        splits=bool(getattr(network, "splits", usual.splits)),
        sample_axes=next(filter(None, orders), usual.sample_axes),
    )


def read_unmappable(network: nn.Module) -> tuple[str, ...]:
    """Return the reasons why runs cannot be mapped over a network, as `adapt` found them."""
    return tuple(getattr(network, "unmappable", ()))


def read_edge_layers(network: nn.Module) -> EdgeLayers | None:
    """Return the edges and graph layers of a network; None if its backbone has none.

    A backbone has ``edges`` and names the submodules whose outputs are h W, of shape [..., V, D],
    in ``edge_maps``; or has ``layers``, each with a ``linear`` map.
    """
    backbone = getattr(network, "backbone", None)
    edges, layers = getattr(backbone, "edges", None), getattr(backbone, "layers", None)
    maps = getattr(backbone, "edge_maps", None)
    if maps is None and layers is not None and all(hasattr(one, "linear") for one in layers):
        maps = [f"layers.{i}.linear" for i in range(len(layers))]
    if edges is None or maps is None:
        return None
    return EdgeLayers(edges, tuple(f"backbone.{name}" for name in maps))


# -- A frozen backbone whose features are the inputs of the network --------------------------------


class Encoder:
    """A backbone in eval mode, whose weights are not trained, saved or copied with a run.

    Its features are computed by `engram.learner.feed.FeatureFeed`.

    Parameters
    ----------
    known
        All that decides the features besides the inputs, in words, for a backbone with the weights
        of a file; nothing for others, whose features are not kept on disk.
    dtype
        In which features are kept: ``float32`` or ``float16``.
    cache
        The folder in which features are kept on disk; None for the usual one, False for none.

    Examples
    --------
    >>> encoder = Encoder(nn.Linear(3, 2), 2)
    >>> encoder(torch.zeros(5, 3)).shape
    torch.Size([5, 2])
    """

    def __init__(
        self, backbone: nn.Module, width: int, known: str = "", *, dtype: str = "float32",
        cache: Any = None,
    ) -> None:  # fmt: skip
        self.module, self.width = backbone.eval().requires_grad_(False), width
        self.known, self.kept_as, self.cache = known, getattr(torch, dtype), cache
        digest = hashlib.sha256(f"{self.module!r} {dtype}".encode())
        for name, tensor in self.module.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        self.digest = digest.hexdigest()
        self._convolves = any(isinstance(one, nn.Conv2d) for one in self.module.modules())
        self._rows: dict[Any, int] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Encoder:
        return self  # it never changes: copies of a network share it

    def __call__(self, x: Tensor) -> Tensor:
        """Compute features [B, F] of inputs [B, ...], on their device, in passes that fit."""
        trim = getattr(self.module, "trim", None)  # a network of texts cuts padding off
        parts = x.split(self.rows_at_once(x))
        found = torch.cat([self._encode(part if trim is None else trim(part)) for part in parts])
        # as they are kept, so that what a deployed learner computes is what it was trained on
        return found if self.kept_as == torch.float32 else found.to(self.kept_as).to(found.dtype)

    def rows_at_once(self, x: Tensor) -> int:
        """Return how many rows of inputs like x [B, ...] are encoded in a pass.

        It follows from the largest input and output of a layer, which exceed the bytes of an image
        a hundred times, measured by a pass of one row.
        """
        place = tuple(x.shape[1:]), x.dtype, x.device.type
        if place not in self._rows:
            most = self._measure(x[:1]) if len(x) else 1
            room = ROOM_ON_DEVICE if x.device.type == "cuda" else ROOM_ON_HOST
            usual = max(1, ENTRIES_AT_ONCE // max(1, x[:1].nbytes))
            self._rows[place] = max(1, min(usual, room // max(1, LIVE_LAYERS * most)))
        return self._rows[place]

    def _measure(self, x: Tensor) -> int:
        """Return the bytes of the input and output of the largest layer, for one row."""
        sizes = [x.nbytes]

        def note(_: nn.Module, inputs: Any, output: Any) -> None:
            given = (*inputs, output)
            sizes.append(sum(one.nbytes for one in given if isinstance(one, Tensor)))

        leaves = [one for one in self.module.modules() if not list(one.children())]
        hooks = [one.register_forward_hook(note) for one in leaves]
        try:
            self._encode(x)
        finally:
            for hook in hooks:
                hook.remove()
        return max(sizes)

    def _encode(self, x: Tensor) -> Tensor:
        self.module.to(x.device, x.dtype)
        # oneDNN does not support float64
        if self._convolves and x.ndim == 4 and x.dtype != torch.float64:
            to_format: Any = self.module.to  # its overloads leave the memory format out
            to_format(memory_format=torch.channels_last)
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.inference_mode():
            found: Tensor = self.module(x)
        return found.clone()  # outside, so that gradients may be taken of what follows


ENTRIES_AT_ONCE = 1 << 24  # bytes of inputs encoded per pass, at most
ROOM_ON_HOST, ROOM_ON_DEVICE = 1 << 28, 1 << 32  # bytes of activations of a pass
LIVE_LAYERS = 2  # largest layers whose inputs and outputs are in memory at a time


class PrecomputedFeatures(nn.Module):
    """Placeholder for a frozen backbone: it passes features on to the head.

    Examples
    --------
    >>> PrecomputedFeatures(4)(torch.ones(2, 4)).shape
    torch.Size([2, 4])
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, z: Tensor) -> Tensor:
        return z
