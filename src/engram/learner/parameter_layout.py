"""The parameters of a run as one vector: their layout, the networks that share a structure, the
additional networks of a method, and the slices that are trainable.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from engram.errors import bad, check_choice, check_float, check_int
from engram.learner.objectives import Objective
from engram.learner.row_features import RowFeatures
from engram.learner.structural_key import structural_key
from engram.models.classifier import (
    EdgeLayers,
    read_edge_layers,
    read_traits,
    read_unmappable,
)
from engram.models.conv_blocks import ConvBlocks
from engram.models.functional_call import find_tied_names
from engram.models.layers import Dropout

MAIN = "net"  # name of the main network


class Views(dict[str, Tensor]):
    """Tensors by name, and as attributes of the networks; those of the main one come without "net".

    Examples
    --------
    >>> views = Views({"net.head.weight": torch.ones(2), "generator.0.bias": torch.zeros(1)})
    >>> views["net.head.weight"] is views.head.weight
    True
    >>> views.generator["0.bias"]
    tensor([0.])
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        for path in (name, f"{MAIN}.{name}"):
            if path in self:
                return self[path]
            inside = {k[len(path) + 1 :]: v for k, v in self.items() if k.startswith(f"{path}.")}
            if inside:
                return Views(inside)
        raise AttributeError(f"no tensor is called {name!r}; there are {', '.join(self)}")


class Layout:
    """Names, shapes and positions of the parameters inside the vector.

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

    def __call__(self, vector: Tensor) -> Views:
        """Return named views of a vector [P]; writing into them writes the vector."""
        parts = vector.split(self.sizes)
        return Views((k, v.view(s)) for (k, s), v in zip(self.shapes.items(), parts, strict=True))

    def flatten(self, parts: Iterable[Tensor]) -> Tensor:
        """Concatenate parts, in the order of the layout, to a vector [P]."""
        return torch.cat([part.reshape(-1) for part in parts])


class NetworkBundle(nn.Module):
    """All networks of a learner; ``forward(path, *args)`` calls any method of any of them."""

    def __init__(self, networks: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, network in networks.items():
            self.add_module(name, network)
        for path, layer in self.named_modules():
            if isinstance(layer, Dropout) and not path.startswith("net."):
                layer.name = path  # layers of the main network have names already

    def forward(self, path: str, *args: Any) -> Any:
        return attrgetter(path)(self)(*args)

    def take_constants(self) -> dict[str, str]:
        """Turn parameters that ask for no gradient into buffers that are not saved with a run.

        Returns their names, each with the first name of the same tensor. As such buffers they are
        part of the structure: no vector holds them, and runs share networks only if they are equal.
        """
        found: dict[str, str] = {}
        made: dict[int, tuple[str, Tensor]] = {}
        for path, layer in self.named_modules():
            for name, value in [*layer._parameters.items()]:
                if value is None or value.requires_grad:
                    continue
                full = f"{path}.{name}"
                first, fixed = made.setdefault(id(value), (full, value.detach()))
                del layer._parameters[name]
                layer.register_buffer(name, fixed, persistent=False)
                setattr(layer, name, fixed)  # recurrent layers keep a list of their weights
                found[full] = first
        return found


def read_tensor(module: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer by its full name."""
    found: Tensor = attrgetter(name)(module)
    return found


def write_tensor(module: nn.Module, name: str, value: Tensor) -> None:
    """Replace a buffer by its full name."""
    owner, _, last = name.rpartition(".")
    setattr(module.get_submodule(owner), last, value)


