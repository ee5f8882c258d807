"""The runs whose numbers are held: one line for each, with public names only."""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import engram
from engram import methods
from engram.experiments import Callback
from engram.methods.method import FROZEN_TRANSFORMER
from tests.frozen.digests import (
    Tensors,
    checkpoints_in,
    frame_tensors,
    left_by,
    recipes_in,
    table_tensors,
    tensors_in,
)

HERE = Path(__file__).parent
FINISHED, STOPPED = HERE / "finished", HERE / "stopped"  # run directories, kept in the repository

# Double precision and SGD: Adam alone lifts a rounding error from 1e-16 to 1e-8.
EXACT = {"epochs": 2, "batch_size": 16, "optimizer": "sgd", "lr": 0.02, "precision": "float64"}
MLP = {"name": "mlp", "hidden": [12, 12]}
GCN = {"name": "gcn", "width": 4, "hidden": 8}
VIT = {"name": "vit", "patch": 4, "width": 16, "depth": 3, "heads": 2}


class Normed(nn.Module):
    """A network with batch normalisation and dropout above a root."""

    def __init__(self, sample_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.features, width = 12, math.prod(sample_shape)
        self.first, self.norm = nn.Linear(width, 12), nn.BatchNorm1d(12)
        self.drop, self.root_modules = nn.Dropout(0.3), ("first",)

    def root(self, x: Tensor) -> Tensor:
        return self.first(x.flatten(1))

    def body(self, z: Tensor) -> Tensor:
        return self.drop(torch.relu(self.norm(z)))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.root(x))


# -- streams: tasks of unequal size ----------------------------------------------------------------
@cache
def blobs(classes: int = 6, per_class: int = 14) -> engram.Data:
    return engram.load("blobs", classes=classes, per_class=per_class)


@cache
def digits() -> engram.Data:
    """A few rows of each digit."""
    whole = engram.load("digits")
    pick = [rows[whole.labels[rows] == c][:n] for rows, n in ((whole.train, 12), (whole.test, 4))
            for c in range(10)]  # fmt: skip
    train, test = torch.cat(pick[:10]), torch.cat(pick[10:])
    rest = (whole.x[test].numpy(), whole.labels[test].numpy())
    views = {"view": np.arange(len(train) + len(test)) % 3}
    return engram.Data.from_arrays(
        whole.x[train].numpy(), whole.labels[train].numpy(), test=rest, attributes=views
    )


@cache
def shapes() -> engram.Data:
    return engram.load("shapes", per_class=25)


@cache
def skeletons() -> engram.Data:
    return engram.load("skeletons", per_class=10, frames=4)


def single(**options: Any) -> engram.Stream:
    """Three tasks of three, one and two classes."""
    return engram.class_incremental(blobs(), **{"classes_per_task": [3, 1, 2], **options})


TREE = {"low": [0, 1, 2], "high": ["3", "4"]}
TASKS = [["low"], ["high", "0", "5"], ["1", "2", "3"]]
STREAMS: dict[str, Callable[[], engram.Stream]] = {
    "single": single,
    "shuffled": lambda: single(seed=3),
    "valid": lambda: single(valid=0.25),
    "multi": lambda: engram.task_incremental(blobs(), classes_per_task=2),
    "graphs": lambda: engram.class_incremental(skeletons(), classes_per_task=4),
    "images": lambda: engram.class_incremental(digits(), classes_per_task=[4, 3, 3]),
    "domains": lambda: engram.domain_incremental(digits(), by="view"),
    "permuted": lambda: engram.permuted(digits(), tasks=2),
    "rotated": lambda: engram.rotated(digits(), angles=[0, 40]),
    "shapes": lambda: engram.class_incremental(shapes(), classes_per_task=4)[:2],
    "blurry": lambda: engram.blurry(blobs()),
    "instances": lambda: engram.new_instances(blobs(), tasks=3),
    "online": lambda: engram.online(single()),
    "joint": lambda: engram.joint(blobs()),
    "reordered": lambda: engram.reorder(single(), task_order=[2, 0, 1]),
    "balanced": lambda: engram.balance(engram.class_incremental(digits(), classes_per_task=5)),
    "sets": lambda: engram.hierarchical(blobs(), hierarchy=TREE, tasks=TASKS, valid=0.2),
}  # fmt: skip

