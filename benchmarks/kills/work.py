"""What is trained while processes are killed: every method, in every way of training."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engram
from engram.experiments import Callback
from engram.methods.method import FROZEN_TRANSFORMER


@dataclass(frozen=True)
class Way:
    """How runs are trained, and who can be killed meanwhile."""

    pool: str
    seeds: int
    epochs: int
    sizes: tuple[int, ...] = (16,)  # of hidden layers: a recipe, and so a group, for each
    reference: str = ""  # the pool of the undisturbed run, where that has the same groups

    @property
    def victims(self) -> tuple[str, ...]:
        """In turn; the second worker is of another group than the first."""
        alone = self.pool in ("serial", "together")
        return ("process",) if alone else ("worker", "worker", "driver")


WAYS = {
    "single": Way("serial", 1, 24),
    "lockstep of 8": Way("together", 8, 4),
    "lockstep of 48": Way("together", 48, 3),
    "processes": Way("processes", 4, 5, (12, 16)),
    "ray": Way("ray", 4, 5, (12, 16), reference="processes"),
}

# Strengths at which small steps do not explode, and little work for those who do much.
OPTIONS: dict[str, dict[str, Any]] = {
    "EWC": {"strength": 1.0}, "OnlineEWC": {"strength": 1.0}, "EWCpp": {"strength": 1.0},
    "RWalk": {"strength": 1.0}, "MAS": {"strength": 0.1}, "TWP": {"strength": 1.0},
    "LatentReplay": {"root_iterations": 10}, "DGR": {"noise": 4, "width": 16},
    "LGR": {"root_iterations": 10, "noise": 4, "width": 16},
    "GDumb": {"memory": {"total": 60}, "epochs": 6},
    "Join": {"parts": [{"name": "ER", "memory": {"total": 30}}, {"name": "LwF"}]},
}  # fmt: skip
METHODS = tuple(sorted(engram.methods.__all__))
SLOW = {"BiC": 2, "GEM": 2, "LUCIR": 2}  # by so much fewer epochs


@dataclass(frozen=True, kw_only=True)
class Work:
    """One method in one way."""

    method: str
    way: str
    every: float = 0.25  # seconds between two checkpoints inside a task

    @property
    def how(self) -> Way:
        return WAYS[self.way]

    def recipes(self) -> list[dict[str, Any]]:
        way = self.how
        stream, model = _blobs(), "mlp"
        if self.method == "TWP":  # graphs only
            stream, model = _skeletons(), "gcn"
        elif getattr(engram.methods, self.method).needed_model == FROZEN_TRANSFORMER:
            stream, model = {"data": "digits", "classes_per_task": 4}, "vit"
        return [
            {"stream": stream, "method": {"name": self.method, **OPTIONS.get(self.method, {})},
             "model": _model(model, size), "seeds": way.seeds, "keep": "parameters",
             "training": {"epochs": max(1, way.epochs // SLOW.get(self.method, 1)),
                          "batch_size": 8, "lr": 0.01}}
            for size in way.sizes
        ]  # fmt: skip

    def train(
        self, out: Path, callback: Callback | None = None, *, pool: str = "", address: str = ""
    ) -> engram.Result:
        """The call that is disturbed, and made again."""
        return engram.sweep(
            self.recipes(), pool=pool or self.how.pool, out=out, device="cpu", callback=callback,
            workers=2 if "worker" in self.how.victims else 0, checkpoint_every=self.every,
            address=address or None,
        )  # fmt: skip


def _blobs() -> dict[str, Any]:
    options = {"classes": 6, "per_class": 40}
    return {"data": "blobs", "classes_per_task": 2, "data_options": options}


def _skeletons() -> dict[str, Any]:
    options = {"per_class": 10, "frames": 4}
    return {"data": "skeletons", "classes_per_task": 4, "data_options": options}


def _model(name: str, size: int) -> dict[str, Any]:
    if name == "gcn":
        return {"name": "gcn", "width": 4, "hidden": size}
    if name == "vit":
        return {"name": "vit", "patch": 4, "width": size, "depth": 3, "heads": 2}
    return {"name": "mlp", "hidden": [size, size]}


def environment() -> dict[str, str]:
    """What a child must know of this process, which forked its own parent long ago."""
    return {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
