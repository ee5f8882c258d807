"""Entries of a run's vector that may not move while it trains alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Standing:
    """No gradient for what may not move; it is put back where the optimiser moves it all the same.

    Parameters that stand still as a whole are in no update, so they cannot drift.

    Parameters
    ----------
    free
        [P] which entries may move.
    vector
        [P] the weights.
    parts
        Gives the views of a vector, one for each parameter that is updated.
    drifts
        Whether the optimiser moves entries without gradient (weight decay, old momentum).
    """

    def __init__(
        self, free: Tensor, vector: Tensor, parts: Callable[[Tensor], list[Tensor]], *, drifts: bool
    ) -> None:
        frozen = (~free).nonzero()[:, 0]
        self._frozen = frozen if len(frozen) else None
        views = parts(free)
        self._masks = [(i, v) for i, v in enumerate(views) if not bool(v.all())]
        updated = torch.zeros_like(free)
        for mine, may_move in zip(parts(updated), views, strict=True):
            mine.copy_(~may_move)
        self._places = updated.nonzero()[:, 0]
        back = drifts and len(self._places) > 0
        self._before = vector[self._places].clone() if back else None

    def mask_parts_(self, grads: list[Tensor]) -> None:
        """Of gradients by parameter, in place."""
        for index, mask in self._masks:
            grads[index].mul_(mask)

    def mask_(self, flat: Tensor) -> None:
        """Of a gradient of the whole vector, in place."""
        if self._frozen is not None:
            flat.index_fill_(0, self._frozen, 0.0)

    def masked(self, flat: Tensor) -> Tensor:
        """The same as a tensor of its own, where anything stands still."""
        return flat if self._frozen is None else flat.index_fill(0, self._frozen, 0.0)

    def put_back_(self, vector: Tensor) -> None:
        """After an update: what stands still is where it was."""
        if self._before is not None:
            vector[self._places] = self._before