# -- methods: strengths at which plain steps do not explode, and little work -----------------------
MEMORY = {"memory": {"total": 12}}
PER_CLASS = {"memory": {"per_class": 2, "policy": "herding"}}
GENERATOR = {"noise": 3, "width": 8}
ROOT = {"root": "first_task"}
HELD = {"root": "heldout", "root_iterations": 5}
OPTIONS: dict[str, dict[str, Any]] = {
    "AGEM": MEMORY, "BiC": {"memory": {"total": 24}}, "ER": MEMORY, "NaiveRehearsal": MEMORY,
    "SSIL": MEMORY, "DERpp": {"memory": {"total": 12, "policy": "reservoir"}},
    "GEM": {"memory": {"fraction": 0.2}}, "GDumb": {**MEMORY, "epochs": 3},
    "RanPAC": {"width": 30}, "SCR": {"views": ()},  # the samples are no images
    "ERACE": {"memory": {"total": 12, "policy": "reservoir"}},
    "ICaRL": PER_CLASS, "LUCIR": PER_CLASS, "PODNet": PER_CLASS,
    "EWC": {"strength": 1.0}, "MAS": {"strength": 0.1},
    "OnlineEWC": {"strength": 1.0, "gamma": 0.9}, "EWCpp": {"strength": 1.0, "every": 3},
    "RWalk": {"strength": 1.0, "every": 3}, "TWP": {"strength": 1.0, "top": 1.0},
    "DGR": GENERATOR, "LGR": {**GENERATOR, **ROOT}, "LatentReplay": {**MEMORY, **ROOT},
    "Join": {"parts": [{"name": "ER", **MEMORY}, {"name": "LwF"}, {"name": "SI"}]},
}  # fmt: skip
GRAPHS = ("TWP",)


def method(name: str, **options: Any) -> dict[str, Any]:
    return {"name": name, **OPTIONS.get(name, {}), **options}


# -- the table -------------------------------------------------------------------------------------
# "~" at the end of a name: Adam, single precision or one more variant, for exact comparisons only.
Case = dict[str, Any]


