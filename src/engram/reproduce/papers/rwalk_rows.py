"""The recipes behind rows of the RWalk paper's tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from engram.errors import unknown
from engram.recipes import Recipe
from engram.reproduce.papers.rwalk_preset import MULTI, SINGLE, Preset, Protocol

ALMOST_NOTHING = 1e-6  # of an epoch: rounds up to one


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table for one data set: method as printed without "-S", head, memory."""

    dataset: str
    setting: str
    method: str
    strength: float = 0.0
    samples: bool = False
    per_class: int = 0  # 0: the protocol's
    policy: str = ""  # "": the preset's

    def label(self, shown: str) -> str:
        """A name that tells rows of one table apart; `shown` names the data."""
        name = self.method + ("-S" if self.samples and "iCaRL" not in self.method else "")
        extra = [f"strength={self.strength:g}"] if self.strength else []
        extra += [f"per_class={self.per_class}"] if self.per_class else []
        extra += [self.policy] if self.policy else []
        return " ".join([name, *extra, f"({shown}, {self.setting})"])


def recipe(preset: Preset, row: Row) -> Recipe:
    """The recipe of a row.

    Where heads are trained alike, rows of both are one training, looked at with and without task
    ids.
    """
    protocol = preset.protocol(row.dataset)
    label = row.label(preset.shown(row.dataset))
    if not row.samples and preset.scope_multi == preset.scope_single != "auto":
        label = replace(row, setting="both heads").label(preset.shown(row.dataset))
        row = replace(row, setting=MULTI)
    scope = preset.scope_multi if row.setting == MULTI else preset.scope_single
    training = _training(preset, protocol, scope)
    if row.samples and row.setting == SINGLE:
        training["scope"] = preset.scope_samples
        # iCaRL's loss is its own, class by class
        training["class_weights"] = preset.weigh_samples and "iCaRL" not in row.method
    if row.samples and preset.sample_epochs:
        training["epochs"] = preset.sample_epochs
    return Recipe.of(
        {
            "stream": _stream(protocol, row.setting, protocol.classes_per_task),
            "model": protocol.model,
            "method": method_spec(preset, protocol, row),
            "training": training,
            "seeds": preset.seeds,
            "keep": preset.keep,
            "label": label,
        }
    )


def reference(preset: Preset, dataset: str, setting: str) -> Recipe:
    """The jointly trained model that intransigence compares with."""
    protocol = preset.protocol(dataset)
    step = protocol.classes_per_task
    last, multi = preset.reference == "last", setting == MULTI
    training = _training(preset, protocol, "own" if multi else "seen")
    method: dict[str, Any] = {"name": "Joint", "init": "scratch"}
    if last and multi:  # every row competes among its own task's classes: all tasks are needed
        method["skip"] = math.ceil(protocol.classes / step) - 1
    if last and not multi:
        # Two tasks, of which the first is hardly trained: the second starts from scratch.
        training["first_factor"] = ALMOST_NOTHING
    sizes = [protocol.classes - step, step] if last and not multi else step
    return Recipe.of(
        {
            "stream": _stream(protocol, setting, sizes),
            "model": protocol.model,
            "method": method,
            "training": training,
            "seeds": preset.seeds,
            "keep": preset.keep,
            "label": f"Joint reference ({preset.shown(dataset)}, {setting})",
        }
    )


def recipe_20(preset: Preset) -> Recipe:
    """RWalk in table 2: 20 tasks of 5 classes, GEM's slim ResNet-18.

    Without CIFAR-100, in the embedded form, it is MNIST's stand-in with its own tasks and network.
    """
    row = Row(
        dataset="MNIST", setting=MULTI, method="RWalk", strength=preset.strength_20, samples=True
    )
    if preset.cifar is None:
        return recipe(replace(preset, mnist=replace(preset.mnist, epochs=preset.epochs_20)), row)
    return recipe(in_20_tasks(preset), replace(row, dataset="CIFAR-100"))


def in_20_tasks(preset: Preset) -> Preset:
    """The preset with CIFAR-100 as table 2 has it."""
    protocol = replace(
        preset.protocol("CIFAR-100"), classes_per_task=5, epochs=preset.epochs_20,
        model={"name": "resnet18_slim", "nf": 20}, memory_per_class=preset.per_class_20,
    )  # fmt: skip
    return replace(preset, cifar=protocol)


def _stream(protocol: Protocol, setting: str, sizes: int | list[int]) -> dict[str, Any]:
    kind = "task_incremental" if setting == MULTI else "class_incremental"
    found = {"kind": kind, "data": protocol.data, "classes_per_task": sizes}
    return {**found, "valid": protocol.valid} if protocol.valid else found


def _training(preset: Preset, protocol: Protocol, scope: str) -> dict[str, Any]:
    # left out where it is the default, so that ids of recipes stay as they were
    kept: dict[str, Any] = {} if preset.optim_reset else {"optim_reset": False}
    kept |= {} if protocol.precision == "float32" else {"precision": protocol.precision}
    return {
        "epochs": protocol.epochs, "batch_size": preset.batch_size, "optimizer": "adam",
        "lr": protocol.lr, "scope": scope, **kept,
    }  # fmt: skip


def method_spec(preset: Preset, protocol: Protocol, row: Row) -> dict[str, Any]:
    """The plain form of a row's method."""
    memory = {
        "per_class": row.per_class or protocol.memory_per_class,
        "policy": row.policy or preset.policy, "normalize": preset.normalize,
    }  # fmt: skip
    if row.method in ("iCaRL", "iCaRL-hb1"):
        variant = "hb1" if row.method.endswith("hb1") else "nme"
        return {"name": "ICaRL", "memory": memory, "variant": variant, **preset.icarl}
    if row.method == "Vanilla" and not row.samples:
        return {"name": "Finetune"}
    replay: dict[str, Any] = {"name": "ER", "memory": memory, "mix": preset.mix}
    if preset.sample_rows:
        replay["size"] = preset.sample_rows
    if preset.sample_reduce != "mean":
        replay["reduce"] = preset.sample_reduce
    if row.method == "Vanilla":
        return replay
    penalty = _penalty(preset, protocol, row)
    if not row.samples:
        return penalty
    if preset.mix == "union":
        return {**penalty, "memory": memory}
    return {"name": "Join", "parts": [replay, penalty]}


def _penalty(preset: Preset, protocol: Protocol, row: Row) -> dict[str, Any]:
    strength = {"strength": row.strength}
    if row.method == "EWC":  # the paper means EWC++ throughout
        return {"name": "EWCpp", **strength, "every": protocol.every, **preset.ewc}
    if row.method == "PI":
        return {"name": "SI", **strength, **preset.pi}
    if row.method == "RWalk":
        return {"name": "RWalk", **strength, "every": protocol.every, **preset.rwalk}
    raise unknown("method", row.method, ("Vanilla", "EWC", "PI", "RWalk", "iCaRL", "iCaRL-hb1"))
