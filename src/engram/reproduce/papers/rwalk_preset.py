"""Every choice that the RWalk paper leaves open, in one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from engram.engine.training import PRECISIONS
from engram.errors import bad, choose, number, whole
from engram.learner.scopes import SCOPES
from engram.memory.catalogue import policies
from engram.methods.er import REDUCTIONS
from engram.reproduce.papers.base import PaperPreset

MULTI, SINGLE = "multi-head", "single-head"
HEAD = {MULTI: "multi", SINGLE: "single"}
MIXES = ("union", "paired")
REFERENCES = ("last", "each")


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One data set of the paper and how it is learnt.

    `epochs` is ours: the paper does not say. `every` is the paper's Delta t. `valid` is the share
    of training rows that nobody trains on (the text implies 55,000 MNIST rows). `precision` is that
    of a recipe; convolutions are a good deal faster in ``tf32`` on a GPU that has it.
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
    precision: str = "float32"

    def __post_init__(self) -> None:
        for name in ("classes", "classes_per_task", "epochs", "every", "memory_per_class"):
            whole(name, getattr(self, name), 1)
        for size in self.samples:
            whole("samples", size, 1)
        choose("precision", self.precision, PRECISIONS)
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
