"""Learning: streams of every shape are learnt, and nothing moves that should stand still."""

from __future__ import annotations

from dataclasses import replace

import torch

from engram.checks.advice import why_nothing_is_learnt
from engram.checks.report import Broken, require
from engram.checks.tamed import tame
from engram.checks.task_start import spied
from engram.checks.toys import (
    EXACT,
    ORDERS,
    accuracies,
    clouds,
    finite,
    runs_of,
    streams,
    train,
)
from engram.engine.engine import Engine
from engram.learner.learner import Learner
from engram.learner.tree import leaves, nbytes
from engram.methods.base import Method
from engram.streams import Stream, class_incremental, task_incremental
from engram.streams.core import Task

LEARNS = replace(EXACT, optimizer="adam", lr=0.01, epochs=8)
ENOUGH = 0.6  # chance is about 0.3: one of two, four, six classes


def _stays_finite(method: Method, stream: Stream) -> None:
    trained = train(runs_of(tame(method), [stream]))
    for (_, stage), after in trained.items():
        sound = after.diverged < 0 and finite((after.tensors, torch.as_tensor(after.scores)))
        alone = int((stream.opening <= stage).sum()) == 1
        hint = ": a softmax over one class has loss and gradient 0" if alone else ""
        require(
            sound,
            f"numbers are not finite after task {stage}{hint}; divide by nothing that may be 0 "
            "where a task or a past has one class only",
        )
    require(max(trained)[1] == len(stream) - 1, "the run ended early")


def check_single_class_tasks(method: Method) -> None:
    """Tasks of one class each stay finite."""
    _stays_finite(method, class_incremental(clouds(), classes_per_task=1))


def check_one_class_first(method: Method) -> None:
    """A first task of one class is fine; tasks of unequal numbers of classes follow."""
    _stays_finite(method, class_incremental(clouds(), classes_per_task=[1, 3, 2]))


def check_task_incremental(method: Method) -> None:
    """With known tasks (one head each) the method runs and learns."""
    stream = task_incremental(clouds(), order=list(ORDERS[1]))
    trained = train(runs_of(tame(method, LEARNS), [stream], training=LEARNS))
    found = [accuracies(after)[-1] for after in trained.values()]
    mean = sum(found) / len(stream)
    require(mean > ENOUGH + 0.1, f"learns {mean:.2f} of each new task where chance is 0.5")


def check_beats_chance(method: Method) -> None:
    """Right after its training, a task is known far better than by guessing."""
    trained = train(runs_of(tame(method, LEARNS), streams()[:1], training=LEARNS))
    found = [accuracies(after)[-1] for after in trained.values()]
    mean = sum(found) / len(streams()[0])
    if mean <= ENOUGH:
        why = why_nothing_is_learnt(method, trained, LEARNS)
        raise Broken(
            f"mean accuracy of the task just learnt is {mean:.2f}, guessing gives 0.31: {why}"
        )


def check_state_is_a_tree_of_tensors(method: Method) -> None:
    """State is dicts and tuples of tensors; it does not grow with the number of tasks."""
    trained = train(runs_of(tame(method), [class_incremental(clouds(), classes_per_task=1)]))
    sizes = []
    for after in trained.values():
        state = after.state
        require(isinstance(state, dict), f"learner.state must be a dict, it is {type(state)}")
        for leaf in leaves(state):
            require(
                isinstance(leaf, torch.Tensor),
                f"state holds {type(leaf).__name__}; only tensors can be stacked, saved and mapped",
            )
        sizes.append(nbytes(state))
    grown = sizes[-1] - sizes[1]
    if not getattr(method, "grows", False):
        require(
            grown < nbytes(trained[0, 0].vector),
            f"state grows by {grown} bytes from the "
            "second task to the last: keep sums over tasks, or declare grows = True",
        )


def check_unopened_columns_stand_still(method: Method) -> None:
    """Under weight decay and old momentum, columns of classes to come stay bitwise the same."""
    training = replace(EXACT, weight_decay=0.1, optim_reset=False)
    for together in (False, True):
        runs = runs_of(tame(method), streams()[:2], training=training)
        engine = Engine(runs, device="cpu", together=together)
        fresh = [engine.learner(run) for run in runs]
        for stage in engine.stages():
            one = stage.learner
            shut = one.stream.opening > stage.stage
            for name in one.networks.class_rows:
                now, first = one.params[name], fresh[stage.run].params[name]
                require(
                    torch.equal(now[shut], first[shut]),
                    f"{name} of classes not opened yet "
                    f"moved in task {stage.stage}: write into learner.params only rows of "
                    "open classes",
                )


def check_finish_leaves_statistics_alone(method: Method) -> None:
    """Host verbs move no running statistics of batch normalisation; training does."""
    moved: list[str] = []

    def watch(verb: str) -> Method:
        def around(original: object, learner: Learner, task: Task, *more: object) -> None:
            kept = {k: v.clone() for k, v in learner.buffers.items()}
            original(learner, task, *more)  # type: ignore[operator]
            if any(not torch.equal(v, learner.buffers[k]) for k, v in kept.items()):
                moved.append(verb)

        return spied(tame(method), verb, around)

    for verb in ("start", "between", "finish"):
        trained = train(runs_of(watch(verb), streams()[:1], model="normed"))
    require(
        not moved,
        f"{', '.join(sorted(set(moved)))} moves running statistics: pass rows "
        "through learner.outputs, learner.net() or learner.average_gradient",
    )
    means = trained[0, 0].buffers["net.backbone.norm.mean"]
    require(
        bool((means != 0).any()),
        "training moves no running statistics: the network must be "
        "called through net, which is in training mode",
    )
