"""DualPrompt: prefixes that all tasks share, and prefixes of a task that rows choose by its key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from engram.errors import bad, check_choice, check_float, check_int
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.methods.method import (
    FROZEN_TRANSFORMER,
    Method,
    MethodNetworks,
    Network,
    State,
    Terms,
)
from engram.methods.prompting import (
    Prompts,
    check_numbers,
    choose_blocks,
    choose_most_frequent,
    compare,
    compute_query,
    enter_task,
    insert_prefixes,
    need_outline,
    note_tasks,
    open_new,
    pull_to_keys,
    stack_networks,
    train_task_classes,
)
from engram.models.forward_pass import Output
from engram.models.insertions import Insertions
from engram.per_run import PerRun
from engram.streams.stream import Task
from engram.streams.stream_outline import StreamOutline


@dataclass(frozen=True, kw_only=True)
class DualPrompt(Method):
    """General prompts for all tasks, and expert prompts of each task, as prefixes of attention.

    q(x) = features of the transformer with nothing inserted
    in training, rows have the expert prompt of their task t; its key k_t is pulled to q(x)
    answered, a row has the expert prompt whose key has the largest cosine to q(x)
    L = CE among the classes of the task + pull * (1 - cos(q(x), k_t))

    The transformer stands still; prompts, keys and the head are trained. From the next task on, an
    expert prompt stands still, too.

    Parameters
    ----------
    general, expert
        Further keys, and as many values, that prompts give to each of their blocks.
    general_blocks, expert_blocks
        Numbers of the blocks with prompts, from 0; those that the model lacks are left out.
    pull
        Weight of the distance between queries and the key of the task.
    choice
        ``row``: every row has the expert prompt that it chooses. ``batch``: all rows that are
        answered together have the one that most of them choose, as published.

    Notes
    -----
    The model must be a transformer, which is frozen: ``minilm``, ``vit``, ``timm/vit_...``.

    Examples
    --------
    >>> DualPrompt().expert_blocks, DualPrompt().needed_model
    ((2, 3, 4), 'frozen transformer')

    References
    ----------
    Wang et al. 2022, ECCV.
    """

    needed_model: ClassVar[str] = FROZEN_TRANSFORMER
    grows: ClassVar[bool] = True  # by a note on each expert prompt

    general: int = 5
    expert: int = 20
    general_blocks: tuple[int, ...] = (0, 1)
    expert_blocks: tuple[int, ...] = (2, 3, 4)
    pull: PerRun = 1.0
    choice: str = "row"

    def __post_init__(self) -> None:
        check_int("general", self.general)
        check_int("expert", self.expert)
        for name in ("general_blocks", "expert_blocks"):
            object.__setattr__(self, name, check_numbers(name, getattr(self, name)))
        if both := sorted({*self.general_blocks} & {*self.expert_blocks}):
            raise bad("expert_blocks", "other blocks than general_blocks", both[0])
        check_float("pull", self.pull)
        check_choice("choice", self.choice, ("row", "batch"))

    def networks(self, stream: StreamOutline) -> MethodNetworks:
        sizes = need_outline(stream, "DualPrompt")
        found: dict[str, Network] = {}
        blocks = choose_blocks("general_blocks", self.general_blocks, sizes.depth)
        found["general"] = Network(Prompts((len(blocks), 2, self.general, sizes.width)))
        blocks = choose_blocks("expert_blocks", self.expert_blocks, sizes.depth)
        for stage in range(len(stream)):
            made = Prompts((len(blocks), 2, self.expert, sizes.width), (int(stream.features or 0),))
            found[f"expert{stage}"] = Network(made, opens=stage)
        return found

    def start(self, learner: RunLearner, task: Task) -> None:
        enter_task(learner, {"tasks": note_tasks(learner)})
        open_new(learner, "expert")

    def loss(self, net: Net, batch: Batch, state: State) -> Terms:
        cosines = self.compare_to_tasks(net, batch.x, state)
        own = batch.stage.clamp(min=0)
        logits = self.insert(net, batch.x, state, own).logits
        similar = cosines.gather(-1, own[:, None])
        return {
            "task": train_task_classes(net, batch, state, logits),
            "pull": self.pull * pull_to_keys(similar, batch.w),
        }

    def answer(self, net: Net, x: Tensor, state: State, stage: Tensor) -> Output:
        chosen = self.compare_to_tasks(net, x, state).topk(1).indices
        if self.choice == "batch":
            every = torch.ones_like(chosen[:, 0])
            chosen = choose_most_frequent(chosen, every, 1, len(state["tasks"])).expand_as(chosen)
        return self.insert(net, x, state, chosen[:, 0])

    def compare_to_tasks(self, net: Net, x: Tensor, state: State) -> Tensor:
        """Compute the cosines [B, T] of queries and the keys of the tasks so far."""
        keys = stack_networks(net, "expert", "prompt_keys", len(state["tasks"]))
        return compare(compute_query(net, x), keys)

    def insert(self, net: Net, x: Tensor, state: State, chosen: Tensor) -> Output:
        """Compute the output of rows with the expert prompts of the tasks [B] chosen."""
        experts = stack_networks(net, "expert", "prompts", len(state["tasks"]))
        general: Tensor = net.params["general.prompts"]
        blocks = {
            **insert_prefixes(self.general_blocks[: len(general)], general),
            **insert_prefixes(self.expert_blocks[: experts.shape[1]], experts[chosen]),
        }
        found: Output = net.insert(x, Insertions(blocks=blocks))
        return found
