"""Methods that cheat, by name: each takes what no learner may have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from engram.memory import Exemplars, Memory
from engram.methods import ER
from engram.methods.fisher import visible_label_nll
from engram.methods.method import Method
from engram.streams import Ledger, MethodView

cheat = dataclass(frozen=True, kw_only=True)
KEPT: dict[int, Tensor] = {}  # where one of them hides what it keeps


def exemplars(rows: Tensor, stage: int) -> Exemplars:
    """Items as if a policy had chosen these rows."""
    stages, places = torch.full_like(rows, stage), torch.arange(len(rows))
    return Exemplars(rows, stages, torch.zeros_like(rows), places)


def pull(learner: Any, x: Tensor) -> None:
    """Let data leave a trace in the weights."""
    learner.vector += 1e-3 * x.double().mean()


# -- around the door -----------------------------------------------------------------------------
@cheat
class ReadsTheData(Method):
    """Takes the inputs of the test rows from the stream."""

    def start(self, learner, task):
        pull(learner, learner.stream.data.x[task.test])


@cheat
class ReadsTheLabels(Method):
    """Takes the labels of the test rows from the stream."""

    def start(self, learner, task):
        pull(learner, learner.stream.targets[task.test])


@cheat
class ReadsTheRawLabels(Method):
    """Takes the class ids of later tasks from the data."""

    def start(self, learner, task):
        pull(learner, learner.stream.data.y[learner.stream.tasks[-1].train])


@cheat
class FeedsItself(Method):
    """Asks the feed for inputs, past the guard."""

    def start(self, learner, task):
        pull(learner, learner.feed(task.test, torch.full_like(task.test, learner.stage)))


@cheat
class ReplacesTheGuard(Method):
    """Puts the guard of the last task in place of its own."""

    def start(self, learner, task):
        stream = learner.stream
        learner.guard = MethodView(stream, len(stream) - 1, reads="past")


@cheat
class ReplacesTheLedger(Method):
    """Starts a new ledger when it has read."""

    def finish(self, learner, task):
        learner.ledger = Ledger()


@cheat
class WipesTheLedger(Method):
    """Empties the ledger in place."""

    def finish(self, learner, task):
        learner.ledger._counts.clear()


@cheat
class DeclaresThePastLate(Method):
    """Declares that it reads the past when the engine has asked already."""

    def start(self, learner, task):
        learner.reads = "past"


@cheat
class CompletesLabels(Method):
    """Asks for the labels that its task hides."""

    def start(self, learner, task):
        learner.complete_items(task.train, torch.full_like(task.train, learner.stage))


@cheat
class EntersTheNextTask(Method):
    """Moves on to the next task to read its rows."""

    def start(self, learner, task):
        later = min(learner.stage + 1, len(learner.stream) - 1)
        learner.open_classes(later)
        learner.batch(learner.stream.tasks[later].train)


@cheat
class RewritesItsTask(Method):
    """Writes test rows over the training rows of its task."""

    def start(self, learner, task):
        count = min(len(task.train), len(task.test))
        task.train[:count] = task.test[:count]


@cheat
class NetworkOfTheData(Method):
    """Builds a network around the inputs of all rows."""

    def networks(self, stream):
        module = nn.Linear(1, 1)
        module.register_buffer("kept", torch.as_tensor(stream.data.x).clone())
        return {"store": module}


@cheat
class PolicyWithAView(ER):
    """Its policy ranks rows by the labels of all rows."""

    memory: Memory = Memory(total=12, policy=lambda learner, rows, column, count: (
        learner.stream.targets[rows][:, 0].argsort()
    ))  # fmt: skip


# -- through the door ----------------------------------------------------------------------------
@cheat
class BatchOfTestRows(Method):
    """Asks for test rows as if they were its own."""

    def finish(self, learner, task):
        pull(learner, learner.batch(task.test).x)


@cheat
class OutputsOfTestRows(Method):
    """Asks what the network says about test rows."""

    def finish(self, learner, task):
        pull(learner, learner.outputs(task.test).features)


@cheat
class ImportanceOfTestRows(Method):
    """Takes its importance from test rows."""

    def finish(self, learner, task):
        learner.average_gradient(visible_label_nll, rows=task.test)


@cheat
class BatchOfPastRows(Method):
    """Reads rows of the first task that no memory holds."""

    def start(self, learner, task):
        rows = learner.stream.tasks[0].train
        if learner.stage:
            pull(learner, learner.batch(rows, torch.zeros_like(rows)).x)


# -- into the memory -----------------------------------------------------------------------------
@cheat
class KeepsTestRows(ER):
    """Calls test rows its memory."""

    def finish(self, learner, task):
        learner.exemplars = exemplars(task.test[:6], learner.stage)


@cheat
class KeepsPastRows(ER):
    """Fills its memory with rows of the first task when that is over."""

    def finish(self, learner, task):
        if learner.stage:
            learner.exemplars = exemplars(learner.stream.tasks[0].train[:6], 0)


@cheat
class KeepsFutureRows(ER):
    """Calls rows of the next task rows of its own."""

    def finish(self, learner, task):
        later = learner.stream.tasks[min(learner.stage + 1, 2)].train
        learner.exemplars = exemplars(later[:6], learner.stage)


@cheat
class InventsStages(ER):
    """Says that its exemplars were stored in another task, whose labels it wants to see."""

    def finish(self, learner, task):
        learner.exemplars = exemplars(task.train[:6], min(learner.stage + 1, 2))


@cheat
class WritesIntoItsMemory(ER):
    """Lets the memory choose, and writes test rows over the choice."""

    def finish(self, learner, task):
        super().finish(learner, task)
        learner.exemplars.rows[:6] = task.test[:6]


@cheat
class BorrowsItsMemory(ER):
    """Writes test rows into the memory, reads them, and puts everything back."""

    def finish(self, learner, task):
        super().finish(learner, task)
        kept = learner.exemplars
        rows = kept.rows.clone()
        kept.rows[:6] = task.test[:6]
        pull(learner, learner.batch(kept.rows, kept.stages).x)
        kept.rows.copy_(rows)


# -- outside the memory --------------------------------------------------------------------------
def some(learner: Any, count: int = 64) -> Tensor:
    """The first inputs of each new class."""
    batch = learner.batch()
    columns = learner.new.nonzero()[:, 0]
    return torch.cat([batch.x[batch.target == column][:count] for column in columns])


@cheat
class HoardsInItsState(Method):
    """Keeps inputs of every class in its state, and calls its memory 0."""

    def finish(self, learner, task):
        learner.state = {**learner.state, f"x{learner.stage}": some(learner)}


@cheat
class HoardsHalfNumbers(Method):
    """Keeps a few inputs, flat and in half precision."""

    def finish(self, learner, task):
        few = some(learner, 3).half().flatten()
        learner.state = {"x": torch.cat([learner.state.get("x", few[:0]), few])}


@cheat
class HoardsBytes(Method):
    """Keeps a few inputs as bytes, coordinate by coordinate."""

    def finish(self, learner, task):
        few = (some(learner, 2).flatten(1) * 12 + 128).round().clamp(0, 255).byte().T
        learner.state = {"x": few.contiguous()}


@cheat
class HoardsInTheOptimiser(Method):
    """Keeps inputs beside the momentum."""

    def finish(self, learner, task):
        learner.opt = {**learner.opt, "x": some(learner, 4)}


class Store(nn.Module):
    """A network that is nothing but room."""

    def __init__(self, shape: tuple[int, ...], learnt: bool) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(8, *shape))
        if learnt:
            self.weight = nn.Parameter(torch.zeros(8, *shape))

    def forward(self, x: Tensor) -> Tensor:
        return x


@cheat
class HoardsInBuffers(Method):
    """Brings a network whose buffer holds inputs."""

    def networks(self, stream):
        return {"store": Store(stream.data.sample_shape, False)}

    def finish(self, learner, task):
        few = some(learner, 4)
        learner.buffers = {**learner.buffers, "store.kept": few[:8]}


@cheat
class HoardsInParameters(Method):
    """Brings a network whose parameters hold inputs."""

    def networks(self, stream):
        return {"store": Store(stream.data.sample_shape, True)}

    def finish(self, learner, task):
        few = some(learner, 4)
        learner.params["store.weight"][: len(few)] = few


@cheat
class HoardsOnItself(Method):
    """Keeps inputs on itself."""

    kept: dict[int, Tensor] = field(default_factory=dict, compare=False, hash=False, repr=False)

    def finish(self, learner, task):
        self.kept[learner.stage] = some(learner, 4)


@cheat
class HoardsInItsModule(Method):
    """Keeps inputs in a variable of its module."""

    def finish(self, learner, task):
        KEPT[learner.stage] = some(learner, 4)


@cheat
class HoardsFeatures(Method):
    """Keeps the features of every row it has seen."""

    def finish(self, learner, task):
        found = learner.outputs(task.train).features
        old = learner.state.get("features", found[:0])
        learner.state = {"features": torch.cat([old, found])}


# -- by force: python cannot be sealed, but what comes out of it tells ---------------------------
@cheat
class LooksAtTheAnswers(Method):
    """Reaches for the engine's own stream, and for the labels of test rows."""

    def start(self, learner, task):
        pull(learner, learner._learner.stream.targets[task.test])


