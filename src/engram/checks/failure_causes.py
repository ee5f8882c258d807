"""Causes of failed checks: explanations that are tested before they are given."""

from __future__ import annotations

import torch
from torch import Tensor

from engram.checks.toy_runs import (
    MODELS,
    TaskStart,
    Trained,
    accuracies,
    enter_task,
    shrink_settings,
)
from engram.engine.evaluation import score_test_items
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.learner.batch import Batch
from engram.methods.finetune import Finetune
from engram.methods.method import Method

PADDING_ROWS = 5  # rows of weight 0 appended to a batch
LEAST_GRADIENT = 1e-12
LEARNT_ACCURACY = 0.9  # accuracy of a first task that was learnt

UNKNOWN_CAUSE = (
    "its loss does not feel padding, so look at the rest: draw by batch.key and learner.seed "
    "only, keep nothing on self, sum over nothing but the rows of one batch"
)


def loss_gradients(at: TaskStart, batch: Batch, vector: Tensor) -> dict[str, Tensor]:
    """Compute the gradient [P] of every loss term of the first run."""
    weights, learner = vector.detach().clone().requires_grad_(True), at.learners[0]
    terms = at.method.loss(at.net(batch, vector=weights), batch, learner.state)
    found = {}
    for name, term in terms.items():
        (slope,) = (
            torch.autograd.grad(term, weights, retain_graph=True, allow_unused=True)
            if term.requires_grad
            else (None,)
        )
        found[name] = torch.zeros_like(vector) if slope is None else slope
    return found


def explain_no_learning(method: Method, trained: Trained, training: Training) -> str:
    """Explain why a task is not learnt, as far as can be seen from outside."""
    at = enter_task(shrink_settings(method), stage=0, runs=1, training=training)
    before, after = at.learners[0].vector, trained[0, 0].vector
    found = loss_gradients(at, next(at.own_batches()), before)
    if not any(bool(slope.any()) for slope in found.values()):
        return "the gradient of its loss is 0: the loss does not reach the networks"
    if torch.equal(before, after):
        return (
            "its loss has a gradient, but the weights do not move: look at "
            f"{_list_verbs(method, 'gradient', 'start')} (learner.free says which weights may)"
        )
    if accuracies(trained[0, 0])[-1] > LEARNT_ACCURACY and (
        why := _overwhelming_terms(method, training)
    ):
        return why
    last = trained[max(trained)]
    (logits,) = score_test_items([last.stage.learner], [Finetune()])
    by_scores, by_logits = accuracies(last)[-1], accuracies(last._replace(scores=logits))[-1]
    if method.implements("answer") and by_logits > by_scores:
        return (
            f"after the last task the networks' logits are right in {by_logits:.2f} of its rows, "
            f"the answers in {by_scores:.2f}: look at answer"
        )
    sizes = {name: f"{float(slope.norm()):.1e}" for name, slope in found.items()}
    return (
        "the networks are trained, but hardly towards the labels; sizes of the terms' gradients in "
        f"the first step: {sizes}"
    )


def _overwhelming_terms(method: Method, training: Training) -> str:
    """Describe the loss terms that overwhelm the task loss in the second task, if any."""
    at = enter_task(shrink_settings(method), runs=1, training=training)
    found = loss_gradients(at, next(at.own_batches()), _move_weights(at.learners[0].vector))
    own = float(found["task"].norm()) if "task" in found else 0.0
    sizes = {name: float(slope.norm()) for name, slope in found.items() if name != "task"}
    heavy = [f"{name!r} pulls {size / own:.1f} times as hard as 'task'"
             for name, size in sizes.items() if own and size > own]  # fmt: skip
    if not heavy:
        return ""
    return (
        "the first task is learnt, later ones are not: as soon as weights leave the place where "
        f"the second task begins, {', '.join(heavy)}; weigh it less by default"
    )


def explain_no_difference(method: Method) -> str:
    """Describe the loss terms of the second task without a gradient."""
    at = enter_task(shrink_settings(method), runs=1)
    found = loss_gradients(at, next(at.own_batches()), _move_weights(at.learners[0].vector))
    idle = [repr(name) for name, slope in found.items() if not bool(slope.any())]
    if idle:
        return (
            f"the gradient of {', '.join(idle)} is 0 in the second task (a penalty must be written "
            "on net.vector, a teacher must have classes to teach)"
        )
    return "whatever it adds changes neither the loss nor the update"


def explain_lockstep_difference(run: Run, fields_differ: bool = False) -> str:
    """Explain a difference in lockstep, where runs are padded: find what depends on padding.

    If nothing does and fields differ between runs, these are named.
    """
    kind = next((name for name, model in MODELS.items() if model is run.model), "plain")
    if _depends_on_padding(run.method, "plain"):
        return "its loss feels rows of weight 0: take means as sum(w * l) / sum(w)"
    if kind == "dropped" and _depends_on_padding(run.method, kind):
        return (
            "with dropout, whose masks follow the places of rows, its networks feel rows of weight "
            "0: let padding stay behind; several views of a row go side by side, as in "
            "torch.stack([x, view], 1).flatten(0, 1)"
        )
    if kind != "plain" and _depends_on_padding(run.method, kind):
        return (
            "its networks feel rows of weight 0: call net(batch.x, batch.w), so that batch "
            "normalisation leaves padding out"
        )
    if fields_differ:
        return (
            "a PerRun option is a number in a run alone and a tensor here, in the precision of the "
            "weights: use it in arithmetic as it is (torch.tensor(self.decay) is float32)"
        )
    return UNKNOWN_CAUSE


def _depends_on_padding(method: Method, kind: str) -> bool:
    at = enter_task(method, runs=1, model=kind)
    learner, batch = at.learners[0], next(at.own_batches())
    behind = [torch.cat([leaf, leaf[:PADDING_ROWS]]) for leaf in batch.per_row]
    values = {k: torch.cat([leaf, leaf[:PADDING_ROWS]]) for k, leaf in batch.values.items()}
    longer = Batch._make([*behind, *batch.shared, batch.memory, values, batch.times])
    rows = torch.arange(len(longer.w)) < len(batch.w)
    shift = (~rows).reshape(-1, *[1] * (batch.x.ndim - 1)).to(batch.x.dtype)
    longer = longer._replace(x=longer.x + shift, w=torch.where(rows, longer.w, 0.0))
    moved = _move_weights(learner.vector)
    with torch.no_grad():
        short, long = (
            at.method.loss(at.net(one, vector=moved), one, learner.state) for one in (batch, longer)
        )
    return any(float((short[name] - long[name]).abs()) > LEAST_GRADIENT for name in short)


def _move_weights(weights: Tensor) -> Tensor:
    """Move weights away from any anchor or teacher, where a penalty would be 0."""
    return weights + 0.05 * torch.linspace(-1, 1, len(weights), dtype=weights.dtype)


def _list_verbs(method: Method, *verbs: str) -> str:
    return " and ".join(verb for verb in verbs if method.implements(verb)) or "the engine"
