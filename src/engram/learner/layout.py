"""One run's parameters are one vector; a layout names its slices."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import compress
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from engram.errors import choose
from engram.learner.likeness import likeness
from engram.learner.network import NetworkSettings
from engram.learner.objectives import OBJECTIVES
from engram.models.conv_blocks import ConvBlocks
from engram.models.functional import ties
from engram.models.layers import Dropout


class Layout:
    """Names, shapes and places of the parameters inside the vector.

    Examples
    --------
    >>> layout = Layout({"w": torch.Size([2, 3]), "b": torch.Size([2])})
    >>> views = layout(torch.arange(8.0))
    >>> views["b"].tolist(), len(layout)
    ([6.0, 7.0], 8)
    """

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        self.shapes = dict(shapes)
        self.sizes = [shape.numel() for shape in self.shapes.values()]

    def __len__(self) -> int:
        return sum(self.sizes)

    def __call__(self, vector: Tensor) -> dict[str, Tensor]:
        """Named views of a vector [P]; writing into them writes the vector."""
        parts = vector.split(self.sizes)
        return {k: v.view(s) for (k, s), v in zip(self.shapes.items(), parts, strict=True)}

    def flatten(self, parts: Iterable[Tensor]) -> Tensor:
        return torch.cat([part.reshape(-1) for part in parts])


class Bundle(nn.Module):
    """All networks of a learner; ``forward(path, *args)`` reaches any method of any of them."""

    def __init__(self, networks: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, network in networks.items():
            self.add_module(name, network)
        for path, layer in self.named_modules():
            if isinstance(layer, Dropout) and not path.startswith("net."):
                layer.name = path  # those of the main network have their names

    def forward(self, path: str, *args: Any) -> Any:
        return attrgetter(path)(self)(*args)


def _aligned(parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Those whose size is a multiple of 4 first: all others would push them to odd addresses.

    Products and optimisers read four numbers at a time where an address allows it.
    """
    odd = {name for name, p in parameters.items() if p.numel() % 4}
    return dict(sorted(parameters.items(), key=lambda pair: pair[0] in odd))


