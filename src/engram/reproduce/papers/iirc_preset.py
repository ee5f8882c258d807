"""Every choice of the IIRC paper, in one object, and recipes made with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from engram.errors import bad, choose, number, unknown, whole
from engram.recipes import Recipe
from engram.reproduce.papers.base import PaperPreset

CIFAR, FULL, LITE = "IIRC-CIFAR", "IIRC-ImageNet-full", "IIRC-ImageNet-lite"
# How one paper spells its own data sets.
ALIASES = {"IIRC-Imagenet-full": FULL, "IIRC-ImageNet": FULL}
HERDING = {"policy": "herding"}
# Row to method, the preset's field with its options, and whether it keeps exemplars.
ROWS: dict[str, tuple[str, str, Mapping[str, Any] | None]] = {
    "ER": ("ER", "er", {}),
    "iCaRL-norm": ("ICaRL", "icarl_norm", HERDING),
    "iCaRL-CNN": ("ICaRL", "icarl_cnn", HERDING),
    "LUCIR": ("LUCIR", "lucir", HERDING),
    "AGEM": ("AGEM", "agem", {}),
    "incremental joint": ("IncrementalJoint", "", None),
    "ER-infinite": ("ERInfinite", "", None),
    "finetune": ("Finetune", "", None),
    "BiC": ("BiC", "bic", HERDING),
}
JOINT, UPPER = "joint", "incremental joint"
SCORE = "precision_weighted_jaccard"  # what the paper's tables count
VARIANTS = {
    "LUCIR-no_margin": ("LUCIR", {"variant": "no_margin"}),
    "LUCIR-distil": ("LUCIR", {"variant": "distil"}),
    "LUCIR-distil-no_margin": ("LUCIR", {"variant": "distil_no_margin"}),
    "BiC-distil": ("BiC", {"variant": "distil"}),
}
# Rows whose best epoch on in-task validation rows is restored; the others keep the last (I17).
RESTORED = ("finetune", "ER", "ER-infinite", UPPER, JOINT)
SCHEDULES = ("paper", "short")
CIFAR_MEAN, CIFAR_STD = (0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One data set of the paper.

    `stream` is what its recipes say beside the data and the configuration; `rates` are the learning
    rates of rows that have another one than `lr`.
    """

    data: str
    configurations: int
    stream: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    model: Any = "resnet32"
    epochs: int = 140
    first_factor: float = 2.0
    patience: int = 10
    lr: float = 1.0
    rates: Mapping[str, float] = field(default_factory=dict)
    batch_size: int = 128
    augment: tuple[str, ...] = ("crop", "flip")

    def __post_init__(self) -> None:
        for name in ("configurations", "epochs", "batch_size"):
            whole(name, getattr(self, name), 1)
        whole("patience", self.patience)
        number("lr", self.lr, open_low=True)
        number("first_factor", self.first_factor, open_low=True)


def _imagenet(variant: str) -> Protocol:
    """IIRC-ImageNet, whose rates are those of the thesis (I13)."""
    return Protocol(
        data="imagenet", configurations=5, model="resnet50", epochs=100, lr=0.1,
        rates=dict.fromkeys(("iCaRL-CNN", "iCaRL-norm", "BiC"), 0.5),
        augment=("resized_crop", "flip"), stream={"kind": "iirc", "variant": variant},
        options={"mean": list(IMAGENET_MEAN), "std": list(IMAGENET_STD)},
    )  # fmt: skip


IMAGENET_FULL, IMAGENET_LITE = _imagenet("imagenet-full"), _imagenet("imagenet-lite")


@dataclass(frozen=True, kw_only=True)
class Preset(PaperPreset[Protocol]):
    """The choices of all rows; I1 to I22 are entries of the page about the protocol.

    Parameters
    ----------
    cifar, full, lite
        The data sets.
    configurations
        How many of the published class orders are run, from the first on; 0 for all of a set.
    seed
        Of all runs; the paper repeats over class orders alone.
    schedule
        ``paper``: as long as printed. ``short``: a quarter of the epochs, and of those without
        gain after which the rate is cut, rounded up: 3 instead of 10.
    cuts
        A task ends when its rate is cut for this time; 0 to train all epochs. The paper does not
        end tasks early; behind the third cut the rate is a thousandth of what it was.
    per_class
        Exemplars of each class.
    er, icarl_cnn, icarl_norm, lucir, agem, bic
        Fields of the methods beside their defaults: both scales of cosine heads begin at 1 (that of
        iCaRL-norm carries over, I12), A-GEM masks logits (I15), BiC is fitted on the buffer (I18).
    sizes
        Exemplars of each class in the study of buffers.
    precision
        ``tf32`` makes products and convolutions quicker on CUDA; elsewhere it is float32.
    """

    parts: ClassVar = {"cifar": CIFAR, "full": FULL, "lite": LITE}
    official: ClassVar = {CIFAR: "cifar100", FULL: "imagenet", LITE: "imagenet"}

    cifar: Protocol | None = Protocol(
        data="cifar100", configurations=10, stream={"kind": "iirc", "variant": "cifar"},
        options={"mean": list(CIFAR_MEAN), "std": list(CIFAR_STD)},
    )  # fmt: skip
    full: Protocol | None = IMAGENET_FULL
    lite: Protocol | None = IMAGENET_LITE
    configurations: int = 0
    seed: int = 100
    schedule: str = "paper"
    cuts: int = 3
    weight_decay: float = 1e-5
    per_class: int = 20
    sizes: tuple[int, ...] = (20, 50, 100, 200)
    er: Mapping[str, Any] = field(default_factory=lambda: {"mix": "union"})
    icarl_cnn: Mapping[str, Any] = field(default_factory=lambda: {"variant": "cnn"})
    icarl_norm: Mapping[str, Any] = field(default_factory=lambda: {"variant": "norm", "scale": 1.0})
    lucir: Mapping[str, Any] = field(default_factory=lambda: {"scale": 1.0})
    agem: Mapping[str, Any] = field(default_factory=lambda: {"size": 128, "masks": True})
    bic: Mapping[str, Any] = field(default_factory=lambda: {"variant": "sigmoid"})
    precision: str = "tf32"
    keep: str = "labels"

    def __post_init__(self) -> None:
        for name in ("configurations", "seed", "cuts"):
            whole(name, getattr(self, name))
        whole("per_class", self.per_class, 1)
        for size in self.sizes:
            whole("sizes", size, 1)
        number("weight_decay", self.weight_decay)
        choose("schedule", self.schedule, SCHEDULES)

    def protocol(self, dataset: str) -> Protocol:
        return super().protocol(ALIASES.get(dataset, dataset))

    @property
    def absent(self) -> frozenset[str]:
        found = super().absent
        return found | {alias for alias, name in ALIASES.items() if name in found}

    def shown(self, dataset: str) -> str:
        return super().shown(ALIASES.get(dataset, dataset))

    def orders(self, dataset: str) -> range:
        """The numbers of the class orders that are run.

        Examples
        --------
        >>> Preset(configurations=3).orders("IIRC-CIFAR"), PAPER.orders("IIRC-ImageNet-lite")
        (range(0, 3), range(0, 5))
        """
        there = self.protocol(dataset).configurations
        if self.configurations > there:
            raise bad("configurations", f"at most {there}, those of {dataset}", self.configurations)
        return range(self.configurations or there)


