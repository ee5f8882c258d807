"""Mammoth's side, run by an interpreter that has what it needs, with a checkout in the path.

`python -m benchmarks.peers.mammoth_side JOB`, in the folder of the checkout. Models get Mammoth's
defaults, except for what the job sets. EWC is its online one, the only one there, without decay.
"""

# Mammoth calls the annotations of a backbone, so they must not be text
# ruff: noqa: I002
import sys
import tempfile
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers.avalanche_side import import_torchvision
from benchmarks.peers.job import Job, Network, answer_all, job_folder

NAME = "peer-rows"
import_torchvision()
# Mammoth imports all its data sets at once; one of them loads weights from the network with it
sys.modules["open_clip"] = MagicMock()

from backbone import MammothBackbone, register_backbone  # noqa: E402
from datasets import register_dataset  # noqa: E402
from datasets.utils import set_default_from_args  # noqa: E402
from datasets.utils.continual_dataset import ContinualDataset, store_masked_loaders  # noqa: E402
from utils.notebooks import load_runner  # noqa: E402
from utils.training import train as train_model  # noqa: E402


class Part(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Training or test rows in the form that Mammoth expects."""

    def __init__(self, job: Job, seed: int, part: str) -> None:
        rows = torch.from_numpy(job.arrays[part])
        self.data, self.targets = job.x[rows].numpy(), job.labels(seed)[rows].numpy()
        self.part = part

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> tuple[Any, ...]:
        x, y = torch.from_numpy(self.data[row]), int(self.targets[row])
        return (x, y, x.clone()) if self.part == "train" else (x, y)


class Current:
    """The job in work: Mammoth makes data sets and backbones from names alone."""

    job: Job
    seed: int
    matrix: list[list[float]]


@register_backbone("peer-mlp")
def peer_mlp(num_classes: int) -> MammothBackbone:
    """The network of the job."""
    return Backbone(Current.job, Current.seed)


class Backbone(MammothBackbone):  # type: ignore[misc]
    """The network of the job, as Mammoth calls it."""

    def __init__(self, job: Job, seed: int) -> None:
        super().__init__()
        net = Network(job.layers(seed))
        self.body, self.classifier = net.features, net.classifier

    def forward(self, x: Tensor, returnt: str = "out") -> Any:
        """Compute logits, features, or both."""
        features = self.body(x)
        if returnt == "features":
            return features
        out = self.classifier(features)
        return out if returnt == "out" else (out, features)


def make_dataset(job: Job) -> None:
    """Register the rows of a job as a data set."""

    @register_dataset(NAME)
    class PeerRows(ContinualDataset):  # type: ignore[misc]
        NAME = "peer-rows"
        SETTING = "class-il"
        N_CLASSES_PER_TASK = job.settings.classes_per_task
        N_TASKS = job.tasks
        N_CLASSES = job.classes
        SIZE = (job.x.shape[1],)
        TRANSFORM = None

        def get_data_loaders(self) -> Any:
            parts = (Part(Current.job, Current.seed, part) for part in ("train", "test"))
            return store_masked_loaders(*parts, self)

        def log(self, args: Any, logger: Any, accs: Any, *others: Any, **options: Any) -> Any:
            Current.matrix.append([one / 100 for one in accs[0]])
            return np.mean(accs, axis=1)

        @set_default_from_args("backbone")
        def get_backbone() -> str:  # type: ignore[misc]
            return "peer-mlp"

        @staticmethod
        def get_transform() -> Any:
            return None

        @staticmethod
        def get_loss() -> Any:
            return F.cross_entropy

        @staticmethod
        def get_normalization_transform() -> Any:
            return None

        @staticmethod
        def get_denormalization_transform() -> Any:
            return None

        @set_default_from_args("batch_size")
        def get_batch_size() -> int:  # type: ignore[misc]
            return job.settings.batch_size

        @set_default_from_args("n_epochs")
        def get_epochs() -> int:  # type: ignore[misc]
            return job.settings.epochs


def train(job: Job, method: str, seed: int) -> list[list[float]]:
    """Train and evaluate after every task."""
    if not hasattr(Current, "job"):
        make_dataset(job)
    Current.job, Current.seed, Current.matrix = job, seed, []
    ours = job.settings
    memory = {"buffer_size": ours.memory, "minibatch_size": ours.batch_size}
    name, own = {
        "Finetune": ("sgd", {}),
        "ER": ("er", memory),
        "EWC": ("ewc_on", {"e_lambda": ours.ewc, "gamma": 1.0}),
        "LwF": ("lwf", {"alpha": ours.lwf, "softmax_temp": ours.temperature}),
        "DERpp": ("derpp", {**memory, "alpha": ours.alpha, "beta": ours.beta}),
        "ICaRL": ("icarl", memory),
    }[method]
    with tempfile.TemporaryDirectory() as folder:
        model, data = load_runner(
            name, NAME,
            {
                "lr": ours.lr, "optimizer": "sgd", "optim_mom": 0.0, "optim_wd": 0.0,
                "n_epochs": ours.epochs, "batch_size": ours.batch_size, "seed": seed,
                "base_path": folder, "num_workers": 0, "non_verbose": 1,
                **own,
            },
        )  # fmt: skip
        train_model(model, data)
    return Current.matrix


if __name__ == "__main__":
    answer_all("Mammoth", train, job_folder())
