"""Runs that have seen the same so far are the same run so far: train one, copy it to the others.

A run is a pure function of its seed, its method and the tasks it has met. In a study of all orders
of five tasks, 120 runs share 5 first tasks, 20 first pairs and 60 first triples, so a good part of
the training need not be repeated. Columns belong to classes by their place of introduction, hence
the copies are exact, not approximate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from engram.engine.run import Run
from engram.learner.learner import Learner
from engram.learner.likeness import ByIdentity, likeness
from engram.learner.tree import tree_map
from engram.streams.core import Stream


class Prefixes:
    """Tells which runs have met the very same tasks up to a stage.

    Only runs that may train together are compared: of equal networks, data and training, but for
    its rate.
    `start` gives what else tells their beginnings apart, the weights.
    """

    def __init__(self, start: Callable[[Run], Any] = lambda run: None) -> None:
        self._start = start
        self._hashes: dict[ByIdentity, list[bytes]] = {}
        self._methods: dict[ByIdentity, Any] = {}

    def key(self, run: Run, stage: int) -> Any:
        """Equal keys mean equal learners after `stage`."""
        method = ByIdentity(run.method)
        if method not in self._methods:
            self._methods[method] = likeness(run.method)
        met: Any = self._history(run.stream)[stage]
        if run.method.prologue() is not None:  # it has met something of all tasks
            met = met, self._history(run.stream)[-1]
        return met, run.seed, run.training.lr, self._methods[method], self._start(run)

    def _history(self, stream: Stream) -> list[bytes]:
        """Hash of the first tasks, for every number of them."""
        key = ByIdentity(stream)
        if key not in self._hashes:
            found, so_far = [], hashlib.blake2b()
            for k, task in enumerate(stream.tasks):
                parts = (task.train, stream.targets[task.train], task.valid,
                         stream.targets[task.valid], stream.visible[k],
                         stream.told[k])  # fmt: skip
                for part in parts:
                    so_far.update(str(tuple(part.shape)).encode())
                    so_far.update(part.cpu().numpy().tobytes())
                so_far.update((stream.opening == k).numpy().tobytes())
                found.append(so_far.digest())
            self._hashes[key] = found
        return self._hashes[key]

    def leaders(
        self, places: Sequence[int], runs: Sequence[Run], stage: int
    ) -> dict[int, list[int]]:
        """The runs to train, each with those that only copy it."""
        if len(places) == 1:  # with nobody to compare: a hash of large weights takes seconds
            return {places[0]: []}
        first: dict[Any, int] = {}
        found: dict[int, list[int]] = {}
        for place in places:
            leader = first.setdefault(self.key(runs[place], stage), place)
            found.setdefault(leader, [])
            if leader != place:
                found[leader].append(place)
        return found


def copy_learner(source: Learner, target: Learner) -> None:
    """Let `target` know all that `source` knows; tensors are shared, since stages replace them."""
    target.enter(source.stage)
    for name in ("vector", "free", "exemplars", "values", "diverged", "units"):
        setattr(target, name, getattr(source, name))
    for name in ("buffers", "state", "opt"):
        setattr(target, name, tree_map(lambda leaf: leaf, getattr(source, name)))
    target.ledger = source.ledger.copy()
    target.resume_point = None  # if it was interrupted inside the stage, it has finished that now
