"""Every choice that the ConFER paper leaves open, in one object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar

from engram.data import Data
from engram.errors import choose, number, whole
from engram.learner.scopes import SCOPES
from engram.metrics.definitions import DEFINITIONS
from engram.records.papers import document
from engram.reproduce.papers.base import PaperPreset
from engram.reproduce.papers.elsewhere import need_classes

TASK, CLASS = "Task-IL", "Class-IL"
HEAD = {TASK: "multi", CLASS: "single"}
KIND = {TASK: "task_incremental", CLASS: "class_incremental"}
# Row to method and the preset's field with its options.
ROWS = {
    "LB": ("Finetune", ""), "UB": ("Joint", "joint"), "EWC": ("EWC", "ewc"),
    "EWC-Online": ("OnlineEWC", "online_ewc"), "SI": ("SI", "si"), "LwF": ("LwF", "lwf"),
    "NR": ("NaiveRehearsal", "nr"), "A-GEM": ("AGEM", "agem"), "LR": ("LatentReplay", "lr"),
    "DGR": ("DGR", "dgr"), "LGR": ("LGR", "lgr"), "DGR+D": ("DGR", "dgr"), "LGR+D": ("LGR", "lgr"),
}  # fmt: skip
LATENT = ("LR", "LGR", "LGR+D")  # rows that are trained above a root
DROPS = ("re-pair", "in_place")
COPIES = {"flip": 0.5, "rotate": 0.5, "degrees": 30.0}  # until classes are as large as the largest
STARRED = "Contempt"
# Rows that no task has, learnt before the first one with all classes open, in the code of LGR. At
# a tenth of the tasks' learning rate: one step of Adam moves the sum over 24,200 inputs below the
# sigmoid by several units, and at the full rate 98% of the latents end at 0 or 1.
ROOT = {
    "root": "heldout", "root_share": 1 / 6, "root_iterations": 1000, "root_batch_size": 32,
    "root_lr": 2.5e-5,
}  # fmt: skip
SMALL_ROOT = {**ROOT, "root_iterations": 500, "root_lr": 0.0}  # images of 32 x 32


@lru_cache
def printed_tasks(order: str) -> list[list[str]]:
    """The tasks of an order in the paper's table 1, with all classes."""
    found: list[list[str]] = document("confer_orders")["orders"][order]["task_il"]
    return found


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One data set of the paper.

    `size` is the height and width of its RGB images, `options` are those of its loader beside it.
    `conditions` are the two halves of its tables: the name in
    the paper to what it adds to the stream, generated copies or options of the loader.
    """

    data: str
    contempt: bool = True
    batch_size: int = 128
    size: int = 100
    options: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {"without": {}, "with": {"balance": dict(COPIES)}}
    )

    def __post_init__(self) -> None:
        whole("batch_size", self.batch_size, 1)
        whole("size", self.size, 1)

    def on(self, data: Data, name: str) -> Protocol:
        """The protocol on other faces, in their own size; halves that a loader made are left out.

        Contempt is learnt where both have it.
        """
        contempt = self.contempt and STARRED in data.classes
        names = [one for task in printed_tasks("O1") for one in task]
        need_classes(data, name, [one for one in names if contempt or one != STARRED])
        conditions = {k: v for k, v in self.conditions.items() if "data_options" not in v}
        return replace(self, data=name, contempt=contempt, size=data.sample_shape[-1],
                       options={}, conditions=conditions)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Preset(PaperPreset[Protocol]):
    """The choices of all rows; C1 to C19 are entries of the page about the protocol.

    Parameters
    ----------
    optim_reset
        The base code keeps one Adam over all tasks.
    scope
        Class-IL: which logits compete in training, those ``seen`` so far or ``all`` from the start.
        Task-IL always has those of the row's task.
    drop
        Sets without Contempt: tasks are paired anew (``re-pair``), or the task that it was in has
        one class (``in_place``), C7.
    forgetting
        CF is ``diagonal``; ``all`` averages the whole triangle, C3.
    model, latent
        The network; rows above a root have a sigmoid layer of `latent` units where the root ends.
    ewc, online_ewc, si, lwf, nr, agem, lr, dgr, lgr, joint
        Fields of the methods beside their defaults: Fisher information of predicted labels (C13),
        lambda / 2 (C5), the squared temperature in LwF (C8), one mean over old and new rows in NR
        (C11), SI's task gradient (C14), a root learnt from held-out rows (C9).
    nr_task, nr_class, agem_items, lr_items
        Sizes of memories in samples.
    memory_bytes
        Where it is not 0, memories hold as many images (NR, A-GEM) or latents (LR) as fit into so
        many bytes, for a comparison at equal cost: the generator of LGR has 884,800.
    blur
        The share of each class's training rows that turns up in other steps than its own, in
        Class-IL; Task-IL has none. 0 has sharp borders, as in the paper.
    precision
        ``tf32`` makes products and convolutions quicker on CUDA; elsewhere it is float32.
    """

    parts: ClassVar = {
        "ck": "CK+", "raf": "RAF-DB", "affectnet": "AffectNet", "fer": "FER-2013",
        "icv": "iCV-MEFED", "baum": "BAUM-1",
    }  # fmt: skip
    official: ClassVar = {
        "CK+": "ck_plus", "RAF-DB": "raf_db", "AffectNet": "affectnet", "FER-2013": "fer2013",
        "iCV-MEFED": "icv_mefed", "BAUM-1": "baum1",
    }  # fmt: skip

    ck: Protocol | None = Protocol(data="ck_plus", batch_size=32)
    raf: Protocol | None = Protocol(data="raf_db", contempt=False)
    affectnet: Protocol | None = Protocol(
        data="affectnet",
        conditions={"original": {}, "downsampled": {"data_options": {"per_class": 15000}}},
    )
    fer: Protocol | None = Protocol(data="fer2013", contempt=False)
    icv: Protocol | None = Protocol(data="icv_mefed")
    baum: Protocol | None = Protocol(data="baum1")
    seeds: int = 3
    iterations: int = 500
    learning_rate: float = 2.5e-4
    weight_decay: float = 0.0
    optim_reset: bool = False
    precision: str = "tf32"
    scope: str = "seen"
    drop: str = "re-pair"
    forgetting: str = "diagonal"
    model: Any = "lenet"
    latent: int = 200
    ewc: Mapping[str, Any] = field(
        default_factory=lambda: {"strength": 5000.0, "labels": "pred"})  # fmt: skip
    online_ewc: Mapping[str, Any] = field(
        default_factory=lambda: {"strength": 5000.0, "gamma": 1.0, "labels": "pred"})  # fmt: skip
    si: Mapping[str, Any] = field(
        default_factory=lambda: {"strength": 1.0, "xi": 0.1, "clamp": "none"})  # fmt: skip
    lwf: Mapping[str, Any] = field(
        default_factory=lambda: {"strength": 1.0, "temperature": 2.0, "scale": True})  # fmt: skip
    nr: Mapping[str, Any] = field(default_factory=lambda: {"weighting": "mean"})
    agem: Mapping[str, Any] = field(default_factory=dict)
    lr: Mapping[str, Any] = field(default_factory=lambda: dict(ROOT))
    dgr: Mapping[str, Any] = field(default_factory=dict)
    lgr: Mapping[str, Any] = field(default_factory=lambda: dict(ROOT))
    joint: Mapping[str, Any] = field(default_factory=dict)
    nr_task: int = 1500
    nr_class: int = 1000
    agem_items: int = 2000
    lr_items: int = 1000
    memory_bytes: int = 0
    blur: float = 0.0
    keep: str = "labels"

    def __post_init__(self) -> None:
        for name in ("seeds", "iterations", "latent", "nr_task", "nr_class", "agem_items",
                     "lr_items"):  # fmt: skip
            whole(name, getattr(self, name), 1)
        number("learning_rate", self.learning_rate, open_low=True)
        number("weight_decay", self.weight_decay)
        number("blur", self.blur, 0.0, 1.0)
        whole("memory_bytes", self.memory_bytes)
        choose("scope", self.scope, ("auto", *SCOPES))
        choose("drop", self.drop, DROPS)
        choose("forgetting", self.forgetting, list(DEFINITIONS))


PAPER = Preset()


def _drawn(**more: Any) -> Protocol:
    return Protocol(data="faces", batch_size=32, size=32, **more)


# The same rows on drawn faces, which stand for every data set, on two cores.
EMBEDDED = Preset(
    ck=_drawn(), raf=_drawn(contempt=False), fer=_drawn(contempt=False), icv=_drawn(),
    baum=_drawn(),
    affectnet=_drawn(
        conditions={"original": {}, "downsampled": {"data_options": {"samples": 3000}}}
    ),
    seeds=1, iterations=150, dgr={"width": 400},
    lr=dict(SMALL_ROOT), lgr=dict(SMALL_ROOT),
)  # fmt: skip
