"""`RunLearner`: the state of one run, its guarded access to data, and its memory use in bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engram import distributed, keys
from engram.errors import AccessError, bad, check_choice
from engram.learner.batch import (
    NO_VALUES,
    Batch,
    TrainingRows,
    move_hidden_last,
    task_rows,
    visible_labels,
)
from engram.learner.feed import Feed
from engram.learner.gradients import Term, Transform, Weights, average_gradient, eval_outputs
from engram.learner.networks import FunctionalNet, Net
from engram.learner.objectives import SCOPES, competing_classes
from engram.learner.parameter_layout import Networks, Views
from engram.learner.tensor_tree import leaves, nbytes
from engram.memory.exemplars import Exemplars
from engram.models.forward_pass import Output
from engram.streams.access_guard import Ledger, MethodView, check_row_numbers
from engram.streams.stream import Stream, Task

Answer = Callable[[Net, Tensor, Any, Tensor], Output]  # `Method.answer`
EVAL_ROWS = 4096  # rows per evaluation pass on the host
EVAL_ENTRIES = 1 << 26  # input entries per pass: 256 MiB of float32


class RunLearner:
    """One run: a parameter vector with named views, buffers, state, memory, and guarded data.

    Methods receive it in ``start`` and ``finish``, as a proxy. There they may write into ``params``
    (views of the vector), ``free`` (which entries are trainable), ``state`` (their own tree of
    tensors) and ``exemplars``; they read data through ``batch`` only.

    This class belongs to the engine. `engram.Learner`, which users create, is another one (in
    `engram.deploy`): it trains a run with the engine and predicts with the result.
    """

    def __init__(
        self, *, networks: Networks, stream: Stream, feed: Feed, seed: int, scope: str, reads: str,
        initial: tuple[Tensor, dict[str, Tensor]] | None = None, answer: Answer | None = None,
        tells_task: bool = False, rereads: bool = False,
    ) -> None:  # fmt: skip
        self.networks, self.stream, self.feed, self.seed = networks, stream, feed, seed
        # what the method answers (None: the network itself), and whether it is told tasks
        self.answer, self.tells_task = answer, tells_task
        self.rereads = rereads  # whether the method can read rows of earlier tasks again
        self.scope = check_choice("scope", scope, SCOPES)
        self.device, self.stage = feed.device, -1
        vector, buffers = initial or networks.initial()
        self.vector = vector.to(self.device, feed.dtype)
        self.buffers = {k: v.to(self.device) for k, v in buffers.items()}
        self.free = torch.ones_like(self.vector, dtype=torch.bool)
        self.opened = torch.full((len(stream.order),), -1, dtype=torch.long)
        self.state: dict[str, Any] = {}
        # of joined methods: the states of all parts, and the part whose verb runs
        self.joined: tuple[dict[str, Any], str] | None = None
        self.opt: dict[str, Any] = {}
        self.exemplars = Exemplars.empty()
        self.values: dict[str, Tensor] = {}  # [n, ...] stored with each exemplar by `remember`
        # row numbers that no batch of the task may hold; None: no batch follows
        self.aside: Tensor | None = None
        self.probes: dict[str, Any] = {}  # what probes keep between stages, by their keys
        self.latents: dict[str, Tensor] = {}  # of the task's rows, while the root is frozen
        self.reads, self.ledger = reads, Ledger()
        self.guard: MethodView | None = None  # created when a task is entered
        self.resume_point: Any = None  # set by the engine: where an interrupted task continues
        self.before: Any = []  # set by the engine: losses of a prologue, until the first task
        self.scores_unseen = False  # set by the engine: whether tasks to come are scored, too
        self.diverged = -1  # stage in which the run diverged, see engram.engine.evaluation
        self.units: dict[str, float] = {}  # size of each loss term at its first occurrence
        self._average: Callable[..., Tensor] | None = None  # set by the engine for mapped passes

    # -- weights, classes, tasks -----------------------------------------------------------------
    @property
    def task(self) -> Task:
        return self.stream.tasks[self.stage]

    @property
    def params(self) -> Views:
        """Views of the vector, ``params.head.weight``; writing into them changes the weights."""
        return self.networks.layout(self.vector)

    def layout(self, vector: Tensor) -> Views:
        """Return views of any vector of parameters (`free`, an importance), as in `params`."""
        return self.networks.layout(vector)

    @property
    def seen(self) -> Tensor:
        """[C] classes opened so far."""
        return self.opened >= 0

    @property
    def new(self) -> Tensor:
        """[C] classes opened by the current task."""
        return self.opened == self.stage

    @property
    def known(self) -> Tensor:
        """[C] classes opened before the current task."""
        return self.seen & ~self.new

    def open_classes(self, stage: int) -> None:
        """Enter a task and open its new columns; all but unopened columns become trainable."""
        self.enter(stage)
        self.free = self.networks.free(self.seen, stage).to(self.device, copy=True)

    def enter(self, stage: int) -> None:
        """Enter a task without changing `free`: for a learner that copies another one."""
        self.stage, self.aside = stage, torch.empty(0, dtype=torch.long)
        self.guard = MethodView(self.stream, stage, reads=self.reads, ledger=self.ledger)
        self.opened = torch.where(self.stream.opening <= stage, self.stream.opening, -1)

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of the weights and buffers, for `net.frozen`."""
        return {
            "vector": self.vector.clone(),
            "buffers": {k: v.clone() for k, v in self.buffers.items()},
        }

    def net(self) -> Net:
        """Return the networks in eval mode with the current weights."""
        return FunctionalNet(self.networks, self.vector, self.buffers, training=False)

    def class_weights(self) -> Tensor:
        """Return the rows [C, d] of the last layer."""
        return self.params[self.networks.class_rows[0]].detach().cpu()

    # -- access to data --------------------------------------------------------------------------
    def items(self, rows: Tensor | None = None, stages: Tensor | None = None) -> TrainingRows:
        """Return checked (row, stage) pairs with the labels visible in their stage."""
        if self.guard is not None and stages is None and (rows is None or rows is self.task.train):
            self.guard.allow_task()
            return task_rows(self.stream, self.stage)
        if self.guard is None:
            raise AccessError("the learner has not entered a task yet")
        rows, exemplars = self.task.train if rows is None else rows, self.exemplars
        check_row_numbers(rows=rows, stages=stages)
        slot = torch.full_like(rows, -1)
        if stages is None:
            stages = torch.full_like(rows, self.stage)
            self.guard.allow_now(rows)
        elif rows.shape != stages.shape:
            raise bad(
                "stages", f"one stage per row, shape {tuple(rows.shape)}", tuple(stages.shape)
            )
        elif rows is exemplars.rows and stages is exemplars.stages:
            self.guard.allow_memory(rows, stages)
            slot = torch.arange(len(rows))
        else:
            self.guard.allow(rows, stages, exemplars.rows, exemplars.stages)
        y = visible_labels(self.stream, rows, stages)
        return TrainingRows(rows, stages, y, torch.ones(len(rows)), slot)

    def complete_items(self, rows: Tensor, stages: Tensor) -> TrainingRows:
        """Return every row once, as of its latest task, with all its labels opened so far."""
        if self.reads != "past":
            raise AccessError('labels hidden by a task can be read only with reads = "past"')
        order = stages.argsort(descending=True, stable=True)  # the latest first
        rows, stages = rows[order], stages[order]
        distinct, group = rows.unique(return_inverse=True)
        place = torch.full_like(distinct, len(rows)).scatter_reduce(
            0, group, torch.arange(len(rows)), "amin"
        )
        items = self.items(rows[place], stages[place])
        y = self.stream.targets[items.rows]
        shown = (y >= 0) & self.seen[y.clamp(min=0)]
        return items._replace(y=move_hidden_last(y, shown))

    def labels(self, rows: Tensor) -> Tensor:
        """Return the labels [n, L] of rows of the current task, as columns of its classes."""
        items = self.items(rows)
        y = items.y.clone()  # items of a whole task are shared
        own = self.stream.visible[items.stages[:, None], y.clamp(min=0)] & (y >= 0)
        return move_hidden_last(y, own)

    def set_aside(self, rows: Tensor) -> None:
        """Keep rows of the task or of the memory out of all batches until the task ends.

        Something may then be fitted on rows that training has not seen. For ``start``, and for what
        a phase calls before it; a second call adds rows.
        """
        if self.aside is None:
            wanted = "to be called before training, in start or by Phase.before"
            raise bad("learner.set_aside", wanted, "a call in finish, after which no batch follows")
        check_row_numbers(rows=rows)
        known = [self.task.train, self.exemplars.rows]
        if self.reads == "past":
            known += [task.train for task in self.stream.tasks[: self.stage]]
        if len(odd := rows.cpu()[~torch.isin(rows.cpu(), torch.cat(known))]):
            raise AccessError(
                f"task {self.stage}: row {int(odd[0])} cannot be set aside, because no batch of "
                "this task could hold it"
            )
        self.aside = torch.cat([self.aside, rows.cpu()]).unique()

    def batch(self, rows: Tensor | None = None, stages: Tensor | None = None) -> Batch:
        """Return inputs and visible labels; by default of the current task's training rows."""
        batch = self.collate(self.items(rows, stages))
        # items of a whole task are shared between runs, but a batch is the caller's own
        return batch._replace(y=batch.y.clone(), stage=batch.stage.clone())

    def collate(self, items: TrainingRows, *, inputs: bool = True) -> Batch:
        """Build the batch of some items; without `inputs`, everything but the inputs."""
        device = self.device
        opened, stage = self.opened.to(device), items.stages.to(device)
        table = competing_classes(self.scope, opened, self.stream.visible.to(device), self.stage)
        self._need_inputs(items)
        key = torch.tensor(keys.fold(self.seed, "host", self.stage), device=device)
        count = len(items.rows)
        x = self.feed(items.rows.to(device), stage) if inputs else stage.new_zeros(count, 0)
        return Batch(
            x=x, y=items.y.to(device), w=torch.ones(count, device=device, dtype=self.feed.dtype),
            stage=stage, old=(stage < self.stage).to(self.feed.dtype), open=table[stage],
            slot=items.slot.to(device),
            opened=opened, now=torch.tensor(self.stage, device=device), key=key,
        )  # fmt: skip

    def _need_inputs(self, items: TrainingRows) -> None:
        """Refuse to read inputs of earlier tasks if exemplars are stored as latents."""
        if "latent" in self.values and bool((items.stages < self.stage).any()):
            raise AccessError("rows of earlier tasks are stored as latents: their inputs are gone")

    @property
    def rows_at_once(self) -> int:
        """Number of rows per pass on the host: fewer if samples are large."""
        sample = max(1, math.prod(self.stream.data.sample_shape))
        return max(16, min(EVAL_ROWS, EVAL_ENTRIES // sample))

    def outputs(self, rows: Tensor, stages: Tensor | None = None) -> Output:
        """Return features and logits of the main network for some rows, in eval mode, on the CPU.

        What the method answers instead is in `answers`.
        """
        weights = Weights(self.vector, self.buffers)

        def forward(x: Tensor) -> Output:
            found = eval_outputs(self.networks, weights, "net", x)
            assert isinstance(found, Output)
            return found

        return self._pass_rows(forward, self.items(rows, stages))

    @torch.no_grad()
    def answers(self, rows: Tensor, stages: Tensor | None = None) -> Output:
        """Return what the method answers about some rows in eval mode, on the CPU.

        Memory policies choose rows by it, and it is what is evaluated after the task.
        """
        answer, state = self.answer, self.state
        if answer is None:
            return self.outputs(rows, stages)
        if self.joined is not None:
            states, part = self.joined
            state = {**states, part: state}
        items = self.items(rows, stages)

        def answer_about(stage: int, some: TrainingRows) -> Output:
            told = torch.tensor(stage, device=self.device)
            return self._pass_rows(lambda x: answer(self.net(), x, state, told), some)

        if not self.tells_task:
            return answer_about(-1, items)
        places = [(items.stages == k).nonzero()[:, 0] for k in items.stages.unique()]
        parts = [answer_about(int(items.stages[one[0]]), items.take(one)) for one in places]
        order = torch.cat(places).argsort()
        features = torch.cat([part.features for part in parts])[order]
        return Output(features, torch.cat([part.logits for part in parts])[order])

    def _pass_rows(self, forward: Callable[[Tensor], Output], items: TrainingRows) -> Output:
        """Collect the outputs of a function of inputs, on the CPU."""
        self._need_inputs(items)
        parts: list[Output] = []
        size, count = self.rows_at_once, len(items.rows)
        where = [slice(start, start + size) for start in range(0, count, size)]
        ranks = distributed.current_ranks()
        ranks = ranks if ranks is not None and len(where) >= ranks.world else None
        mine = where if ranks is None else ranks.shard(where)
        for _, x in self.feed.chunks(items.rows, items.stages, mine):
            parts.append(forward(x))
        if ranks is not None:
            seen = ranks.gather([one.features for one in parts], mine, count)
            parts = [Output(seen, ranks.gather([one.logits for one in parts], mine, count))]
        features = torch.cat([p.features for p in parts]).cpu()
        logits = torch.cat([p.logits for p in parts]).cpu()
        return Output(features, logits)

    def average_gradient(
        self,
        term: Term,
        *,
        transform: Transform = torch.square,
        group: int | str = 1,
        rows: Tensor | None = None,
        stages: Tensor | None = None,
        labels: Tensor | None = None,
        batch_statistics: bool = False,
    ) -> Tensor:
        """Average ``transform(d term(net, batch) / d vector)`` over groups of rows.

        `group` is the number of rows per gradient: 1 for per-sample gradients, ``"full"`` for one
        gradient of the whole set. `labels` [n] or [n, L] replaces the visible labels. The pass is
        in eval mode; with `batch_statistics` BatchNorm uses each group's own statistics, without
        updating the running ones. `term` must depend on nothing but its arguments and the method,
        because runs with equal methods share one mapped pass.
        """
        items = self.items(rows, stages)
        if labels is not None:
            items = items._replace(y=labels.cpu().reshape(len(labels), -1))
        size = len(items.rows) if group == "full" else int(group)
        if self._average is not None:
            found = self._average(self, items, term, transform, size, batch_statistics)
            return torch.where(self.free, found, 0.0)
        weights = Weights(self.vector, self.buffers)
        total, groups = torch.zeros_like(self.vector), -(-len(items.rows) // size)
        per_pass = max(1, self.rows_at_once // size)
        starts, ranks = range(0, groups, per_pass), distributed.current_ranks()
        for start in starts if ranks is None else ranks.shard(starts):
            batch = self.group_batch(items, size, start, min(start + per_pass, groups))
            share = batch.w.shape[0] / groups
            total += share * average_gradient(
                self.networks, weights, batch, term, transform, batch_statistics
            )
        if ranks is not None:
            ranks.sum_(total)
        return torch.where(self.free, total, 0.0)  # unopened columns have no importance

    def group_batch(self, items: TrainingRows, size: int, start: int, stop: int) -> Batch:
        """Build the groups `start` to `stop` of `size` rows: a Batch with axes [groups, size]."""
        place = torch.arange(start * size, stop * size)
        real = place < len(items.rows)
        place = place.clamp(max=len(items.rows) - 1)  # padding repeats a real row, weight 0
        batch = self.collate(items.take(place))
        batch = batch._replace(w=real.to(self.device, self.feed.dtype))
        count = stop - start
        shaped = [leaf.reshape(count, size, *leaf.shape[1:]) for leaf in batch.per_row]
        spread = [leaf.expand(count, *leaf.shape) for leaf in batch.shared[:2]]
        key = keys.fold(batch.key, torch.arange(start, stop, device=self.device))
        return Batch._make([*shaped, *spread, key, (), NO_VALUES, ()])

    # -- memory use ------------------------------------------------------------------------------
    def memory_bytes(self) -> int:
        """Return the bytes of exemplars with their values, and of networks that count as memory."""
        return memory_nbytes(self)

    def latent_bytes(self) -> int:
        """Return the bytes of the latents stored as exemplars."""
        return nbytes(self.values.get("latent", ()))

    def generator_bytes(self) -> int:
        """Return the bytes of networks that count as memory."""
        return generator_nbytes(self)

    def nbytes(self) -> dict[str, int]:
        """Return the bytes of everything the learner holds, by kind."""
        return nbytes_by_kind(self)


# -- memory use in bytes ---------------------------------------------------------------------------


def memory_nbytes(learner: RunLearner) -> int:
    """Return the bytes of exemplars, of values stored with them, and of networks that count.

    An exemplar is a sample, or its latent; networks that count as memory have `Network.counts`.
    """
    values = learner.values
    sample = 0 if "latent" in values else learner.stream.data.sample_bytes
    return len(learner.exemplars) * sample + nbytes(values) + generator_nbytes(learner)


def generator_nbytes(learner: RunLearner) -> int:
    """Return the bytes of networks that count as memory."""
    total, closed = 0, learner.networks.closed(learner.stage)
    for name, settings in learner.networks.settings.items():
        if settings.counts and f"{name}." not in closed:
            held = {**learner.buffers, **learner.networks.constants}
            own = {k: v for k, v in held.items() if k.startswith(f"{name}.")}
            size = _count_parameters(learner, name) * learner.vector.element_size()
            total += size + nbytes(own)
    return total


def count_closed(learner: RunLearner) -> int:
    """Count the parameters of networks that later tasks open."""
    names = (prefix[:-1] for prefix in learner.networks.closed(learner.stage))
    return sum(_count_parameters(learner, name) for name in names)


def _count_parameters(learner: RunLearner, name: str) -> int:
    return sum(one.stop - one.start for one in learner.networks.places(name))


def nbytes_by_kind(learner: RunLearner) -> dict[str, int]:
    """Return the bytes of everything, by kind.

    Kinds: ``parameters`` and ``buffers`` of the main network; ``networks``: additional networks
    with their buffers; ``state`` of the method; ``optimizer``; ``exemplars``: `memory_nbytes`.
    Constant parameters count with their network, although runs that train together share them.
    Networks that later tasks open count from then on.
    """
    networks, buffers, constants = learner.networks, learner.buffers, learner.networks.constants
    fixed = sum(v.nbytes for k, v in constants.items() if k.startswith("net."))
    main = networks.main_size * learner.vector.element_size() + fixed
    own = sum(buffers[k].nbytes for k in networks.main_buffers if k in buffers)
    absent, moments = 0, 0
    if prefixes := networks.closed(learner.stage):
        closed = count_closed(learner)
        absent = closed * learner.vector.element_size() + sum(
            v.nbytes for k, v in {**buffers, **constants}.items() if k.startswith(prefixes)
        )
        moments = sum(
            closed * leaf.element_size() for leaf in leaves(learner.opt)
            if leaf.shape[-1:] == learner.vector.shape
        )  # fmt: skip
    return {
        "parameters": main,
        "buffers": own,
        "networks": nbytes(learner.vector)
        + nbytes(constants)
        - main
        + nbytes(buffers)
        - own
        - absent
        - generator_nbytes(learner),
        "state": nbytes(learner.state),
        "optimizer": nbytes(learner.opt) - moments,
        "exemplars": memory_nbytes(learner),
    }
