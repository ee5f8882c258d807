"""Every choice that the RWalk paper leaves open, in one object, and recipes made with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from engram.errors import bad, choose, number, unknown, whole
from engram.learner.scopes import SCOPES
from engram.memory.catalogue import policies
from engram.methods.er import REDUCTIONS
from engram.recipes import Recipe
from engram.reproduce.papers.base import PaperPreset

MULTI, SINGLE = "multi-head", "single-head"
HEAD = {MULTI: "multi", SINGLE: "single"}
MIXES = ("union", "paired")
REFERENCES = ("last", "each")
ALMOST_NOTHING = 1e-6  # of an epoch: rounds up to one


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One data set of the paper and how it is learnt.

    `epochs` is ours: the paper does not say. `every` is the paper's Delta t. `valid` is the share
    of training rows that nobody trains on (the text implies 55,000 MNIST rows).
    """

    data: str
    classes: int
    classes_per_task: int
    model: Any
    epochs: int
    every: int
    memory_per_class: int
    valid: float = 0.0
    lr: float = 1e-3
    samples: tuple[int, ...] = ()  # sizes of the study of memory sizes

    def __post_init__(self) -> None:
        for name in ("classes", "classes_per_task", "epochs", "every", "memory_per_class"):
            whole(name, getattr(self, name), 1)
        for size in self.samples:
            whole("samples", size, 1)
        number("lr", self.lr, open_low=True)
        number("valid", self.valid, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Preset(PaperPreset[Protocol]):
    """The choices of all rows.

    Parameters
    ----------
    scope_multi, scope_single, scope_samples
        Which logits compete in training: multi-head rows, single-head rows without samples, and
        rows with samples. Without samples the printed 38 % of plain training is out of reach when
        all seen classes compete (20 %), but not when only the task's own do.
    weigh_samples
        With samples, rows weigh inversely to the size of their class, so that ten exemplars count
        as much as the task's thousands of rows; the authors' released code does so too.
    mix
        How exemplars enter a batch: ``union`` shuffles them into the task's rows (section 4.2),
        ``paired`` adds as many as the batch has new rows.
    sample_rows, sample_reduce
        Of ``paired`` batches: exemplars in each, 0 for as many as new rows; and whether new rows
        and exemplars share one mean, or the ``sum`` of a mean over each is trained.
    sample_epochs
        Epochs of the rows with samples; 0 for those of the protocol.
    optim_reset
        A fresh optimiser at every task, as in the authors' released code.
    policy, normalize
        Mean of features is herding; the authors' code does not normalise features.
    ewc, pi, rwalk, icarl
        Fields of the methods EWCpp, SI, RWalk, ICaRL where they differ from the defaults. Both
        Fishers keep .9 of the old value (R2): as printed, .9 of the new batch, EWC and single-head
        RWalk stay further from the paper's numbers.
    reference
        The model behind intransigence, trained from scratch on all tasks. ``last`` trains it for
        the last task only, all that tables need; ``each`` for every task.
    strength_20, per_class_20, epochs_20
        Table 2, whose regularisation and length are not given.
    """

    parts: ClassVar = {"mnist": "MNIST", "cifar": "CIFAR-100"}
    official: ClassVar = {"MNIST": "mnist", "CIFAR-100": "cifar100"}

    mnist: Protocol = Protocol(
        data="mnist", classes=10, classes_per_task=2, model="mlp", epochs=10, every=10,
        memory_per_class=10, valid=1 / 12, samples=(5, 10, 20, 50, 100),
    )  # fmt: skip
    cifar: Protocol | None = Protocol(
        data="cifar100", classes=100, classes_per_task=10, model="cnn", epochs=50, every=50,
        memory_per_class=25, samples=(5, 10, 25, 50, 100, 200),
    )  # fmt: skip
    seeds: int = 5
    batch_size: int = 64
    scope_multi: str = "own"
    scope_single: str = "own"
    scope_samples: str = "seen"
    weigh_samples: bool = True
    mix: str = "union"
    sample_rows: int = 0
    sample_reduce: str = "mean"
    sample_epochs: int = 0
    optim_reset: bool = True
    policy: str = "herding"
    normalize: bool = False
    ewc: Mapping[str, Any] = field(
        default_factory=lambda: {"normalize": True, "alpha_on": "running"}
    )
    pi: Mapping[str, Any] = field(default_factory=lambda: {"xi": 1e-3, "clamp": "task_term"})
    rwalk: Mapping[str, Any] = field(default_factory=lambda: {"alpha_on": "running"})
    icarl: Mapping[str, Any] = field(default_factory=lambda: {"bce_reduction": "sum"})
    reference: str = "last"
    keep: str = "labels"
    strength_20: float = 1000.0
    per_class_20: int = 50
    epochs_20: int = 10

    def __post_init__(self) -> None:
        choose("mix", self.mix, MIXES)
        choose("sample_reduce", self.sample_reduce, REDUCTIONS)
        choose("reference", self.reference, REFERENCES)
        choose("policy", self.policy, policies())
        for name in ("scope_multi", "scope_single", "scope_samples"):
            choose(name, getattr(self, name), ("auto", *SCOPES))
        for name in ("seeds", "per_class_20", "epochs_20"):
            whole(name, getattr(self, name), 1)
        for name in ("batch_size", "sample_rows", "sample_epochs"):
            whole(name, getattr(self, name))
        self._need_paired()
        number("strength_20", self.strength_20)

    def _need_paired(self) -> None:
        """Refuse settings of paired batches where there are none: they would do nothing."""
        if self.mix == "paired":
            return
        for name, plain in (("sample_rows", 0), ("sample_reduce", "mean")):
            if getattr(self, name) != plain:
                raise bad(name, f"{plain!r} unless mix is 'paired'", getattr(self, name))


PAPER = Preset()
# The same rows on the embedded digits, in two minutes on two cores.
EMBEDDED = Preset(
    mnist=Protocol(
        data="digits", classes=10, classes_per_task=2, model={"name": "mlp", "hidden": [64, 64]},
        epochs=10, every=10, memory_per_class=10, samples=(5, 10, 20),
    ),
    cifar=None, seeds=2,
)  # fmt: skip


# -- recipes -------------------------------------------------------------------------------------
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
    kept = {} if preset.optim_reset else {"optim_reset": False}
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
