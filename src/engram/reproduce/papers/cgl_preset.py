"""The skeleton benchmark (CGL): every choice in one object, and recipes made with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, ClassVar

from engram.data import Data
from engram.errors import choose, number, unknown, whole
from engram.learner.objectives import OBJECTIVES
from engram.learner.scopes import SCOPES
from engram.recipes import Recipe
from engram.reproduce.papers.base import PaperPreset
from engram.reproduce.papers.elsewhere import need_classes
from engram.streams.orders import all_task_orders, class_order, random_class_orders

UCLA, NTU = "UCLA-CIL", "NTU-CIL"
METHODS = ("BARE", "EWC", "MAS", "TWP", "LwF", "GEM", "REPLAY")
CLASSES, PER_TASK = 10, 2
TASKS = tuple(tuple(range(c, c + PER_TASK)) for c in range(0, CLASSES, PER_TASK))
Order = tuple[int, ...]

# What the paper calls the parameters, and the fields of our methods.
FIELDS: dict[str, dict[str, str]] = {
    "BARE": {}, "JOINT": {},
    "EWC": {"memory_strength": "strength"},
    "MAS": {"memory_strength": "strength"},
    "TWP": {"lambda_l": "strength", "lambda_t": "top", "beta": "beta_strength"},
    "LwF": {"lambda_dist": "strength", "T": "temperature"},
    "GEM": {"memory_strength": "margin", "frac_memories": "memory.fraction"},
    "REPLAY": {"frac_memories": "fraction"},
}  # fmt: skip
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {  # table 5
    "EWC": {"memory_strength": (1, 100, 1e4, 1e6)},
    "MAS": {"memory_strength": (1, 100, 1e4, 1e6)},
    "TWP": {"lambda_l": (100, 1e4), "lambda_t": (100, 1e4), "beta": (0.01, 0.1)},
    "LwF": {"lambda_dist": (0.1, 1, 10), "T": (0.2, 2, 20)},
    "GEM": {"memory_strength": (0.05, 0.5, 5), "frac_memories": (0.05, 0.1, 0.2)},
    "REPLAY": {"frac_memories": (0.05, 0.1, 0.2)},
}
BEST: dict[str, dict[str, float]] = {  # table 3, N-UCLA
    "EWC": {"memory_strength": 1e6}, "MAS": {"memory_strength": 100},
    "TWP": {"lambda_l": 1e4, "lambda_t": 1e4, "beta": 0.01},
    "LwF": {"lambda_dist": 1, "T": 2},
    "GEM": {"memory_strength": 5, "frac_memories": 0.2}, "REPLAY": {"frac_memories": 0.2},
}  # fmt: skip
BEST_NTU = {
    **BEST, "TWP": {**BEST["TWP"], "lambda_l": 100}, "LwF": {**BEST["LwF"], "lambda_dist": 0.1},
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One data set of the paper, its skeleton, and the parameters found best on it (table 3)."""

    data: str
    edges: str
    data_options: Mapping[str, Any] = field(default_factory=dict)
    best: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: BEST)

    def on(self, data: Data, name: str) -> Protocol:
        """The protocol on another set with as many joints; orders and units are of ten classes."""
        need_classes(data, name, CLASSES)
        return replace(self, data=name, data_options={})