def _cases() -> Iterator[tuple[str, Case]]:
    for name in methods.__all__:
        on = {"stream": "graphs", "model": GCN} if name in GRAPHS else {}
        if getattr(methods, name).task_identity == "required":
            on = {"stream": "multi"}
        if getattr(methods, name).needed_model == FROZEN_TRANSFORMER:
            on = {"stream": "images", "model": VIT}
        yield f"{name} alone", {"method": method(name), **on}
        yield f"{name} lockstep", {"method": method(name), "seeds": 2, "together": True, **on}
    for name in ("Finetune", "ER", "IncrementalJoint", "ERInfinite", "AGEM", "EWC", "MAS", "SI"):
        yield f"{name} on sets", {"method": method(name), "stream": "sets"}
    for name, options in SETS.items():
        yield f"{name} on sets", {"method": method(name, **options), "stream": "sets"}
    together = {"seeds": 2, "together": True}
    yield "ER on sets, lockstep", {"method": method("ER"), "stream": "sets", **together}
    for stream in STREAMS:
        if stream not in ("single", "sets", "graphs"):
            on = {"stream": stream, **({"epochs": 1} if stream == "online" else {})}
            yield f"ER on {stream}", {"method": method("ER", memory={"total": 60}), **on}
    for name, options in VARIANTS:
        said = " ".join(f"{k}={v}" for k, v in options.items())
        case = {"method": method(name, **options), "model": GCN, "stream": "graphs"}
        yield f"{name} {said}~", case if name in GRAPHS else {"method": case["method"]}
    for name in ("EWC", "LwF", "LUCIR", "LGR", "GEM", "RWalk", "SLDA"):
        yield f"{name} multi~", {"method": method(name), "stream": "multi"}
    for name in ("ER", "EWC", "RWalk", "ICaRL", "DGR", "LatentReplay", "LwF", "BiC", "SI"):
        yield f"{name} normed~", {"method": method(name), "model": Normed, **together}
    for name in ("ER", "EWC", "SI", "DGR", "LUCIR", "GEM"):
        yield f"{name} adam~", {"method": method(name), **ADAM}
        yield f"{name} adam lockstep~", {"method": method(name), **ADAM, **together}
    for said, options in TRAININGS.items():
        yield f"training: {said}", {"method": method("ER"), **options}
    for model in ("lenet", "cnn", "resnet32", {"name": "resnet18_slim", "nf": 4}):
        brief = {"epochs": 1, "stream": "shapes", "model": model, "lr": 0.01}
        said = model if isinstance(model, str) else model["name"]
        yield f"model: {said}~", {"method": method("ER"), **ADAM, **brief}
    lenet = {"stream": "shapes", "model": "lenet", **ADAM, "epochs": 1}
    yield "model: lenet, lockstep~", {"method": method("ER"), **lenet, **together}
    graphs = {"stream": "graphs", "model": "stgcn", "epochs": 1}
    yield "model: stgcn~", {"method": method("ER"), **graphs}
    yield "a group of 33", {"method": method("ER"), "seeds": 33, "together": True, "epochs": 1}
    yield "detectors", {"method": method("ER"), "stream": "valid", "detectors": DETECTORS,
                        "model": {**MLP, "head": {"name": "linear", "bias": False}}}  # fmt: skip
    learnt = {"method": method("ER"), "evaluate_unseen": False}
    yield "learnt tasks only", learnt
    yield "learnt tasks only, lockstep, sets", {**learnt, "stream": "sets", **together}
    kept = {"keep": "parameters", "average": "macro"}
    yield "keep parameters, macro", {"method": method("ER"), **kept}


ADAM = {"precision": "float32", "optimizer": "adam", "lr": 0.005}
SETS: dict[str, dict[str, Any]] = {
    "LwF": {"form": "sigmoid"}, "ICaRL": {"variant": "cnn"}, "BiC": {"variant": "sigmoid"},
    "LUCIR": {"variant": "distil"},
}  # fmt: skip
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *(("ER", {"memory": {"total": 12, "policy": p}})
      for p in ("stratified", "reservoir", "herding", "entropy", "plane")),
    ("ER", {"mix": "union"}),
    ("ER", {"memory": {"total": 12, "policy": "reservoir"}, "renew": "step"}),
    ("EWC", {"labels": "sample"}), ("EWC", {"group": 4}), ("EWC", {"memory": {"total": 12}}),
    ("OnlineEWC", {"gamma_in_loss": True}),
    ("RWalk", {"memory": {"total": 12}}), ("RWalk", {"impl": "agem"}),
    ("MAS", {"group": 1}), ("SI", {"clamp": "total"}), ("TWP", {"beta": "double_backward"}),
    ("TWP", {"accumulate": True}), ("Replay", {"mix": "paired"}), ("Joint", {"init": "scratch"}),
    ("LatentReplay", HELD), ("LGR", HELD), ("LGR", {"distill": True}), ("DGR", {"distill": True}),
    ("LUCIR", {"variant": "no_margin"}), ("BiC", {"variant": "distil"}),
    ("ICaRL", {"variant": "cnn"}), ("LwF", {"scale": True}),
    ("GEM", {"redraw": True, "memory": {"fraction": 0.2}}),
    ("SLDA", {"train_first": False}),
    ("AGEM", {"masks": True}), ("SSIL", {"kd_inputs": "replay"}),
]  # fmt: skip
TRAININGS: dict[str, dict[str, Any]] = {
    "momentum": {"momentum": 0.9, "weight_decay": 0.01, "clip": 0.5, "optim_reset": False},
    "iterations": {"iterations": 5, "first_task_scale": 1.5, "incomplete_batch": "wrap",
                   "evaluate_every": 3},
    "step": {"schedule": "step", "milestones": [1], "incomplete_batch": "drop", "scope": "own"},
    "plateau": {"stream": "valid", "schedule": "plateau", "plateau_patience": 0, "patience": 2,
                "restore_best": True, "epochs": 4, "plateau_threshold": 0.2},
    "binary": {"loss": "bce", "class_weights": True, "scope": "all"},
    "balanced": {"loss": "balanced", "scope": "current", "batch_size": 0},
    "augmented": {"stream": "images", "augment": ["crop", "flip"]},
    "adamw~": {**ADAM, "optimizer": "adamw", "weight_decay": 0.1, "optim_reset": False},
    "bf16~": {"precision": "bf16"},
}  # fmt: skip
DETECTORS = ["Softmax", "Energy", "ODIN", "Mahalanobis", "KNN", "B1", "B2"]
CASES = dict(_cases())


