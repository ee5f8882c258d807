"""From dealt rows to the Batch a loss sees; the same for one run and for many."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from engram import keys
from engram.engine.deck import Deck, Hand
from engram.learner.batch import Batch
from engram.learner.feed import Feed


class Assembler:
    """Facts of a stage that every batch carries, for R runs ([R, ...]) or one (no R axis).

    `alone` says that all rows are the current task's, so that nothing differs from row to row.
    """

    def __init__(
        self, feed: Feed, *, opened: Tensor, scopes: Tensor, now: Tensor, stage: int, alone: bool
    ) -> None:
        self.feed, self.alone = feed, alone
        self.current = scopes.select(-2, stage).unsqueeze(-2)  # [R?, 1, C]
        self.opened = opened  # [R?, C]
        self.scopes = scopes  # [R?, T, C] classes that compete for a row of each task
        self.now = now  # [R?]

    def tensors(self) -> dict[str, Tensor]:
        """All that differs between stages and groups."""
        return {name: getattr(self, name) for name in ("current", "opened", "scopes", "now")}

    def on(self, tensors: dict[str, Tensor]) -> Assembler:
        """The same with other tensors."""
        twin = copy.copy(self)
        for name, value in tensors.items():
            setattr(twin, name, value)
        return twin

    def __call__(self, hand: Hand, key: Tensor, apart: tuple[Hand, ...] = ()) -> Batch:
        """`hand` holds the rows of one step: [R?, B]."""
        memory = tuple(self(one, keys.fold(key, j)) for j, one in enumerate(apart))  # type: ignore[arg-type]
        stage = hand.stages
        if self.alone:
            old = torch.zeros_like(hand.w)
            open_ = self.current.expand(*stage.shape, -1)
        else:
            old = (stage < self.now.unsqueeze(-1)).to(hand.w.dtype)
            spread = stage[..., None].expand(*stage.shape, self.scopes.shape[-1])
            open_ = self.scopes.gather(-2, spread)
        return Batch(
            x=self.feed.augmented(hand.rows, stage, key),
            y=hand.y,
            w=hand.w,
            stage=stage,
            old=old,
            open=open_,
            opened=self.opened,
            now=self.now,
            key=key,
            memory=memory,
        )


def at_step(deck: Deck, step: Tensor) -> tuple[Hand, Tensor, tuple[Hand, ...]]:
    """Rows of one step of all runs, the step number being a tensor (so that it captures)."""

    def take(leaf: Tensor) -> Tensor:
        return leaf.index_select(1, step).squeeze(1)

    main = Hand(*(take(leaf) for leaf in deck.main))
    apart = tuple(Hand(*(take(leaf) for leaf in hand)) for hand in deck.apart)
    return main, take(deck.key), apart


def single_steps(deck: Deck, step: int) -> tuple[Hand, Tensor, tuple[Hand, ...]]:
    """Rows of one step of a deck for one run, cut to its real length: nothing is padded."""
    length = deck.lengths[step]
    main = Hand(*(leaf[0, step, :length] for leaf in deck.main))
    apart = tuple(Hand(*(leaf[0, step] for leaf in hand)) for hand in deck.apart)
    return main, deck.key[0, step], apart


def no_padding(deck: Deck) -> bool:
    """Whether every row of every hand counts (asked once per stage, not per step)."""
    hands = (deck.main, *deck.apart)
    return all(bool(torch.all(hand.w > 0)) for hand in hands)
