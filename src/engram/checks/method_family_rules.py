"""Rules for families of methods: importances, steps with gradients, teachers, generators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from engram.checks.check_report import DoesNotApply, require
from engram.checks.learning_rules import LEARNS
from engram.checks.toy_runs import (
    CLOSE,
    TaskStart,
    accuracies,
    enter_task,
    largest_gap,
    make_clouds,
    make_runs,
    make_streams,
    shrink_settings,
    train_runs,
)
from engram.engine.engine import Engine
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet
from engram.losses import masked_ce
from engram.methods.method import Method
from engram.models.forward_pass import Output
from engram.streams import class_incremental, task_incremental


def check_importance_is_per_sample(method: Method) -> None:
    """A declared per-sample Fisher is the mean of squared gradients, each of one sample."""
    declared = {"labels": "true", "group": 1, "term": "likelihood"}
    if any(getattr(method, name, None) != value for name, value in declared.items()):
        raise DoesNotApply("declares no per-sample Fisher information with true labels")
    runs = make_runs(shrink_settings(method), make_streams()[:1], model="normed")
    first = next(iter(Engine(runs, device="cpu", together=False).stages())).learner
    found = first.state.get("importance")
    if found is None:
        raise DoesNotApply("keeps no importance")
    away = largest_gap(found, _fisher(first))
    require(
        away < CLOSE,
        f"importance is {away:.1e} off the mean of squared per-sample gradients: "
        "square each sample's gradient before the mean, in eval mode",
    )


def _fisher(learner: RunLearner) -> Tensor:
    """Average the squared gradient of -log p(y | x) over samples, one at a time."""
    total, rows = torch.zeros_like(learner.vector), learner.task.train
    for row in rows:
        batch = learner.batch(row[None])

        def value(vector: Tensor, one: Batch = batch) -> Tensor:
            # not by the learner's own passes, which are under test
            weights = {**learner.layout(vector), **learner.buffers}
            logits = functional_call(learner.networks.eval, weights, ("net", one.x)).logits
            return masked_ce(logits, one.target, one.open, one.w)

        total += grad(value)(learner.vector).square()
    return total / len(rows)


def check_step_gets_the_plain_gradient(method: Method) -> None:
    """The gradient given to `step` excludes terms that depend on the weights only."""
    if not method.implements("step"):
        raise DoesNotApply("no step of its own")
    at = enter_task(shrink_settings(method))
    batch = next(at.own_batches())
    moved = _nudge(at.learners[0].vector)
    through = _data_gradient(at, batch, moved, None)
    terms = at.method.loss(at.net(batch, vector=moved), batch, at.learners[0].state)
    memory = tuple(one._replace(x=one.x + 1.0) for one in batch.memory)
    other = batch._replace(x=batch.x + 1.0, memory=memory)
    again = at.method.loss(at.net(other, vector=moved), other, at.learners[0].state)
    data = [name for name, term in terms.items() if not torch.equal(term, again[name])]
    if len(data) == len(terms):
        raise DoesNotApply("no term depends on the weights alone")
    away = largest_gap(through, _data_gradient(at, batch, moved, data))
    require(
        away < CLOSE,
        f"step gets the gradient of {sorted(set(terms) - set(data))} too: write "
        "penalties on net.vector, not on net.params",
    )


def _nudge(vector: Tensor) -> Tensor:
    return vector + 0.05 * torch.linspace(-1, 1, len(vector), dtype=vector.dtype)


def _data_gradient(at: TaskStart, batch: Batch, vector: Tensor, names: list[str] | None) -> Tensor:
    learner = at.learners[0]

    def value(weights: Tensor) -> Tensor:
        net = FunctionalNet(
            learner.networks, weights, learner.buffers, penalty=vector, key=batch.key
        )
        net.main = at.net(batch).main
        terms = at.method.loss(net, batch, learner.state)
        return torch.stack([t for n, t in terms.items() if names is None or n in names]).sum()

    found: Tensor = grad(value)(vector)
    return found


def check_old_networks_are_in_eval_mode(method: Method) -> None:
    """Networks with older weights (teachers) never run in training mode."""
    at = enter_task(shrink_settings(method), model="normed")
    learner, batch = at.learners[0], next(at.own_batches())
    moved, passes = _nudge(learner.vector), []  # a teacher still has the weights before
    mine = {k: v.clone() for k, v in learner.networks.layout(moved).items()}

    def watch(module: nn.Module, _args: Any) -> None:
        own = dict(module.named_parameters())
        passes.append(all(torch.equal(own[k], v) for k, v in mine.items()))

    hook = learner.networks.train.register_forward_pre_hook(watch)
    kept = {k: v.clone() for k, v in learner.buffers.items()}
    try:
        with torch.no_grad():
            at.method.loss(at.net(batch, vector=moved), batch, learner.state)
    finally:
        hook.remove()
    require(all(passes), "a network with old weights runs in training mode: use net.frozen")
    still = all(torch.equal(v, learner.buffers[k]) for k, v in kept.items())
    require(still, "loss writes into the run's running statistics")


def check_no_term_vanishes_in_a_shared_pass(method: Method) -> None:
    """Under dropout no term is 0 only because two calls `net(batch.x)` share one pass."""
    at = enter_task(shrink_settings(method), model="dropped")
    learner, gone = at.learners[0], set[str]()
    for number, batch in enumerate(at.own_batches()):  # a hinge may be 0 in one of them
        shared, apart = at.net(batch), _AloneNet(learner, batch.key)
        apart.main = shared.main
        with torch.no_grad():
            first, second = (at.method.loss(net, batch, learner.state) for net in (shared, apart))
        now = {name for name, term in second.items() if bool(term) and not bool(first[name])}
        gone = gone & now if number else now
    require(
        not gone,
        f"{', '.join(map(repr, sorted(gone)))} of loss is 0, since two calls net(batch.x) are one "
        "pass with one dropout mask: let the second be net(batch.x.clone(), batch.w)",
    )


class _AloneNet(FunctionalNet):
    """Networks each call of which is a pass of its own, with noise of its own."""

    def __init__(self, learner: RunLearner, key: Tensor) -> None:
        super().__init__(learner.networks, learner.vector, learner.buffers, key=key)

    def __call__(self, x: Tensor, w: Tensor | None = None, want: tuple[str, ...] = ()) -> Output:
        return super().__call__(x.clone(), w, want)


# Generators.


LONG = replace(LEARNS, epochs=20)
SIZES = (24, 24, 24, 24)
ENOUGH = 0.7  # of two old classes; replayed among themselves only, they are called new ones


def check_replayed_classes_meet_new_ones(method: Method) -> None:
    """Old classes that a generator replays are still known among the new ones."""
    _need_generator(method)
    stream = class_incremental(make_clouds(SIZES), classes_per_task=2)
    trained = train_runs(make_runs(shrink_settings(method, LONG), [stream], training=LONG))
    found = accuracies(trained[0, 1])[0]
    require(
        found > ENOUGH,
        f"after the second task, {found:.2f} of the first are known where all classes compete: "
        "replayed rows must be no new class, so let the softmax of their loss run over the new "
        "classes too (ce_rows over batch.seen, distill_rows with new_classes=batch.new)",
    )


def check_replayed_rows_meet_every_head(method: Method) -> None:
    """With known tasks, what a generator replays trains the head of every earlier task."""
    _need_generator(method)
    stream = task_incremental(make_clouds())
    engine = Engine(make_runs(shrink_settings(method), [stream]), device="cpu", together=False)
    before: dict[str, torch.Tensor] = {}
    for stage in engine.stages():
        one = stage.learner
        now = {name: one.params[name].clone() for name in one.networks.class_rows}
        for task in range(stage.stage):
            mine = stream.visible[task]
            moved = any(not torch.equal(now[k][mine], before[k][mine]) for k in before)
            require(
                moved,
                f"the head of task {task} stands still while task {stage.stage} is learnt: a "
                "replayed row may be of any earlier task, so train it through all of their heads "
                "(learner.stream.visible[:learner.stage])",
            )
        before = now


def _need_generator(method: Method) -> None:
    stream = class_incremental(make_clouds(SIZES), classes_per_task=2)
    (run,) = make_runs(method, [stream])
    settings = Engine([run], device="cpu").learner(run).networks.settings
    if not any(settings.counts for settings in settings.values()):
        raise DoesNotApply("no network of its own counts as memory")