class Networks:
    """The shared skeletons of a group of runs: structure without weights.

    Train and eval mode sit on the module, so there is one skeleton for each; a frozen teacher can
    then never update its statistics. Persistent buffers belong to a run; buffers registered with
    ``persistent=False`` (an adjacency matrix, say) are constants of the structure.
    """

    def __init__(
        self,
        networks: Mapping[str, nn.Module],
        objective: str = "ce",
        settings: Mapping[str, NetworkSettings] | None = None,
    ) -> None:
        self.settings = dict(settings or {})  # how further networks learn, where they say it
        self.objective = OBJECTIVES[choose("loss", objective, OBJECTIVES)]
        self.train = Bundle(networks).train()
        # a pass brings its weights along, so the modules may share those that they came with
        own_weights = {id(p): p for p in self.train.parameters()}
        self.eval = copy.deepcopy(self.train, own_weights).eval()
        # whether a forward pass draws anything: keys cost time where nothing needs them
        self.draws = any(isinstance(m, Dropout) and m.p > 0 for m in self.train.modules())
        own = _aligned(dict(self.train.named_parameters()))
        self.layout = Layout({name: p.shape for name, p in own.items()})
        self.ties = ties(self.train)
        owned = set(self.train.state_dict())
        self.buffer_names = [k for k, _ in self.train.named_buffers() if k in owned]
        self.traces: dict[Any, Any] = {}  # compiled training steps of these networks
        of_main = [name.startswith("net.") for name in self.layout.shapes]
        self.main_size = sum(compress(self.layout.sizes, of_main))  # parameters of the main network
        self.main_buffers = [name for name in self.buffer_names if name.startswith("net.")]
        rows = getattr(networks["net"], "class_rows", ())
        self.class_rows = [f"net.{name}" for name in rows]
        # axes of a sample as the main network wants them in memory; None: as they are
        orders = (getattr(module, "sample_axes", None) for module in networks["net"].modules())
        self.sample_axes: tuple[int, ...] | None = next(filter(None, orders), None)
        # whether images and 2d convolutions keep their channels last in memory, and whether layers
        # are done at once by kernels of their own; see `to`
        self.channels_last = self.fused = False
        for skeleton in (self.train, self.eval):
            skeleton.requires_grad_(False)
        # copies: a single run binds the skeleton to its own weights and leaves them there
        buffers = dict(self.train.named_buffers())
        self._vector = self.layout.flatten(p.detach() for p in own.values())
        self._free: dict[bytes, Tensor] = {}
        self._buffers = {k: buffers[k].detach().clone() for k in self.buffer_names}

    @property
    def unmappable(self) -> tuple[str, ...]:
        """Why runs cannot be mapped over one skeleton; nothing if they can."""
        found = (getattr(one, "unmappable", ()) for one in self.train.children())
        return tuple(reason for reasons in found for reason in reasons)

    def places(self, name: str) -> tuple[int, int]:
        """Where the parameters of a network begin and end in the vector."""
        prefix, start, found = f"{name}.", 0, [0, 0]
        for path, size in zip(self.layout.shapes, self.layout.sizes, strict=True):
            if path.startswith(prefix):
                found = [found[0] if found[1] else start, start + size]
            start += size
        return found[0], found[1]

    @property
    def splits(self) -> bool:
        """Whether the main network is a root and a top."""
        return bool(getattr(self.train.get_submodule("net"), "splits", False))

    @cached_property
    def root_names(self) -> list[str]:
        """Names of the parameters of the main network's root."""
        net: Any = self.train.get_submodule("net")
        return [f"net.{name}" for name in net.root_names]

    @property
    def root_prefixes(self) -> tuple[str, ...]:
        """What names of parameters and buffers of the main network's root begin with."""
        net: Any = self.train.get_submodule("net")
        return tuple(f"net.{prefix}" for prefix in net.root_prefixes)

    def initial(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The weights and buffers the modules came with, whatever was trained since."""
        return self._vector.clone(), {k: v.clone() for k, v in self._buffers.items()}

    def of_run(self, own: Networks) -> Networks:
        """These skeletons for a run whose networks, `own`, begin with other weights."""
        twin = copy.copy(self)
        twin._vector, twin._buffers = own._vector, own._buffers
        twin.__dict__.pop("start", None)  # of other weights
        return twin

    @property
    def nbytes(self) -> int:
        """About how much memory modules and weights take."""
        return 2 * self._vector.nbytes  # of the skeletons, and what they came with

    @cached_property
    def start(self) -> bytes:
        """A hash of what `initial` gives."""
        digest = hashlib.sha256()
        for part in (self._vector, *self._buffers.values()):
            digest.update(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.digest()

    @cached_property
    def form(self) -> Any:
        """What networks must share to be trained with one skeleton: all but the weights."""
        return likeness((self.train, self.settings)) if self.settings else likeness(self.train)

    def free(self, seen: Tensor) -> Tensor:
        """[P] everything but the rows of classes not seen [C] yet; to be copied, not written."""
        key = bytes(seen.numpy())
        if key not in self._free:  # a thousand runs open the same columns, stage by stage
            free = torch.ones_like(self._vector, dtype=torch.bool)
            views, shut = self.layout(free), (~seen).to(free.device)
            for name in self.class_rows:
                views[name][shut] = False
            self._free[key] = free
        return self._free[key]

    @property
    def convolves(self) -> bool:
        """Whether the main network has convolutions of images."""
        return any(isinstance(m, nn.Conv2d) for m in self.train.get_submodule("net").modules())

    @property
    def fusable(self) -> bool:
        """Whether layers of the main network can be done at once (`models.conv_blocks`)."""
        return any(isinstance(m, ConvBlocks) for m in self.train.get_submodule("net").modules())

    def to(
        self, device: torch.device, dtype: torch.dtype, *, channels_last: bool = False,
        fused: bool = False,
    ) -> Networks:  # fmt: skip
        """Move everything; `channels_last` is the order in which torch convolves fastest.

        `fused` lets layers that can be done at once be done so (`fusable`).
        """
        self._free.clear()
        if channels_last and self.convolves and self.sample_axes is None:
            self.channels_last, self.sample_axes = True, (1, 2, 0)
        self.fused = fused
        for skeleton in (self.train, self.eval):
            skeleton.to(device=device, dtype=dtype)
            for module in skeleton.modules() if self.fused else ():
                if isinstance(module, ConvBlocks):
                    module.fused = True
        self._vector = self._vector.to(device, dtype)
        self._buffers = {
            k: v.to(device, dtype if v.is_floating_point() else v.dtype)
            for k, v in self._buffers.items()
        }
        return self