class Watcher(Callback):
    """Takes what checkpoints hold after every stage, before later ones replace them."""

    def __init__(self, out: Path) -> None:
        self.out, self.found = out, Tensors()

    def stage(self, plan: Any, stage: int, rows: Any) -> None:
        kept = checkpoints_in(self.out)
        self.found |= {f"checkpoints/{name}": value for name, value in kept.items()}


class Interrupter(Callback):
    """Interrupts the process inside a stage, once."""

    def __init__(self, stage: int, step: int) -> None:
        self.at, self.done = (stage, step), False

    def step(self, plans: Any, stage: int, done: int, total: int) -> None:
        if not self.done and (stage, done) >= self.at:
            self.done = True
            signal.raise_signal(signal.SIGINT)


def train(case: Case, out: Path | None, callback: Callback | None = None) -> engram.Result:
    """The call that a line of the table stands for."""
    rest: Case = {"model": MLP, "together": False, "evaluate_unseen": True, **EXACT, **case}
    stream = STREAMS[rest.pop("stream", "single")]()
    return engram.run(stream, out=out, device="cpu", callback=callback, **rest)


def numbers_of(name: str) -> Tensors:
    """All tensors that a case leaves, by name."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if name in SCENES:
            return SCENES[name](out)
        watcher = Watcher(out)
        return left_by(train(CASES[name], out, watcher), out) | watcher.found


# -- what is more than one call --------------------------------------------------------------------
RESUMED = ("ER alone", "BiC alone", "RWalk lockstep", "LGR alone", "training: plateau",
           "a group of 33")  # fmt: skip


def interrupt(case: Case, out: Path) -> None:
    """Interrupt a run inside its second task."""
    interrupter = Interrupter(1, 1)
    with suppress(KeyboardInterrupt):
        train(case, out, interrupter)
    assert interrupter.done


def resumed(name: str, out: Path) -> Tensors:
    """The same call twice, the first of which is interrupted inside the second task."""
    interrupt(CASES[name], out)
    return left_by(train(CASES[name], out), out)


def learner(out: Path) -> Tensors:
    """Two tasks, saved and loaded between them; the second has classes beyond the capacity."""
    data, out = blobs(), out.parent
    rows = [task.train for task in single()]
    found: Tensors = {}
    for name in ("ER", "EWC", "LUCIR", "LwF"):
        one = engram.Learner(method(name), MLP, capacity=3, device="cpu", **EXACT)
        one.learn(data.x[rows[0]], data.labels[rows[0]])
        one = engram.Learner.load(one.save(out / "first.engram"), device="cpu")
        one.learn(data.x[rows[2]], data.labels[rows[2]])
        test = data.x[data.test]
        one.save(out / "model.engram")
        found |= {f"{name}/proba": torch.as_tensor(one.predict_proba(test)),
                  f"{name}/novelty": torch.as_tensor(one.novelty(test)),
                  f"{name}/features": torch.as_tensor(one.features(test))}  # fmt: skip
        found |= {f"{name}/{k}": v for k, v in tensors_in(out / "model.engram").items()}
    return found


RECIPE = {"stream": {"data": "blobs", "data_options": {"classes": 6, "per_class": 14}},
          "model": MLP, "training": EXACT, "seeds": 2, "evaluate_unseen": True}  # fmt: skip

KEPT = {**RECIPE, "model": {"name": "mlp", "hidden": [8]}}
LEFT = {**KEPT, "method": method("ER"), "seeds": 1}


def sweep(out: Path) -> Tensors:
    recipes = [RECIPE | {"method": method(name)} for name in ("Finetune", "ER", "SI")]
    return left_by(engram.sweep(recipes, out=out, device="cpu"), out)


def orders(out: Path) -> Tensors:
    recipe = engram.Recipe.of(RECIPE | {"method": method("ER")})
    study = engram.orders(recipe, task_orders="all", class_orders=2, out=out, device="cpu")
    return left_by(engram.read(out), out) | table_tensors(study.summary(), "summary")


def in_memory(out: Path) -> Tensors:
    """A run without a directory, and what is written of it afterwards."""
    result = train(CASES["ER alone"], None)
    result.save(out)
    memory = frame_tensors(result, recipes_in(out))
    return {f"memory/{k}": v for k, v in memory.items()} | left_by(engram.read(out), out)


def open_world(out: Path) -> Tensors:
    options = {"known": 3, "classes_per_round": 2, "budget": 6, "model": MLP, "device": "cpu"}
    world = engram.open_world(blobs(7, 40), method=method("ER"), **options, **EXACT)
    return table_tensors(world.table, "table")


def search(out: Path) -> Tensors:
    stream = {**RECIPE["stream"], "valid": 0.25}
    recipe = engram.Recipe.of({**RECIPE, "stream": stream, "method": method("ER")})
    found = engram.search(recipe, {"lr": [0.01, 0.05]}, out=out, device="cpu")
    return left_by(found.result, out)


def write_directories() -> None:
    """Write the two run directories anew."""
    for folder in (FINISHED, STOPPED):
        shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("ER", "EWC"):
            engram.Recipe.of(KEPT | {"method": method(name)}).write(f"{folder}/{name}.yaml")
            words = ["run", f"{name}.yaml", "--device", "cpu", "--out", "out"]
            subprocess.run([sys.executable, "-m", "engram", *words], check=True, cwd=folder)
        for path in Path(folder).glob("out/requests/*.yaml"):  # no matter where it was written
            path.write_text(path.read_text("utf-8").replace(folder, "/data"), encoding="utf-8")
        shutil.copytree(f"{folder}/out", FINISHED)
    with suppress(KeyboardInterrupt):
        engram.sweep(LEFT, out=STOPPED, device="cpu", pool="serial", callback=Interrupter(1, 1))


def finished(out: Path) -> Tensors:
    """What is read from a finished directory that was written once, and its models."""
    shutil.copytree(FINISHED, out)
    result = engram.read(out)
    assert not result.problems
    added = [f"average_incremental_accuracy{end}" for end in ("", "_std")]  # since it was frozen
    table = result.summary().drop(columns=added)
    found = left_by(result, out) | table_tensors(table, "summary")
    found |= table_tensors(result.compare().pairs, "compare")
    found["recomputed"] = torch.from_numpy(result.recompute(average="macro").matrix)
    for name in ("forgetting", "average_accuracy", "backward_transfer", "f1_score"):
        found[f"metric/{name}"] = torch.from_numpy(result.metric(name))
    test = blobs().x[blobs().test]
    for label in result.labels:
        found[f"proba/{label}"] = torch.as_tensor(result.model(label, seed=1).predict_proba(test))
    return found


def stopped(out: Path) -> Tensors:
    """A run that was interrupted when it was written, and goes on in today's code."""
    shutil.copytree(STOPPED, out)
    return left_by(engram.sweep(LEFT, out=out, device="cpu", pool="serial"), out)


SCENES: dict[str, Callable[[Path], Tensors]] = {
    **{f"{name}, resumed": lambda out, name=name: resumed(name, out) for name in RESUMED},
    "learner": learner, "sweep": sweep, "orders": orders, "in memory": in_memory,
    "open world": open_world, "search": search,
    "finished directory": finished, "stopped directory": stopped,
}  # fmt: skip
NAMES = [*CASES, *SCENES]
STEADY = [name for name in NAMES if not name.endswith("~")]
