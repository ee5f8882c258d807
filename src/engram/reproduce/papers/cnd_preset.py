"""Every choice that the continual-novelty paper leaves open, in one object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from engram.data import Data
from engram.errors import choose, number, whole
from engram.metrics.definitions import DEFINITIONS
from engram.reproduce.papers.base import PaperPreset
from engram.reproduce.papers.elsewhere import per_task

TINY, EIGHT = "TinyImageNet", "Eight-Task"
RESNET, VGG, ALEXNET = "ResNet", "VGG", "AlexNet"
MULTI, SHARED = "multi-head", "shared-head"
HEAD = {MULTI: "multi", SHARED: "single"}
# Row to method, head and the preset's field with its options; what is trained first comes first.
ROWS = {
    "FineTune": ("Finetune", MULTI, ""), "LwF": ("LwF", MULTI, "lwf"),
    "MAS": ("MAS", MULTI, "mas"), "ER-25s": ("ER", SHARED, "er"),
    "SSIL-25s": ("SSIL", SHARED, "ssil"), "ER-50s": ("ER", SHARED, "er"),
    "SSIL-50s": ("SSIL", SHARED, "ssil"),
}  # fmt: skip
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
SEQUENCES = ("tinyimagenet_seq", "eight_task", "classes")
# What Mahalanobis reads besides the features: of ResNet the inputs of its four stages.
LAYERS = {
    RESNET: ("stem", "lower.0", "lower.1", "lower.2"),
    VGG: ("convolutions.11", "convolutions.13", "connected.2"),
    ALEXNET: ("convolutions.8", "convolutions.10", "connected.3"),
}

# Without batch normalisation a network stands at chance for its first hundreds of steps. The code
# waits 20 epochs of 125 steps; 5 of the 25 steps that a part of the rows makes would end it there.
UNHURRIED = {"patience": 0, "plateau_patience": 8}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One sequence of the paper.

    Parameters
    ----------
    sequence
        A stream of that name, or ``classes``: `classes_per_task` of them in each stage.
    stages
        How many there are; rows of some tables are means over them.
    models, layers
        The networks by their names in the paper, and those layers of each that Mahalanobis reads
        besides the features.
    training
        Training options of some of these networks beside the preset's.
    outside
        The set against which detectors are tuned, and Mahalanobis weighs its layers: the paper has
        CIFAR-10, 40,000 rows to fit and 10,000 to choose; here at most ``limit`` of each, since
        all of them cost more passes than the training does. null: nothing is tuned.
    """

    data: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sequence: str = "classes"
    stages: int = 10
    classes_per_task: int = 20
    batch_size: int = 64
    learning_rate: float = 0.01
    models: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[str, Sequence[str]] = field(default_factory=lambda: dict(LAYERS))
    training: Mapping[str, Any] = field(default_factory=dict)
    outside: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        choose("sequence", self.sequence, SEQUENCES)
        for name in ("stages", "classes_per_task", "batch_size"):
            whole(name, getattr(self, name), 1)
        number("learning_rate", self.learning_rate, open_low=True)

    def on(self, data: Data, name: str) -> Protocol:
        """The same on other data: equal tasks of its classes, and no outside set, so no tuning."""
        size = per_task(data, self.classes_per_task, self.stages, name)
        return replace(
            self, data=name, options={}, sequence="classes", classes_per_task=size,
            stages=data.n_classes // size, outside=None,
        )  # fmt: skip


def _detectors() -> dict[str, Any]:
    return {
        "Softmax": {}, "ODIN": {}, "Mahalanobis": {}, "VAE": {}, "B1": {}, "B2": {},
        "Energy": {}, "KNN": {},
    }  # fmt: skip


