"""Latent replay: a frozen root, and exemplars stored as its outputs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engram.learner.batch import Batch
from engram.learner.networks import Net
from engram.methods.frozen_root import FrozenRoot
from engram.methods.method import ReplaySpec, State
from engram.methods.naive_rehearsal import NaiveRehearsal


@dataclass(frozen=True, kw_only=True)
class LatentReplay(FrozenRoot, NaiveRehearsal):
    """`NaiveRehearsal` above a frozen root: latents are stored instead of inputs.

    When a task begins, the root encodes its rows once, in eval mode; the top is trained on these
    latents and as many from the memory. The model must have a root and a top (all built-in models
    do).

    Parameters
    ----------
    memory
        1000 latents by default, as in ConFER, updated as in `NaiveRehearsal`.
    weighting
        As for `NaiveRehearsal`.
    size
        Memory rows per step; 0: as many as the batch size.
    root, root_share, root_iterations, root_batch_size, root_lr, root_file, root_sha256
        As for `FrozenRoot`: where the root gets its weights (``heldout``, ``first_task``,
        ``none``, ``external``) and how it is trained.

    Examples
    --------
    >>> LatentReplay().prologue()
    Prologue(share=0.16..., iterations=1000, batch_size=32, lr=0.0)
    >>> LatentReplay(root="first_task").replay(0), LatentReplay().replay(0)
    (ReplaySpec(kind='pair', size=0), ReplaySpec(kind='pair', size=0, latent=True))

    References
    ----------
    Pellegrini et al. 2020, International Conference on Intelligent Robots and Systems.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_root()

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("pair", self.size, latent=not self.learns_root(stage))

    def remember(self, net: Net, batch: Batch, state: State) -> dict[str, Tensor]:
        return {"latent": net.root(batch.x)}