def recipe(
    preset: Preset, dataset: str, row: str, *, configuration: int = 0, per_class: int = 0
) -> Recipe:
    """The recipe of a row under one order of the classes.

    Examples
    --------
    >>> made = recipe(PAPER, "IIRC-CIFAR", "iCaRL-norm", configuration=2)
    >>> made.method.memory, made.training.min_lr, made.order
    (Memory(per_class=20, policy='herding'), 0.01, 'configuration-2')
    """
    protocol = preset.protocol(dataset)
    size = per_class or preset.per_class
    note = f", {size} per class" if per_class else ""
    return Recipe.of({
        "stream": {
            "data": protocol.data, "data_options": dict(protocol.options), **protocol.stream,
            **_ordered(protocol, configuration),
        },
        "model": protocol.model,
        "method": method_spec(preset, row, size),
        "training": training_spec(preset, protocol, row),
        "seeds": [preset.seed], "keep": preset.keep,
        "label": f"{row}{note} ({preset.shown(dataset)})",
    })  # fmt: skip


def _ordered(protocol: Protocol, configuration: int) -> dict[str, Any]:
    """A published order by its number; drawn streams have one order."""
    return {"configuration": configuration} if protocol.stream.get("kind") == "iirc" else {}


def recipes(preset: Preset, dataset: str, row: str, per_class: int = 0) -> tuple[Recipe, ...]:
    """A row under every order that is run.

    Examples
    --------
    >>> len(recipes(PAPER, "IIRC-CIFAR", "BiC-distil"))
    10
    """
    return tuple(
        recipe(preset, dataset, row, configuration=k, per_class=per_class)
        for k in preset.orders(dataset)
    )


def training_spec(preset: Preset, protocol: Protocol, row: str) -> dict[str, Any]:
    """How a row is trained."""
    short = preset.schedule == "short"
    lr = protocol.rates.get(VARIANTS.get(row, (row,))[0], protocol.lr)
    return {
        "epochs": max(1, protocol.epochs // 4) if short else protocol.epochs,
        "first_factor": protocol.first_factor, "batch_size": protocol.batch_size,
        "optimizer": "sgd", "lr": lr, "momentum": 0.9, "weight_decay": preset.weight_decay,
        "schedule": "plateau", "factor": 0.1, "plateau_watch": "score",
        "plateau_patience": -(-protocol.patience // 4) if short else protocol.patience,
        "plateau_threshold": 1e-3, "restore_best": row in RESTORED,
        "min_lr": lr / 10 ** (preset.cuts - 1) if preset.cuts else 0.0,
        "augment": list(protocol.augment), "precision": preset.precision,
    }  # fmt: skip


def method_spec(preset: Preset, row: str, per_class: int) -> dict[str, Any]:
    """The plain form of a row's method."""
    base, changed = VARIANTS.get(row, (row, {}))
    if base not in ROWS:
        raise unknown("method", row, [*ROWS, *VARIANTS])
    name, owner, memory = ROWS[base]
    spec: dict[str, Any] = {"name": name}
    if memory is not None:
        spec["memory"] = {"per_class": per_class, **memory}
    return {**spec, **(getattr(preset, owner) if owner else {}), **changed}


PAPER = Preset()


DRAWN = Protocol(
    data="shapes", configurations=1, stream={"kind": "hierarchical", "hierarchy": "kind"},
    model="lenet", epochs=10, patience=3, lr=0.1, batch_size=32, augment=(),
)  # fmt: skip
# The same rows on drawn shapes, which stand for every data set, on two cores.
EMBEDDED = Preset(cifar=DRAWN, full=DRAWN, lite=DRAWN, sizes=(5, 10, 20, 40))
