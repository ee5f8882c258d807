"""Pure verbs: functions of their tensors alone, so that they map, resume and capture."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from engram.checks.explain import explain
from engram.checks.report import Broken, DoesNotApply, require
from engram.checks.tamed import tame
from engram.checks.task_start import TaskStart, task_start
from engram.checks.toys import gap, same
from engram.learner.batch import Batch
from engram.learner.tree import leaves, shapes, tree_map
from engram.methods.base import Method, pace_of
from engram.models.output import Output


def dice() -> tuple[Any, ...]:
    """The states of all global generators."""
    numbers = repr(np.random.get_state())  # noqa: NPY002 - the global state is the point
    return torch.get_rng_state().tolist(), numbers, random.getstate()


def _terms(method: Method, at: TaskStart, batch: Batch) -> dict[str, Tensor]:
    return method.loss(at.net(batch), batch, at.learners[0].state)


def check_loss_is_pure(method: Method) -> None:
    """The same inputs give the same terms; nothing is modified, no global generator is used."""
    at = task_start(tame(method))
    method, learner = at.method, at.learners[0]
    for batch in at.own_batches():
        tree = (learner.vector, learner.buffers, learner.state, *batch.per_row, *batch.shared)
        kept, drawn = tree_map(torch.clone, tree), dice()
        first = _terms(method, at, batch)
        require(dice() == drawn, "loss uses a global generator: draw with engram.keys, batch.key")
        require(same(tree, kept), "loss modifies its inputs: work on copies, return new tensors")
        second = _terms(method, at, batch)
        require(same(first, second), "loss gives other terms for the same inputs: keep no memory")
        _look_at_terms(first)


def _look_at_terms(terms: Any) -> None:
    require(isinstance(terms, dict) and len(terms) > 0, "loss must return {name: term}")
    for name, term in terms.items():
        require(isinstance(name, str), f"names of loss terms are strings, not {name!r}")
        scalar = isinstance(term, Tensor) and term.ndim == 0
        require(scalar, f"term {name!r} must be a tensor without axes: take a weighted mean")
        require(bool(torch.isfinite(term)), f"term {name!r} is {float(term)} on harmless data")


def check_step_is_pure(method: Method) -> None:
    """`step` returns a new state of the same shape and modifies nothing."""
    if not method.implements("step"):
        raise DoesNotApply("no step of its own")
    at = task_start(tame(method))
    learner = at.learners[0]
    before, grad = learner.vector, torch.linspace(-1, 1, len(learner.vector), dtype=torch.float64)
    after = before - 0.01 * grad
    tree = (before, after, grad, learner.state)
    kept, drawn = tree_map(torch.clone, tree), dice()
    first = at.method.step(before, after, grad, learner.state)
    second = at.method.step(before, after, grad, learner.state)
    require(same(tree, kept), "step modifies its inputs: return {**state, name: new}")
    require(dice() == drawn, "step uses a global generator")
    require(same(first, second), "step gives other states for the same inputs")
    shape = [leaf.shape for leaf in leaves(first)] == [leaf.shape for leaf in leaves(kept[3])]
    require(shape, "step must return a state with the keys and shapes it was given")


def check_interval_waits(method: Method) -> None:
    """`interval` modifies nothing and leaves the state alone until `pace` steps were taken."""
    pace = pace_of(method)
    if not pace:
        raise DoesNotApply("no interval of its own")
    at = task_start(tame(method))
    learner = at.learners[0]
    vector, state = learner.vector, learner.state
    grad = torch.linspace(-1, 1, len(vector), dtype=vector.dtype)
    for step in range(1, pace + 1):
        before, vector = vector, vector - 0.01 * grad
        state = at.method.step(before, vector, grad, state)
        kept, drawn = tree_map(torch.clone, (vector, state)), dice()
        found = at.method.interval(vector, state)
        again = at.method.interval(vector, state)
        require(same((vector, state), kept), "interval modifies its inputs: return {**state, ...}")
        require(dice() == drawn, "interval uses a global generator")
        require(same(found, again), "interval gives other states for the same inputs")
        require(
            shapes(found) == shapes(state),
            "interval must return a state with the keys and shapes it was given",
        )
        require(
            step == pace or same(found, state),
            f"interval changes the state after step {step}, before its pace of {pace}: it may be "
            "called after any step, so count steps in the state and use torch.where",
        )


def check_scores_row_by_row(method: Method) -> None:
    """The scores of a row do not depend on the rows beside it."""
    at = task_start(tame(method), stage=2)
    learner = at.learners[0]
    batch = learner.batch()
    output = learner.net()(batch.x)
    whole = at.method.scores(output, learner.state)
    columns = len(learner.opened)
    shape = tuple(whole.shape) == (len(batch.x), columns)
    require(shape, f"scores must be [rows, {columns}], they are {tuple(whole.shape)}")
    alone = at.method.scores(Output(output.features[:3], output.logits[:3]), learner.state)
    require(gap(alone, whole[:3]) < 1e-12, "scores mix rows: use no statistics of the batch")


def check_maps_without_host_decisions(method: Method) -> None:
    """A mapped step traces with fake tensors: no `.item()`, no `if tensor`, fixed shapes."""
    at = task_start(tame(method))
    trainer = at.trainer

    def step(vector: Tensor, buffers: Any, state: Any, batch: Batch) -> Any:
        trainer.vector, trainer.buffers, trainer.state = vector, buffers, state
        mapped = trainer.verbs.mapped()(*trainer._arguments(batch))
        total, data, terms, *_ = trainer.verbs.results(mapped)
        if at.method.implements("step"):
            moved = vector - total
            state = trainer.verbs.after_step(vector, moved, data, state, trainer.hyper)
        if at.method.pace:
            state = trainer.verbs.after_interval(vector, state, trainer.hyper)
        return total, terms, state

    inputs = (trainer.vector, trainer.buffers, trainer.state, at.batch)
    try:
        make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    except Exception as error:
        raise Broken(f"a mapped step cannot be traced\n{explain(error, at.method)}") from error
