"""Engram's side, and the job for all: rows, class orders and initial weights come from here."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import engram
from benchmarks.peers.job import Job, Settings, answer_all, job_folder
from engram import methods
from engram.models.build import build


def make_job(data: str, settings: Settings) -> Job:
    """Make the job from a data set: rows in [0, 1], flat."""
    found = engram.load(data)
    x = np.asarray(found.x).reshape(len(found), -1)
    x = (x / np.float32(255 if x.dtype == np.uint8 else 1)).astype(np.float32)
    y = np.asarray(found.labels)
    arrays: dict[str, Any] = {"x": x, "y": y}
    for part in ("train", "test"):
        arrays[part] = np.asarray(getattr(found, part))
    classes = int(y.max()) + 1
    orders = [np.random.default_rng(seed).permutation(classes) for seed in range(settings.seeds)]
    arrays["order"] = np.stack(orders)
    model = {"name": "mlp", "hidden": list(settings.hidden)}
    for seed in range(settings.seeds):
        made = build(model, sample_shape=x.shape[1:], classes=classes, seed=seed)
        layers = [one for one in made.modules() if isinstance(one, torch.nn.Linear)]
        for k, layer in enumerate(layers):
            arrays[f"weight-{seed}-{k}"] = layer.weight.detach().numpy().copy()
            arrays[f"bias-{seed}-{k}"] = layer.bias.detach().numpy().copy()
    return Job(settings, arrays)


def make_method(job: Job, name: str) -> engram.Method:
    """A method with the settings of the job, otherwise the defaults."""
    ours = job.settings
    memory = engram.Memory(total=ours.memory)
    made: dict[str, engram.Method] = {
        "Finetune": methods.Finetune(),
        "ER": methods.ER(memory=memory),
        "EWC": methods.EWC(strength=ours.ewc, half=False),
        "LwF": methods.LwF(strength=ours.lwf, temperature=ours.temperature),
        "DERpp": methods.DERpp(
            memory=engram.Memory(total=ours.memory, policy="reservoir"),
            alpha=ours.alpha, beta=ours.beta, outputs="seen",
        ),
        "ICaRL": methods.ICaRL(memory=engram.Memory(total=ours.memory, policy="herding")),
    }  # fmt: skip
    return made[name]


def train(job: Job, method: str, seed: int) -> list[list[float]]:
    """Train and evaluate after every task, alone, as the others do."""
    ours, y = job.settings, job.labels(seed)
    rows = {part: torch.from_numpy(job.arrays[part]) for part in ("train", "test")}
    pairs = {part: (job.x[one], y[one]) for part, one in rows.items()}
    data = engram.Data.from_arrays(*pairs["train"], test=pairs["test"], name="peers")
    found = engram.run(
        engram.class_incremental(data, classes_per_task=ours.classes_per_task),
        method=make_method(job, method), model={"name": "mlp", "hidden": list(ours.hidden)},
        seeds=[seed], device="cpu", epochs=ours.epochs, batch_size=ours.batch_size, lr=ours.lr,
        optimizer="sgd", momentum=0.0,
    )  # fmt: skip
    (matrix,) = found.matrix
    return [[float(cell) for cell in row[: k + 1]] for k, row in enumerate(matrix)]


if __name__ == "__main__":
    answer_all("Engram", train, job_folder())
