"""Diagonal Fisher information of a learner, in the variants used by papers and their code."""

from __future__ import annotations

import torch
from torch import Tensor

from engram import keys
from engram.errors import bad, check_choice, check_int
from engram.learner.batch import Batch
from engram.learner.gradients import Term
from engram.learner.learner import RunLearner
from engram.learner.networks import Net
from engram.learner.objectives import competing_classes
from engram.losses import CLOSED_LOGIT, bce_rows, ce_rows, masked_ce, mean, multi_hot

LABELS = ("true", "pred", "sample", "all")
TERMS = ("likelihood", "objective")


def fisher_information(
    learner: RunLearner,
    *,
    labels: str = "true",
    group: int | str = 1,
    term: str = "likelihood",
    batch_statistics: bool = False,
    rows: Tensor | None = None,
) -> Tensor:
    """Average squared gradients [P] of log p(y | x) over the open classes, in eval mode.

    Parameters
    ----------
    labels
        ``true`` labels (the empirical Fisher), ``pred`` the most likely class, ``sample`` one class
        drawn from the model, ``all`` the expectation over the model's classes.
    group
        1 squares the gradient of each sample. A number n squares the mean gradient of shuffled
        mini-batches of n, ``"full"`` that of all rows: much smaller numbers, which some codes also
        call Fisher information.
    term
        ``objective`` takes the training objective in place of the likelihood.
    batch_statistics
        Batch normalisation uses each group's own statistics, as in training (CGLB), in place of the
        running ones; none are moved either way.
    rows
        Rows of the current task; its training rows by default.
    """
    check_options(labels, group, term, batch_statistics)
    check_learner(learner, labels)
    rows = shuffle_for_groups(learner, learner.task.train if rows is None else rows, group)
    if term == "objective":
        return learner.average_gradient(
            _choose_objective(learner, group),
            group=group,
            rows=rows,
            batch_statistics=batch_statistics,
        )
    if labels == "all":
        count = learner.opened.shape[0] if learner.scope == "all" else int(learner.seen.sum())
        parts = [learner.average_gradient(_class_term(c), rows=rows) for c in range(count)]
        return torch.stack(parts).sum(0)
    given = _sample_classes(learner, rows) if labels == "sample" else None
    if learner.networks.objective.name == "bce":
        used = bernoulli_nll
    else:
        used = predicted_class_nll if labels == "pred" else visible_label_nll
    return learner.average_gradient(
        used, group=group, rows=rows, labels=given, batch_statistics=batch_statistics
    )


def check_options(labels: str, group: int | str, term: str, batch_statistics: bool = False) -> None:
    """Raise for variants that do not exist or cannot be combined."""
    check_choice("labels", labels, LABELS)
    check_choice("term", term, TERMS)
    check_group(group, batch_statistics)
    if labels == "all" and group != 1:
        raise bad("group", "1, because labels='all' is an expectation per sample", group)
    if term == "objective" and labels != "true":
        raise bad("labels", "'true', because the training objective has no others", labels)


def check_group(group: int | str, batch_statistics: bool = False) -> None:
    """Raise for invalid group sizes, and for batch statistics of single rows."""
    if batch_statistics and group == 1:
        raise bad("group", 'more than 1, or "full", with batch_statistics', group)
    if isinstance(group, str):
        if group != "full":
            raise bad("group", 'a whole number of at least 1, or "full"', group)
    else:
        check_int("group", group, 1)


def shuffle_for_groups(learner: RunLearner, rows: Tensor, group: int | str) -> Tensor:
    """Shuffle rows if they are grouped into mini-batches, since they may be sorted by class."""
    if group in (1, "full"):
        return rows
    key = keys.fold(learner.seed, "importance", learner.stage)
    return rows[keys.permutation(key, len(rows), len(rows))]


def check_learner(learner: RunLearner, labels: str) -> None:
    """Raise for variants that the learner's training objective does not allow."""
    if learner.networks.objective.name == "bce" and labels != "true":
        raise bad("labels", "'true', because the training loss is 'bce'", labels)


def visible_label_nll(net: Net, batch: Batch) -> Tensor:
    """Compute -log p of the visible label, with a softmax over the open classes."""
    return masked_ce(net(batch.x, batch.w).logits, batch.target, batch.open, batch.w)


def predicted_class_nll(net: Net, batch: Batch) -> Tensor:
    """Compute -log p of the predicted class."""
    logits = net(batch.x, batch.w).logits
    predicted = logits.detach().masked_fill(~batch.open, CLOSED_LOGIT).argmax(-1)
    return mean(ce_rows(logits, predicted, batch.open), batch.w)


def bernoulli_nll(net: Net, batch: Batch) -> Tensor:
    """Compute -log p of all visible labels, with one Bernoulli variable per open class."""
    logits = net(batch.x, batch.w).logits
    targets = multi_hot(batch.y, logits.shape[-1], logits.dtype)
    return mean(bce_rows(logits, targets, batch.open, "sum"), batch.w)


def training_objective(net: Net, batch: Batch) -> Tensor:
    """Compute the training objective."""
    return net.task(batch)


def _choose_objective(learner: RunLearner, group: int | str) -> Term:
    # for a single row class-balanced and plain cross-entropy are equal; the plain one is a mean
    # over rows, which allows average_gradient one pass over all samples
    balanced = learner.networks.objective.name == "balanced"
    return visible_label_nll if balanced and group == 1 else training_objective


def _class_term(column: int) -> Term:
    """Make a term with squared gradient p_c (d log p_c)^2: class c's part of the expectation."""

    def term(net: Net, batch: Batch) -> Tensor:
        logits = net(batch.x, batch.w).logits.masked_fill(~batch.open, CLOSED_LOGIT)
        log_p = logits.log_softmax(-1)[..., column]
        return mean(log_p.detach().exp().sqrt() * log_p, batch.w)

    return term


def _sample_classes(learner: RunLearner, rows: Tensor) -> Tensor:
    """Draw classes [n] from the model's probabilities over the open classes."""
    logits = learner.outputs(rows).logits.double()  # [n, C]
    table = competing_classes(learner.scope, learner.opened, learner.stream.visible, learner.stage)
    chance = logits.masked_fill(~table[learner.stage], CLOSED_LOGIT).softmax(-1).cumsum(-1)
    draw = keys.uniform(keys.fold(learner.seed, "fisher", "labels", learner.stage), len(rows))
    return (chance <= draw[:, None] * chance[:, -1:]).sum(-1)