def _align(parameters: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Sort parameters whose size is a multiple of 4 to the front, so that they stay aligned.

    Matrix products and optimisers load four numbers at a time from aligned addresses.
    """
    odd = {name for name, p in parameters.items() if p.numel() % 4}
    return dict(sorted(parameters.items(), key=lambda pair: pair[0] in odd))


class Networks:
    """The networks of a group of runs as skeletons: structure without weights.

    Train and eval mode are attributes of a module, so there is one skeleton for each mode, and a
    frozen teacher can never update its statistics. Persistent buffers belong to a run; buffers
    registered with ``persistent=False`` (such as an adjacency matrix) are part of the structure,
    and so are parameters with ``requires_grad=False``: constants, held once for all runs.
    """

    def __init__(
        self,
        networks: Mapping[str, nn.Module],
        objective: Objective | None = None,
        settings: Mapping[str, NetworkSettings] | None = None,
    ) -> None:
        self.settings = dict(settings or {})  # learning settings of additional networks
        self.objective = objective or Objective()
        self.train = NetworkBundle(networks).train()
        # constant parameters by all their names, each with its first one
        self.constant_names = self.train.take_constants()
        # every pass substitutes weights, so both skeletons may share their initial ones
        own_weights: dict[int, Any] = {id(p): p for p in self.train.parameters()}
        own_weights |= {id(value): value for value in self.constants.values()}
        self.eval = copy.deepcopy(self.train, own_weights).eval()
        # whether a forward pass draws random numbers: creating keys takes time
        self.draws = any(isinstance(m, Dropout) and m.p > 0 for m in self.train.modules())
        own = _align(dict(self.train.named_parameters()))
        self.layout = Layout({name: p.shape for name, p in own.items()})
        self.ties = find_tied_names(self.train)
        owned = set(self.train.state_dict())
        self.buffer_names = [k for k, _ in self.train.named_buffers() if k in owned]
        self.traces: dict[Any, Any] = {}  # compiled training steps of these networks
        # features of the rows of a run's data under these constants; the engine sets it
        self.row_features: RowFeatures | None = None
        of_main = [name.startswith("net.") for name in self.layout.shapes]
        self.main_size = sum(compress(self.layout.sizes, of_main))  # parameters of the main network
        self.main_buffers = [name for name in self.buffer_names if name.startswith("net.")]
        traits = read_traits(networks["net"])
        self.class_rows = [f"net.{name}" for name in traits.class_rows]
        for part, network in networks.items():
            rows = read_traits(network).class_rows if part != MAIN else ()
            self.class_rows += [f"{part}.{name}" for name in rows]
        self.classes = int(getattr(networks["net"], "classes", 0))  # output columns
        # memory order of a sample's axes that the main network prefers; None: as stored
        self.sample_axes = traits.sample_axes
        self.splits = traits.splits  # whether the main network consists of a root and a top
        # whether images and 2d convolutions are in channels-last format, and whether layers are
        # fused into custom kernels; see `to`
        self.channels_last = self.fused = False
        for skeleton in (self.train, self.eval):
            skeleton.requires_grad_(False)
        # copies, since a single run binds the skeleton to its own weights
        buffers = dict(self.train.named_buffers())
        self._vector = self.layout.flatten(p.detach() for p in own.values())
        self._free: dict[Any, Tensor] = {}
        self._buffers = {k: buffers[k].detach().clone() for k in self.buffer_names}

    # -- parameters that are constants -------------------------------------------------------------
    @property
    def constants(self) -> dict[str, Tensor]:
        """The parameters that no run trains, by name; shared by all runs, never written."""
        return {
            first: read_tensor(self.train, first)
            for first in dict.fromkeys(self.constant_names.values())
        }

    @cached_property
    def constants_digest(self) -> str:
        """Checksum of the constant parameters; empty if there are none."""
        digest = hashlib.sha256()
        for name, value in self.constants.items():
            digest.update(name.encode())
            digest.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest() if self.constant_names else ""

    def _put_constants(self, values: Mapping[str, Tensor]) -> None:
        for skeleton in (self.train, self.eval):
            for name, first in self.constant_names.items():
                write_tensor(skeleton, name, values[first])
        self.__dict__.pop("constants_digest", None)

    def with_constants(self, values: Mapping[str, Tensor]) -> Networks:
        """Return networks with these constants, which are the same ones if they are equal."""
        own = self.constants
        shapes, given = ({k: tuple(v.shape) for k, v in d.items()} for d in (own, values))
        if shapes != given:
            name = sorted(k for k in {*shapes, *given} if shapes.get(k) != given.get(k))[0]
            wanted = f"the network that was saved, with {name} {given.get(name)} frozen"
            raise bad("model", wanted, shapes.get(name))
        if all(torch.equal(v, values[k].to(v)) for k, v in own.items()):
            return self
        twin = copy.copy(self)
        twin.train, twin.eval = copy.deepcopy(self.train), copy.deepcopy(self.eval)
        twin.traces, twin.row_features = {}, None  # of the others
        for name in ("start", "form"):
            twin.__dict__.pop(name, None)
        twin._put_constants({k: values[k].to(v, copy=True) for k, v in own.items()})
        return twin

    @property
    def unmappable(self) -> tuple[str, ...]:
        """Reasons why runs cannot be mapped over one skeleton; empty if they can."""
        reasons = (read_unmappable(network) for network in self.train.children())
        return tuple(reason for some in reasons for reason in some)

    def places(self, name: str) -> list[slice]:
        """Return where the parameters of a network are in the vector, in order.

        Odd ones come last, so they may be apart from the others.
        """
        found: list[slice] = []
        start = 0
        for path, size in zip(self.layout.shapes, self.layout.sizes, strict=True):
            if path.startswith(f"{name}."):
                if found and found[-1].stop == start:
                    found[-1] = slice(found[-1].start, start + size)
                else:
                    found.append(slice(start, start + size))
            start += size
        return found

    @property
    def edge_layers(self) -> EdgeLayers | None:
        """The graph layers of the main network, by names as in `Net.__call__`, if it has any."""
        found = read_edge_layers(self.eval.get_submodule("net"))
        if found is None:
            return None
        return EdgeLayers(found.edges, tuple(f"net.{name}" for name in found.linear))

    @cached_property
    def root_names(self) -> list[str]:
        """Names of the parameters of the main network's root."""
        net: Any = self.train.get_submodule("net")
        return [f"net.{name}" for name in net.root_names]

    @property
    def root_prefixes(self) -> tuple[str, ...]:
        """Prefixes of the names of parameters and buffers of the main network's root."""
        net: Any = self.train.get_submodule("net")
        return tuple(f"net.{prefix}" for prefix in net.root_prefixes)

    def initial(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return copies of the initial weights and buffers of the modules."""
        return self._vector.clone(), {k: v.clone() for k, v in self._buffers.items()}

    def with_weights_of(self, own: Networks) -> Networks:
        """Return the same skeletons with the initial weights of `own`."""
        twin = copy.copy(self)
        twin._vector, twin._buffers = own._vector, own._buffers
        twin.__dict__.pop("start", None)  # cached for the other weights
        return twin

    def with_modules(self, networks: Mapping[str, nn.Module]) -> Networks:
        """Return the same skeletons with the initial weights of modules of equal structure."""
        made = NetworkBundle(networks)
        made.take_constants()
        parameters, buffers = dict(made.named_parameters()), dict(made.named_buffers())
        twin = copy.copy(self)
        device, dtype = self._vector.device, self._vector.dtype
        twin._vector = self.layout.flatten(
            parameters[name].detach() for name in self.layout.shapes
        ).to(device, dtype)
        twin._buffers = {
            name: buffers[name].detach().to(device, like.dtype, copy=True)
            for name, like in self._buffers.items()
        }
        twin.__dict__.pop("start", None)  # cached for the other weights
        return twin

    @property
    def nbytes(self) -> int:
        """Approximate memory use of modules and weights in bytes."""
        own = 2 * self._vector.nbytes  # the skeletons, and their initial weights
        return own + sum(value.nbytes for value in self.constants.values())

    @cached_property
    def start(self) -> bytes:
        """Hash of the initial weights and buffers."""
        digest = hashlib.sha256()
        for part in (self._vector, *self._buffers.values(), *self.constants.values()):
            digest.update(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.digest()

    @cached_property
    def form(self) -> Any:
        """Key of the structure: networks with equal keys can share one skeleton."""
        return (
            structural_key((self.train, self.settings))
            if self.settings
            else structural_key(self.train)
        )

    @property
    def grows(self) -> bool:
        """Whether there are networks that only a later task opens."""
        return any(own.opens for own in self.settings.values())

    def closed(self, stage: int) -> tuple[str, ...]:
        """Return the prefixes of parameters and buffers of networks that a later task opens."""
        return tuple(f"{name}." for name, own in self.settings.items() if own.opens > stage)

    def free(self, seen: Tensor, stage: int) -> Tensor:
        """Return the mask [P] of what may move in a task; do not modify it.

        That is everything except rows of unseen classes [C], and networks not opened yet.
        """
        shut_networks = self.closed(stage)
        key = bytes(seen.numpy()), shut_networks
        if key not in self._free:  # cached: many runs open the same columns
            free = torch.ones_like(self._vector, dtype=torch.bool)
            views, shut = self.layout(free), (~seen).to(free.device)
            for name in self.class_rows:
                views[name][shut] = False
            for name, view in views.items() if shut_networks else ():
                if name.startswith(shut_networks):
                    view.fill_(False)
            self._free[key] = free
        return self._free[key]

    @property
    def convolves(self) -> bool:
        """Whether the main network has 2d convolutions."""
        return any(isinstance(m, nn.Conv2d) for m in self.train.get_submodule("net").modules())

    @property
    def fusable(self) -> bool:
        """Whether layers of the main network can be fused (`engram.models.conv_blocks`)."""
        return any(isinstance(m, ConvBlocks) for m in self.train.get_submodule("net").modules())

    def to(
        self, device: torch.device, dtype: torch.dtype, *, channels_last: bool = False,
        fused: bool = False,
    ) -> Networks:  # fmt: skip
        """Move everything to a device and dtype.

        `channels_last` selects the memory format in which torch convolves fastest, `fused` the
        custom kernels of fusable layers.
        """
        self._free.clear()
        moved = {name: value.to(device, dtype if value.is_floating_point() else value.dtype)
                 for name, value in self.constants.items()}  # fmt: skip
        if channels_last and self.convolves and self.sample_axes is None:
            self.channels_last, self.sample_axes = True, (1, 2, 0)
        self.fused = fused
        for skeleton in (self.train, self.eval):
            skeleton.to(device=device, dtype=dtype)
            for module in skeleton.modules() if self.fused else ():
                if isinstance(module, ConvBlocks):
                    module.fused = True
        self._put_constants(moved)  # one copy of each, as before
        self._vector = self._vector.to(device, dtype)
        self._buffers = {
            k: v.to(device, dtype if v.is_floating_point() else v.dtype)
            for k, v in self._buffers.items()
        }
        return self


# -- additional networks of a method ---------------------------------------------------------------

OPTIMIZERS = ("adam", "adamw", "sgd")


@dataclass(frozen=True)
class Network:
    """A module with its own learning rate and optimiser, as returned by `Method.networks`.

    Parameters
    ----------
    lr
        Initial learning rate; 0: the recipe's.
    optimizer
        ``sgd``, ``adam`` or ``adamw``; empty: the recipe's. Momentum, betas and decay are the
        recipe's.
    counts
        Whether its bytes count as memory, because it stands for exemplars (a generator, say).
    opens
        The task that adds it to the learner, such as a column of its own for each task. Before, it
        is closed: its bytes do not count, it is not trained, and nothing may depend on it.

    Notes
    -----
    A network that trains longer than the others needs its own phase:
    ``Phase(trainable=("generator",), iterations=500)``.

    Examples
    --------
    >>> Network(nn.Linear(2, 2), lr=1e-4, counts=True).settings
    NetworkSettings(lr=0.0001, optimizer='', counts=True, opens=0)
    """

    module: nn.Module
    lr: float = 0.0
    optimizer: str = ""
    counts: bool = False
    opens: int = 0

    def __post_init__(self) -> None:
        check_int("network.opens", self.opens)
        if not isinstance(self.module, nn.Module):
            raise bad("network.module", "a torch.nn.Module", self.module)
        check_float("network.lr", self.lr)
        check_choice("network.optimizer", self.optimizer, ("", *OPTIMIZERS))

    @property
    def settings(self) -> NetworkSettings:
        """All but the module."""
        return NetworkSettings(self.lr, self.optimizer, self.counts, self.opens)


class NetworkSettings(NamedTuple):
    """How a network learns, whether it counts as memory, and when it is added."""

    lr: float = 0.0
    optimizer: str = ""
    counts: bool = False
    opens: int = 0


MethodNetworks = Mapping[str, nn.Module | Network]  # what `Method.networks` returns


def network_modules(networks: MethodNetworks) -> dict[str, nn.Module]:
    """Return the modules by name."""
    return {k: v.module if isinstance(v, Network) else v for k, v in networks.items()}


def network_settings(networks: MethodNetworks) -> dict[str, NetworkSettings]:
    """Return the settings of those networks that have any."""
    return {k: v.settings for k, v in networks.items() if isinstance(v, Network)}


# -- training some of the parameters ---------------------------------------------------------------


class TrainableSlices:
    """The trainable parameters of a layout; a `part` is the vector of just these.

    Examples
    --------
    >>> layout = Layout({"root": torch.Size([2]), "top": torch.Size([3]), "odd": torch.Size([1])})
    >>> trainable, vector = TrainableSlices(layout, frozen={"root"}), torch.arange(6.0)
    >>> part = trainable.take(vector)
    >>> part.tolist(), len(trainable)
    ([2.0, 3.0, 4.0, 5.0], 4)
    >>> trainable.put_(vector, -part)
    >>> vector.tolist()
    [0.0, 1.0, -2.0, -3.0, -4.0, -5.0]
    """

    def __init__(self, layout: Layout, frozen: Collection[str] = ()) -> None:
        self.layout = layout
        self.names = [name for name in layout.shapes if name not in frozen]
        self.own = Layout({name: layout.shapes[name] for name in self.names})
        self.slices: list[slice] = []  # of the whole vector; adjacent parameters share a slice
        start = 0
        for name, size in zip(layout.shapes, layout.sizes, strict=True):
            if name not in frozen:
                if self.slices and self.slices[-1].stop == start:
                    self.slices[-1] = slice(self.slices[-1].start, start + size)
                else:
                    self.slices.append(slice(start, start + size))
            start += size
        self.sizes = [one.stop - one.start for one in self.slices]

    def __len__(self) -> int:
        return len(self.own)

    @property
    def is_everything(self) -> bool:
        """Whether nothing is frozen."""
        return len(self.own.shapes) == len(self.layout.shapes)

    def pieces(self, vector: Tensor) -> list[Tensor]:
        """Return views of a whole vector [..., P] that cover the trainable entries."""
        return [vector[..., one] for one in self.slices]

    def take(self, vector: Tensor) -> Tensor:
        """Copy the trainable part [..., M] of a whole vector [..., P]."""
        return torch.cat(self.pieces(vector), -1)

    def put_(self, vector: Tensor, part: Tensor) -> None:
        """Write a part [..., M] into a whole vector [..., P]."""
        for place, piece in zip(self.pieces(vector), part.split(self.sizes, -1), strict=True):
            place.copy_(piece)

    def views(self, vector: Tensor, part: Tensor) -> Views:
        """Return named parameters: trainable ones from a part [M], others from a vector [P]."""
        return Views(self.layout(vector) | self.own(part))

    def fill_in(self, vector: Tensor, part: Tensor) -> Tensor:
        """Return the vector [P] with a part [M] filled in; gradients reach the part.

        Examples
        --------
        >>> layout = Layout({"a": torch.Size([1]), "b": torch.Size([2])})
        >>> TrainableSlices(layout, frozen={"b"}).fill_in(torch.zeros(3), torch.ones(1)).tolist()
        [1.0, 0.0, 0.0]
        """
        found = self.views(vector, part)
        return self.layout.flatten(found[name] for name in self.layout.shapes)

    def gradient(self, parts: Sequence[Tensor]) -> Tensor:
        """Return gradients of the trainable parameters as one vector [P]; 0 for the others."""
        given = dict(zip(self.names, parts, strict=True))
        zeros = {k: parts[0].new_zeros(s) for k, s in self.layout.shapes.items() if k not in given}
        return self.layout.flatten((given | zeros)[name] for name in self.layout.shapes)