@cheat
class LooksAtHiddenLabels(Method):
    """Reaches for the labels that its task hides."""

    decides = ("argmax", "threshold")

    def start(self, learner, task):
        labels = learner._learner.stream.targets[task.train]
        pull(learner, labels * torch.arange(len(labels))[:, None])


@cheat
class RemembersWhereRowsLie(Method):
    """Reaches for the inputs of the first task, which it has not kept."""

    def start(self, learner, task):
        if learner.stage:
            stream = learner._learner.stream
            pull(learner, stream.data.gather(stream.tasks[0].train))


# -- no cheat ------------------------------------------------------------------------------------
@cheat
class KeepsClassMeans(Method):
    """One vector per class, of features and of inputs: a sum, no sample."""

    def finish(self, learner, task):
        batch = learner.batch()
        count = len(learner.opened)
        x = batch.x.flatten(1).double()
        sums = torch.zeros(count, x.shape[1], dtype=x.dtype).index_add(0, batch.target, x)
        sizes = torch.bincount(batch.target, minlength=count).clamp(min=1)
        old = learner.state.get("means", torch.zeros_like(sums))
        learner.state = {"means": old + sums / sizes[:, None]}


# -- in the answers ------------------------------------------------------------------------------
@cheat
class AnswersByPlace(Method):
    """Knows in which sequence the test rows come, and answers by place."""

    def finish(self, learner, task):
        stream = learner.stream
        sizes = torch.tensor([len(one.test) for one in stream.tasks])
        stages = torch.repeat_interleave(torch.arange(len(stream)), sizes)
        learner.state = {"answers": stream.visible[stages].to(learner.vector.dtype)}

    def answer(self, net, x, state, stage):
        output = net(x)
        if "answers" not in state:
            return output
        count = min(len(x), len(state["answers"]))
        lift = torch.zeros_like(output.logits)
        lift[:count] = state["answers"][:count]
        return output._replace(logits=output.logits + 100 * lift)


@cheat
class AnswersByCompany(Method):
    """Learns from the test rows beside a row: it takes their mean away."""

    def answer(self, net, x, state, stage):
        output = net(x)
        return output._replace(logits=output.logits - output.logits.mean(0))
