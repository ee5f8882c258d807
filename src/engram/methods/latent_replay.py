"""Latent replay: a root that stands still, and exemplars kept as what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engram.errors import choose
from engram.learner.batch import Batch
from engram.learner.net import Net
from engram.methods.base import ReplaySpec, State
from engram.methods.naive_rehearsal import NaiveRehearsal

ROOTS = ("first_task", "none")


@dataclass(frozen=True, kw_only=True)
class LatentReplay(NaiveRehearsal):
    """`NaiveRehearsal` above a frozen root: exemplars are latents, inputs are not kept.

    When a task begins, the root encodes its rows once, in eval mode; the top is trained on these
    latents and as many of the memory's. The model must have a root and a top (all of the library's
    have).

    Parameters
    ----------
    memory
        1000 latents by default, under the rule of `NaiveRehearsal`.
    weighting
        ``mean``: one mean over new and old rows; ``task_count``: ``new / t + (1 - 1/t) * old``.
    size
        Memory rows per step; 0 means as many as the batch size.
    root
        ``first_task``: the whole network learns the first task, then the root stands still;
        ``none``: the root keeps its initial weights, or those the model came with.

    Examples
    --------
    >>> LatentReplay().replay(0), LatentReplay().replay(1)
    (ReplaySpec(kind='pair', size=0), ReplaySpec(kind='pair', size=0, latent=True))

    References
    ----------
    Pellegrini et al. 2020, International Conference on Intelligent Robots and Systems.
    """

    root: str = "first_task"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("root", self.root, ROOTS)

    def replay(self, stage: int) -> ReplaySpec:
        return ReplaySpec("pair", self.size, latent=stage > 0 or self.root == "none")

    def remember(self, net: Net, batch: Batch, state: State) -> dict[str, Tensor]:
        return {"latent": net.at("net.root")(batch.x)}
