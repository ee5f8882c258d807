"""Rows of the continual-novelty tables, and the recipe of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engram.errors import choose, unknown
from engram.recipes import Recipe
from engram.reproduce.papers.cnd_preset import (
    ALEXNET,
    EIGHT,
    MULTI,
    RESNET,
    ROWS,
    SHARED,
    VGG,
    Preset,
    Protocol,
)

KIND = {MULTI: "task_incremental", SHARED: "class_incremental"}
PLAIN, COSINE, BIASED = "plain", "cosine", "biased"  # which last layer a row is trained with


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table: who learns what with which network and last layer."""

    dataset: str
    method: str
    backbone: str = RESNET
    head: str = PLAIN

    @property
    def setting(self) -> str:
        if self.method not in ROWS:
            raise unknown("method", self.method, ROWS)
        return ROWS[self.method][1]


def recipe(preset: Preset, row: Row) -> Recipe:
    """The recipe of a row.

    Examples
    --------
    >>> from engram.reproduce.papers.cnd_preset import PAPER
    >>> made = recipe(PAPER, Row(dataset="TinyImageNet", method="ER-25s"))
    >>> made.method.memory.total, made.training.epochs, made.stream["kind"]
    (4500, 30, 'tinyimagenet_seq')
    >>> [probe.name for probe in made.probes][:3]
    ['features', 'softmax', 'tuned odin over epsilon']
    """
    protocol, setting = preset.protocol(row.dataset), row.setting
    return Recipe.of({
        "stream": _stream(preset, protocol, setting),
        "model": {**protocol.models[row.backbone], "head": dict(_head(preset, row.head))},
        "method": method_spec(preset, row.method),
        "training": {
            "epochs": preset.epochs, "patience": preset.patience,
            "restore_best": preset.restore_best, "batch_size": protocol.batch_size,
            "optimizer": "sgd", "lr": protocol.learning_rate, "momentum": preset.momentum,
            "weight_decay": preset.weight_decay, "schedule": "plateau", "factor": 0.1,
            "plateau_patience": preset.plateau_patience, "augment": list(preset.augment),
            "scope": "own" if setting == MULTI else "seen", "precision": preset.precision,
            **protocol.training.get(row.backbone, {}),
        },
        "detectors": detector_specs(preset, row), "seeds": preset.seeds, "keep": preset.keep,
        "probes": [{"name": "engram.probes:Features", "items": preset.features}],
        "outside": protocol.outside, "label": label(preset, row),
    })  # fmt: skip


def _stream(preset: Preset, protocol: Protocol, setting: str) -> dict[str, Any]:
    where = {
        "data": protocol.data, "data_options": dict(protocol.options), "seed": preset.order_seed,
        "valid": preset.valid,
    }  # fmt: skip
    if protocol.sequence == "classes":
        return {**where, "kind": KIND[setting], "classes_per_task": protocol.classes_per_task}
    shared = {"shared_head": True} if setting == SHARED else {}
    return {**where, "kind": protocol.sequence, **shared}


def trained(dataset: str) -> list[Row]:
    """Every row of a sequence, in the order in which they are trained where time is short."""
    multi = [name for name in ROWS if ROWS[name][1] == MULTI]
    shared = [name for name in ROWS if ROWS[name][1] == SHARED]
    if dataset == EIGHT:
        return [Row(dataset=dataset, method=name, backbone=ALEXNET) for name in multi]
    return [
        *(Row(dataset=dataset, method=name) for name in ROWS),
        *(Row(dataset=dataset, method=name, backbone=VGG) for name in multi),
        Row(dataset=dataset, method="FineTune", head=BIASED),
        *(Row(dataset=dataset, method=name, head=COSINE) for name in shared),
    ]


def label(preset: Preset, row: Row) -> str:
    """What a row is called in records and reports."""
    words = [preset.shown(row.dataset), row.backbone, *([row.head] if row.head != PLAIN else [])]
    return f"{row.method} ({', '.join(words)})"


def _head(preset: Preset, head: str) -> Mapping[str, Any]:
    heads = {PLAIN: preset.head, COSINE: preset.shared_head, BIASED: preset.control}
    return heads[choose("head", head, heads)]


def method_spec(preset: Preset, method: str) -> dict[str, Any]:
    """The plain form of a row's method."""
    if method not in ROWS:
        raise unknown("method", method, ROWS)
    name, setting, owner = ROWS[method]
    spec = {"name": name, **(getattr(preset, owner) if owner else {})}
    if setting == SHARED:
        size = preset.few if method.endswith("25s") else preset.many
        shared = {"total": size, "shared_by": preset.memory}
        spec["memory"] = {"per_class": size} if preset.memory == "per_class" else shared
    return spec


def detector_specs(preset: Preset, row: Row) -> list[dict[str, Any]]:
    """The detectors of a row: all but those that its last layer or its purpose leaves out.

    B1 and B2 need a last layer without bias. Normalised shared heads are trained for table 3,
    which compares these two with Softmax; the others would cost more than the training.
    """
    protocol = preset.protocol(row.dataset)
    layers, tunes = list(protocol.layers.get(row.backbone, ())), protocol.outside is not None
    combine = {"combine": "logistic"} if tunes else {}
    found = []
    for name, options in preset.detectors.items():
        left_out = row.head == BIASED and name in ("B1", "B2")
        left_out |= row.head == COSINE and name not in ("Softmax", "B1", "B2")
        if options is None or left_out:
            continue
        more = {"layers": layers, **combine} if name == "Mahalanobis" and layers else {}
        spec = {"name": name, **more, **options}
        grid = preset.tuned.get(name) if tunes else None
        found.append({"name": "Tuned", "detector": spec, "grid": grid} if grid else spec)
    return found