@dataclass(frozen=True, kw_only=True)
class Preset(PaperPreset[Protocol]):
    """The choices of all tables and figures.

    Parameters
    ----------
    seeds
        Repetitions of every order. The split of the data is the same in all of them.
    task_orders, class_orders, order_seed
        Orders of a study: 0 task orders are all of them; class orders are drawn once.
    ewc, mas, twp, lwf, gem, replay
        Fields of the methods beside the parameters of tables 3 and 5, as the base code (CGLB) runs:
        importance passes leave batch normalisation in training mode, the Fisher information is the
        squared gradient of the whole task's objective without a half, TWP's second pass adds to the
        first one's gradient, LwF's cross-entropy covers the new classes only.
    gem_scope
        Which classes compete for GEM's memories: those open ``then``.
    replay_loss
        The loss of REPLAY where it is not `loss`: ``ce`` is without the balance of classes.
    precision
        As in `Training`; ``tf32`` makes the products of the ST-GCN quicker on CUDA.
    gcn, stgcn
        Options of the two models.
    widths, depths
        Table 4. `wide_seeds` repetitions in the default order.
    stgcn_task_orders, stgcn_class_orders, stgcn_seeds
        The ST-GCN studies, which are smaller here than in the paper.
    grid_seeds
        Repetitions of each point of the grid.
    """

    parts: ClassVar = {"ucla": UCLA, "ntu": NTU}
    official: ClassVar = {UCLA: "nw_ucla", NTU: "ntu60"}

    ucla: Protocol = Protocol(data="nw_ucla", edges="ucla")
    ntu: Protocol | None = Protocol(data="ntu60", edges="ntu", best=BEST_NTU)
    seeds: int = 5
    task_orders: int = 0
    class_orders: int = 100
    order_seed: int = 0
    epochs: int = 100
    lr: float = 1e-3
    batch_size: int = 0
    loss: str = "balanced"
    scope: str = "seen"
    gem_scope: str = "then"
    replay_loss: str = ""
    optim_reset: bool = False
    precision: str = "float32"
    ewc: Mapping[str, Any] = field(
        default_factory=lambda: {"half": False, "group": "full", "term": "objective",
                                 "batch_statistics": True})  # fmt: skip
    mas: Mapping[str, Any] = field(
        default_factory=lambda: {"importance": "batch_sq", "accum": "avg_by_count",
                                 "batch_statistics": True})  # fmt: skip
    twp: Mapping[str, Any] = field(
        default_factory=lambda: {"beta": "off", "edge_softmax": True, "accumulate": True,
                                 "batch_statistics": True})  # fmt: skip
    lwf: Mapping[str, Any] = field(
        default_factory=lambda: {"ce_scope": "new", "blocks": "per_task"})  # fmt: skip
    gem: Mapping[str, Any] = field(default_factory=dict)
    replay: Mapping[str, Any] = field(default_factory=dict)
    gcn: Mapping[str, Any] = field(default_factory=dict)
    stgcn: Mapping[str, Any] = field(default_factory=dict)
    widths: tuple[int, ...] = (32, 64, 128, 256, 512)
    depths: tuple[int, ...] = (1, 2, 4, 8, 16)
    wide_seeds: int = 5
    stgcn_task_orders: int = 24
    stgcn_class_orders: int = 24
    stgcn_seeds: int = 1
    grid_seeds: int = 1
    keep: str = "counts"

    def __post_init__(self) -> None:
        for name in ("seeds", "wide_seeds", "stgcn_seeds", "grid_seeds"):
            whole(name, getattr(self, name), 1)
        for name in ("task_orders", "class_orders", "stgcn_task_orders", "stgcn_class_orders"):
            whole(name, getattr(self, name))
        whole("epochs", self.epochs, 1)
        whole("batch_size", self.batch_size)
        number("lr", self.lr, open_low=True)
        for name in filter(None, (self.loss, self.replay_loss)):
            choose("loss", name, ("auto", *OBJECTIVES))
        for name in ("scope", "gem_scope"):
            choose(name, getattr(self, name), ("auto", *SCOPES))
        for name in ("widths", "depths"):
            for value in getattr(self, name):
                whole(name, value, 1)


PAPER = Preset()
# The same studies on the embedded skeletons, in two minutes on two cores.
EMBEDDED = Preset(
    ucla=Protocol(data="skeletons", edges="ucla", data_options={"per_class": 20, "frames": 8}),
    ntu=None, seeds=2, task_orders=3, class_orders=2, epochs=8, lr=1e-2, widths=(8, 16),
    depths=(1, 2), wide_seeds=1, gcn={"width": 8, "hidden": 8}, stgcn={"width": 4, "tk": 3},
    stgcn_task_orders=2, stgcn_class_orders=1,
)  # fmt: skip