def _tuned() -> dict[str, Any]:
    return {
        "ODIN": {"epsilon": [0.0, 0.0005, 0.001, 0.0014, 0.002, 0.01]},
        "VAE": {"of": ["features", "inputs"], "latent": [8, 32], "epochs": [10, 30]},
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Preset(PaperPreset[Protocol]):
    """The choices of all rows; N1 to N18 are entries of the page about the protocol.

    Parameters
    ----------
    seeds
        The paper has ten for table 1, its code five, and novelty detection one (N7).
    order_seed
        Draws the classes of each stage.
    valid
        Share of the training rows for early stopping, tuning and thresholds; not augmented (N17).
    epochs, patience, restore_best
        Longest training of a stage, epochs without a better validation accuracy after which it
        ends, and whether the best epoch counts (N8).
    plateau_patience
        Epochs without a lower validation loss after which the learning rate falls to a tenth.
    head, shared_head, control
        The last layer of all rows, of the shared-head rows of table 3 (normalised, as the paper
        says of them), and of the row that is trained again with a bias.
    lwf, mas, er, ssil
        Fields of the methods beside their defaults: MAS in the form of the paper's code (N11), SSIL
        distils on all rows (N10).
    few, many, memory
        Exemplars of the rows 25s and 50s: so many in all, of which every ``task`` or every
        ``class`` has its part, or so many ``per_class`` (N6).
    detectors
        Detectors and their options; null leaves one out.
    tuned
        Detectors to the values that are tried after the first stage; null leaves one as it is.
    features
        Test items whose features are stored whole after each stage, for figure 6.
    forgetting
        Definition behind Forg. of table 1.
    """

    parts: ClassVar = {"tiny": TINY, "eight": EIGHT}
    official: ClassVar = {TINY: "tiny_imagenet", EIGHT: "eight_task"}

    tiny: Protocol | None = Protocol(
        data="tiny_imagenet", options={"resize": 64, "crop": 56, **IMAGENET},
        sequence="tinyimagenet_seq",
        models={RESNET: {"name": "resnet18_slim", "nf": 40}, VGG: {"name": "vgg11_slim"}},
        training={VGG: dict(UNHURRIED)},
        outside={"data": "cifar100", "data_options": {"resize": 64, "crop": 56}, "limit": 2000},
    )  # fmt: skip
    eight: Protocol | None = Protocol(
        data="eight_task", options={"size": 256, "crop": 224, **IMAGENET}, sequence="eight_task",
        stages=8, batch_size=200, learning_rate=1e-4, models={ALEXNET: {"name": "alexnet"}},
        outside={"data": "cifar100", "data_options": {"resize": 256, "crop": 224}, "limit": 2000},
    )  # fmt: skip
    seeds: int = 1
    order_seed: int = 0
    valid: float = 0.2
    epochs: int = 30
    patience: int = 5
    restore_best: bool = True
    plateau_patience: int = 3
    momentum: float = 0.9
    weight_decay: float = 0.0
    augment: tuple[str, ...] = ("resized_crop", "flip")
    precision: str = "tf32"
    head: Mapping[str, Any] = field(default_factory=lambda: {"name": "linear", "bias": False})
    shared_head: Mapping[str, Any] = field(
        default_factory=lambda: {"name": "cosine", "scale": 10.0}
    )
    control: Mapping[str, Any] = field(default_factory=lambda: {"name": "linear"})
    lwf: Mapping[str, Any] = field(default_factory=lambda: {"strength": 1.0, "temperature": 2.0})
    mas: Mapping[str, Any] = field(
        default_factory=lambda: {
            "strength": 4.0, "importance": "batch_abs", "half": True, "group": 64,
        }
    )  # fmt: skip
    er: Mapping[str, Any] = field(default_factory=lambda: {"mix": "paired", "reduce": "sum"})
    ssil: Mapping[str, Any] = field(default_factory=lambda: {"kd_inputs": "all"})
    few: int = 4500
    many: int = 9000
    memory: str = "task"
    detectors: Mapping[str, Any] = field(default_factory=_detectors)
    tuned: Mapping[str, Any] = field(default_factory=_tuned)
    features: int = 500
    forgetting: str = "diagonal"
    keep: str = "labels"

    def __post_init__(self) -> None:
        for name in ("seeds", "epochs", "few", "many"):
            whole(name, getattr(self, name), 1)
        for name in ("order_seed", "patience", "plateau_patience", "features"):
            whole(name, getattr(self, name))
        number("valid", self.valid, 0.0, 1.0)
        number("weight_decay", self.weight_decay)
        choose("memory", self.memory, ("task", "class", "per_class"))
        choose("forgetting", self.forgetting, list(DEFINITIONS))

    def stages(self, dataset: str) -> int:
        """How many stages a sequence has."""
        return self.protocol(dataset).stages


PAPER = Preset()

# The same rows on drawn shapes, perceptrons for both networks, on two cores.
EMBEDDED = Preset(
    tiny=Protocol(
        data="shapes", options={"kinds": 5, "orphans": 0, "size": 12}, classes_per_task=2,
        batch_size=32, learning_rate=0.02,
        models={RESNET: {"name": "mlp", "hidden": [128, 64]},
                VGG: {"name": "mlp", "hidden": [64, 64, 64]}},
        layers={RESNET: ("lower.0",), VGG: ("lower.0",)},
        outside={"data": "glyphs", "data_options": {
            "size": 12, "channels": 3, "classes": 10, "per_class": 50}},
    ),
    eight=None, seeds=5, epochs=20, augment=(), few=180, many=360, features=500,
    mas={"strength": 1.0, "importance": "batch_abs", "half": True, "group": 32},
    detectors={**_detectors(), "Mahalanobis": {"combine": "mean"}},  # a regression takes seconds
    tuned={**_tuned(), "VAE": {"of": ["features", "inputs"], "latent": [8], "epochs": [10]}},
)  # fmt: skip
