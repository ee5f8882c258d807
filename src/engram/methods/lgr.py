"""Latent generative replay: a frozen root, and a generator of its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from engram.errors import bad
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.dgr import DGR
from engram.methods.frozen_root import FrozenRoot
from engram.methods.method import MethodNetworks, Phase, ReplaySpec, State, Terms
from engram.streams.stream_outline import StreamOutline


@dataclass(frozen=True, kw_only=True)
class LGR(FrozenRoot, DGR):
    """`DGR` above a frozen root: the generator produces latents, and only the top is trained.

    When a task begins, the root encodes its rows once, in eval mode. The generator models latents,
    not inputs, and is therefore much smaller. The model must have a root and a top (all built-in
    models do).

    Parameters
    ----------
    root, root_share, root_iterations, root_batch_size, root_lr, root_file, root_sha256
        As for `FrozenRoot`: where the root gets its weights (``heldout``, ``first_task``,
        ``none``, ``external``) and how it is trained.
    distill, temperature, ratio, kd_new_classes, size, passes, order
        As for `DGR`.
    width
        Width of the generator's layers; 0: the size of a latent, but between 64 and 1600. ConFER:
        200.
    noise
        As for `DGR`.
    likelihood
        ``bernoulli``: latents in [0, 1]; ``gaussian``: any; ``auto``: bernoulli where the model
        says that its root ends in a sigmoid (``latent=200`` of ``lenet`` and ``mlp``).
    generator_lr, generator_optimizer
        As for `DGR`.

    Notes
    -----
    Stoychev et al. 2023 (International Conference on Automatic Face and Gesture Recognition).

    Examples
    --------
    >>> LGR(root="first_task").replay(0), LGR().replay(0)
    (ReplaySpec(kind='none', size=0), ReplaySpec(kind='none', size=0, latent=True))
    """

    generates: ClassVar[str] = "latents"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_root()

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec(latent=not self.learns_root(stage))

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        if stream.latents is None:
            raise bad("model", "a model with a root, because LGR generates latents", "none")
        return {"generator": self._network(*stream.latents)}

    def phases(self, stage: int) -> tuple[Phase, ...]:
        if not self.learns_root(stage):
            return super().phases(stage)
        # latents exist once the root is frozen
        return (
            Phase(name="root", trainable=("net",)),
            Phase(name="latents", trainable=("generator",)),
        )

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        if net.phase == "root":
            return {"task": net.task(batch)}
        if net.phase == "latents":
            return self._generator(net, batch, None, self._noise(net, batch, {}))
        return super().loss(net, batch, state)

    def _generator_targets(self, net: Net, batch: Batch) -> Tensor:
        latents: Tensor = net.detached().root(batch.x) if net.phase == "latents" else batch.x
        return latents

    def _generator_samples(self, learner: RunLearner, rows: Tensor) -> Tensor:
        latents: Tensor = learner.net().root(learner.batch(rows).x)
        return latents