# -- orders ----------------------------------------------------------------------------------------
def task_orders(count: int, seed: int) -> list[Order]:
    """Task orders as class orders: all 120 for a count of 0, else some drawn by the seed.

    Examples
    --------
    >>> len(task_orders(0, 0)), task_orders(0, 0)[1]
    (120, (0, 1, 2, 3, 4, 5, 8, 9, 6, 7))
    """
    found = random_class_orders(len(TASKS), count, seed) if count else all_task_orders(len(TASKS))
    return [tuple(class_order(TASKS, order)) for order in found]


def class_orders(count: int, seed: int) -> list[Order]:
    """Random class orders, cut into tasks of two neighbours."""
    return random_class_orders(CLASSES, count, seed) if count else []


# -- recipes ---------------------------------------------------------------------------------------
def method_spec(
    preset: Preset, method: str, values: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """The plain form of a method with parameters as the paper names them."""
    if method not in FIELDS:
        raise unknown("method", method, FIELDS)
    names = {"BARE": "Finetune", "JOINT": "Joint", "REPLAY": "Replay"}
    further = getattr(preset, method.lower(), {})
    spec: dict[str, Any] = {"name": names.get(method, method), **further}
    for name, value in (values or {}).items():
        owner, _, inner = FIELDS[method][name].partition(".")
        spec[owner] = {**spec.get(owner, {}), inner: value} if inner else value
    return spec


def recipe(
    preset: Preset,
    dataset: str,
    method: str,
    *,
    values: Mapping[str, float] | None = None,
    model: Mapping[str, Any] | None = None,
    seeds: int = 0,
    split: str = "",
    note: str = "",
) -> Recipe:
    """A method on a data set in its default order.

    Parameters
    ----------
    values
        Parameters of the method; those of table 3 by default.
    model
        ``{"name": ...}`` and options; the GCN of the preset by default.
    seeds
        Repetitions; those of the preset by default.
    split
        Option of the data set: ``tuning`` tests on validation rows.
    note
        Added to the label.
    """
    protocol = preset.protocol(dataset)
    options = {**protocol.data_options, **({"split": split} if split else {})}
    best = protocol.best.get(method, {})
    # left out where it is the default, so that ids of recipes stay as they were
    precision = {} if preset.precision == "float32" else {"precision": preset.precision}
    scope = preset.gem_scope if method == "GEM" else preset.scope
    loss = preset.replay_loss if method == "REPLAY" and preset.replay_loss else preset.loss
    return Recipe.of({
        "stream": {"kind": "class_incremental", "data": protocol.data,
                   "classes_per_task": PER_TASK, **({"data_options": options} if options else {})},
        "model": {"edges": protocol.edges, **(model or {"name": "gcn", **preset.gcn})},
        "method": method_spec(preset, method, best if values is None else values),
        "training": {"epochs": preset.epochs, "batch_size": preset.batch_size, "lr": preset.lr,
                     "optimizer": "adam", "loss": loss, "scope": scope,
                     "optim_reset": preset.optim_reset, **precision},
        "seeds": seeds or preset.seeds, "keep": preset.keep, "average": "macro",
        "label": f"{method} ({preset.shown(dataset)}{', ' if note else ''}{note})",
    })  # fmt: skip


def in_orders(made: Recipe, orders: Sequence[Order]) -> tuple[Recipe, ...]:
    """The recipe once per class order; all have its id."""
    return tuple(made.in_order(order) for order in orders)


def grid(preset: Preset, dataset: str, method: str) -> dict[tuple[float, ...], Recipe]:
    """The recipes of a method's grid by its parameters, tested on validation rows.

    TWP's beta does nothing while its term is off; then its first value stands for all.
    """
    axes = dict(GRIDS[method])
    if not beta_acts(preset) and "beta" in axes:
        axes["beta"] = axes["beta"][:1]
    found = {}
    for point in product(*axes.values()):
        values = dict(zip(axes, point, strict=True))
        note = "grid " + " ".join(f"{k}={v:g}" for k, v in values.items())
        found[point] = recipe(preset, dataset, method, values=values, seeds=preset.grid_seeds,
                              split="tuning", note=note)  # fmt: skip
    return found


def beta_acts(preset: Preset) -> bool:
    """Whether TWP's beta term takes part in the training."""
    return str(preset.twp.get("beta", "off")) != "off"
