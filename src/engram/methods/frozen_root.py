"""`FrozenRoot`, base class of methods with a frozen root: where the root gets its weights."""

from __future__ import annotations

import re
from dataclasses import dataclass

from engram.errors import bad, check_choice, check_float, check_int
from engram.methods.method import Method, Prologue, RootFile
from engram.per_run import PerRun

ROOTS = ("heldout", "first_task", "none", "external")


@dataclass(frozen=True, kw_only=True)
class FrozenRoot(Method):
    """A root that is frozen while tasks are trained.

    Parameters
    ----------
    root
        Where the root gets its weights. ``heldout``: before the first task, the whole network is
        trained on a share of the training rows, with all classes open, and the top is
        reinitialised; no task contains those rows. ``first_task``: the whole network is trained on
        the first task, then the root is frozen. ``none``: the root keeps its initial weights, or
        those the model came with. ``external``: the weights are read from a file.
    root_share
        For ``heldout``: the share of each task's training rows that is set aside.
    root_iterations
        For ``heldout``: the number of steps.
    root_batch_size
        For ``heldout``: rows per step.
    root_lr
        For ``heldout``: the learning rate; 0: the recipe's. A sigmoid above many inputs saturates
        at a learning rate that suits the tasks.
    root_file
        For ``external``: safetensors or a saved ``state_dict``. Leading parts of names may be
        missing, but every tensor of the root must be present.
    root_sha256
        For ``external``: the checksum of the file, which is required.
    """

    root: str = "heldout"
    root_share: PerRun = 1 / 6
    root_iterations: int = 1000
    root_batch_size: int = 32
    root_lr: float = 0.0
    root_file: str = ""
    root_sha256: str = ""

    def check_root(self) -> None:
        """Raise for invalid settings of the root."""
        check_choice("root", self.root, ROOTS)
        check_float("root_share", self.root_share, 0.0, 0.9, open_low=True)
        check_int("root_iterations", self.root_iterations, 1)
        check_int("root_batch_size", self.root_batch_size, 1)
        check_float("root_lr", self.root_lr)
        for name in ("root_file", "root_sha256"):
            value = getattr(self, name)
            if not isinstance(value, str) or bool(value) != (self.root == "external"):
                raise bad(name, 'a text where root is "external", and none elsewhere', value)
        if self.root_sha256 and not re.fullmatch("[0-9a-fA-F]{64}", self.root_sha256):
            raise bad("root_sha256", "the 64 hexadecimal digits of the file", self.root_sha256)

    def learns_root(self, stage: int) -> bool:
        """Whether the root is trained in a task."""
        return stage == 0 and self.root == "first_task"

    def prologue(self) -> Prologue | RootFile | None:
        if self.root == "heldout":
            return Prologue(
                self.root_share, self.root_iterations, self.root_batch_size, self.root_lr
            )
        if self.root == "external":
            return RootFile(self.root_file, self.root_sha256)
        return None
