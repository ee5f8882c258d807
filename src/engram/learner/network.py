"""A further network of a learner that learns in a way of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from engram.errors import bad, choose, number

OPTIMIZERS = ("adam", "adamw", "sgd")


@dataclass(frozen=True)
class Network:
    """A module with its own learning rate and optimiser, for `Method.networks`.

    Parameters
    ----------
    lr
        Learning rate where the schedule has not changed it; 0: the recipe's.
    optimizer
        ``sgd``, ``adam`` or ``adamw``; empty: the recipe's. Momentum, betas and decay are the
        recipe's.
    counts
        Whether its bytes count as memory, because it stands for exemplars (a generator, say).

    Notes
    -----
    A network that trains longer than the others has a phase of its own:
    ``Phase(moves=("generator",), iterations=500)``.

    Examples
    --------
    >>> Network(nn.Linear(2, 2), lr=1e-4, counts=True).settings
    NetworkSettings(lr=0.0001, optimizer='', counts=True)
    """

    module: nn.Module
    lr: float = 0.0
    optimizer: str = ""
    counts: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise bad("network.module", "a torch.nn.Module", self.module)
        number("network.lr", self.lr)
        choose("network.optimizer", self.optimizer, ("", *OPTIMIZERS))

    @property
    def settings(self) -> NetworkSettings:
        """All but the module."""
        return NetworkSettings(self.lr, self.optimizer, self.counts)


class NetworkSettings(NamedTuple):
    """How a network learns, and whether it counts as memory."""

    lr: float = 0.0
    optimizer: str = ""
    counts: bool = False


MethodNetworks = Mapping[str, nn.Module | Network]  # what `Method.networks` returns


def modules_of(networks: MethodNetworks) -> dict[str, nn.Module]:
    """The modules by name."""
    return {k: v.module if isinstance(v, Network) else v for k, v in networks.items()}


def settings_of(networks: MethodNetworks) -> dict[str, NetworkSettings]:
    """How those learn that say it."""
    return {k: v.settings for k, v in networks.items() if isinstance(v, Network)}
