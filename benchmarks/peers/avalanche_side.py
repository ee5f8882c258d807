"""Avalanche's side, run by an interpreter that has it: `python -m benchmarks.peers.avalanche_side`.

Strategies get their defaults, except for what the job sets. `ER:...` names variants of ER that
tell why it differs from a plain loop.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.peers.job import Job, Network, answer_all, job_folder


def import_torchvision() -> None:
    """Import torchvision even beside a torch that its compiled operators do not fit.

    Avalanche imports it, but only its data sets and transforms, none of which are used here.
    """
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # defined already
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision  # noqa: F401


def make_benchmark(job: Job, seed: int) -> Any:
    """The stream as Avalanche's benchmark."""
    from avalanche.benchmarks import nc_benchmark

    y = job.labels(seed)

    def part(name: str) -> Any:
        rows = torch.from_numpy(job.arrays[name])
        found: Any = TensorDataset(job.x[rows], y[rows])
        found.targets = y[rows].tolist()
        return found

    return nc_benchmark(
        part("train"), part("test"), n_experiences=job.tasks, task_labels=False,
        fixed_class_order=list(range(job.classes)),
    )  # fmt: skip


def make_strategy(job: Job, method: str, net: Network, evaluator: Any) -> Any:
    """A strategy of Avalanche by Engram's name of the method."""
    from avalanche.training import supervised

    ours = job.settings
    options: dict[str, Any] = {
        "optimizer": torch.optim.SGD(net.parameters(), lr=ours.lr),
        "train_mb_size": ours.batch_size, "train_epochs": ours.epochs, "eval_mb_size": 1024,
        "evaluator": evaluator,
    }  # fmt: skip
    if method == "ICaRL":
        return supervised.ICaRL(
            feature_extractor=net.features, classifier=net.classifier, memory_size=ours.memory,
            buffer_transform=None, fixed_memory=True, **options,
        )  # fmt: skip
    name, own = {
        "Finetune": ("Naive", {}),
        "ER": ("Replay", {"mem_size": ours.memory}),
        "EWC": ("EWC", {"ewc_lambda": ours.ewc}),
        "LwF": ("LwF", {"alpha": ours.lwf, "temperature": ours.temperature}),
        "DERpp": ("DER", {"mem_size": ours.memory, "alpha": ours.alpha, "beta": ours.beta}),
    }[method]
    return getattr(supervised, name)(model=net, criterion=nn.CrossEntropyLoss(), **own, **options)


def train(job: Job, method: str, seed: int) -> list[list[float]]:
    """Train and evaluate after every task."""
    import_torchvision()
    from avalanche.evaluation.metrics import accuracy_metrics
    from avalanche.training.plugins import EvaluationPlugin

    benchmark = make_benchmark(job, seed)
    watch = EvaluationPlugin(accuracy_metrics(experience=True), loggers=[])
    strategy = make_strategy(job, method, Network(job.layers(seed)), watch)
    matrix = []
    for k, experience in enumerate(benchmark.train_stream):
        strategy.train(experience)
        found = strategy.eval(benchmark.test_stream[: k + 1])
        by_task = {
            int(name[-3:]): float(value)
            for name, value in found.items()
            if name.startswith("Top1_Acc_Exp/")
        }
        matrix.append([by_task[j] for j in range(k + 1)])
    return matrix


if __name__ == "__main__":
    answer_all("Avalanche", train, job_folder())
