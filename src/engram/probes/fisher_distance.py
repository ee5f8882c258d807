"""How far a stage moved a network's outputs, as a KL divergence and as the quadratic forms of
Fisher information that stand for it in penalties on weights (lemma 1 of the RWalk paper).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from engram.errors import bad, check_float, check_int
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet
from engram.learner.tensor_tree import stack
from engram.losses import CLOSED_LOGIT
from engram.probes.probe import Probe
from engram.probes.stage_view import StageView

ROWS_AT_ONCE = 16  # rows whose gradients [P] are held at the same time


class DivergenceForms(NamedTuple):
    """KL(p(theta) || p(theta + d)) of each row [n], and approximations of it, d' F d / 2."""

    kl: Tensor
    full: Tensor  # with the true Fisher F: labels as the network predicts them
    diagonal: Tensor  # with its diagonal alone
    empirical: Tensor  # with the Fisher of the true labels
    empirical_diagonal: Tensor


def compare_divergence(
    outputs: Callable[[Tensor, Tensor], Tensor],
    weights: Tensor,
    change: Tensor,
    x: Tensor,
    target: Tensor,
    within: Tensor | None = None,
    *,
    columns: int | None = None,
) -> DivergenceForms:
    """Compare the divergence of softmax outputs under a change of weights with its quadratic forms.

    No matrix [P, P] is made: full forms are variances of the outputs' derivative along the change,
    J d, in one forward pass; diagonal ones take a gradient per row and class.

    Parameters
    ----------
    outputs
        From weights [P] and inputs [n, ...] to logits [n, C].
    weights, change
        theta and d, [P].
    target
        True classes [n], for the empirical Fisher.
    within
        The classes that compete for each row, [n, C] or [C]; all by default.
    columns
        Classes that compete for any row are among the first so many; all by default.

    Examples
    --------
    One row whose two logits are the weights, at p = (1/2, 1/2). The true Fisher is
    [[1/4, -1/4], [-1/4, 1/4]]: the diagonal alone sees half of a shift from one class to the other,
    and a change in a softmax that moves no probability.

    >>> found = compare_divergence(
    ...     lambda theta, x: x * theta,
    ...     torch.zeros(2),
    ...     torch.tensor([0.1, -0.1]),
    ...     torch.ones(1, 1),
    ...     torch.tensor([0]),
    ... )
    >>> [round(value.item(), 6) for value in found[:3]]
    [0.004992, 0.005, 0.0025]
    """
    logits, moved = jvp(lambda theta: outputs(theta, x), (weights,), (change,))[:2]
    after = outputs(weights + change, x)
    shown = torch.ones_like(logits, dtype=torch.bool) if within is None else within
    shown = shown.expand(logits.shape)
    # in double precision, or terms of first order would cancel to their rounding errors
    log_p, log_q = (_log_softmax(one.double(), shown) for one in (logits, after))
    kl = (log_p.exp() * torch.where(shown, log_p - log_q, 0.0)).sum(-1).to(logits.dtype)
    p = log_p.exp().to(logits.dtype)
    mean = (p * moved).sum(-1, keepdim=True)
    centred = torch.where(shown, moved - mean, 0.0)  # derivative of log p along the change
    full = (p * centred.square()).sum(-1) / 2
    empirical = centred.gather(-1, target[:, None]).squeeze(-1).square() / 2

    def weigh_gradients(row: Tensor, among: Tensor) -> Tensor:
        """Sum (g_i d_i)^2 over the weights for g the gradient of log p of each class, [C]."""
        pull = vjp(lambda theta: _log_softmax(outputs(theta, row[None])[0], among), weights)[1]
        unit = torch.eye(among.shape[-1], dtype=logits.dtype, device=logits.device)
        each = [(pull(one)[0] * change).square().sum() for one in unit[:columns]]
        return torch.stack(each)

    weighed = vmap(weigh_gradients)(x, shown) / 2  # [n, columns]
    return DivergenceForms(
        kl=kl, full=full, diagonal=(p[:, :columns] * weighed).sum(-1), empirical=empirical,
        empirical_diagonal=weighed.gather(-1, target[:, None]).squeeze(-1),
    )  # fmt: skip


def _log_softmax(logits: Tensor, among: Tensor) -> Tensor:
    return logits.masked_fill(~among, CLOSED_LOGIT).log_softmax(-1)


@dataclass(frozen=True)
class FisherDistance(Probe):
    """Compare how far each stage moved the outputs with what Fisher information says of it.

    Of the weights theta before a stage and theta + d after it, on test items of the earlier tasks:
    ``kl``, the mean KL divergence from the outputs before to those after, and d' F d / 2 for four
    Fishers, ``full``, ``diagonal``, ``empirical``, ``empirical_diagonal``. EWC's penalty is the
    last one, on training rows. Among the classes open before the stage; with task ids, those of
    the item's task. Statistics of batch normalisation are those before the stage.

    The first stage has no rows. The diagonals take a gradient per item and class, so that the cost
    grows with both: some seconds a stage for a small network on a CPU.

    Parameters
    ----------
    items
        How many test items, evenly spread over those of the earlier tasks.
    scale
        How much of the change is made: with less, the forms become exact (of the true Fisher), as
        lemma 1 says; at 1 it is the whole stage.

    Examples
    --------
    >>> import engram
    >>> probe = FisherDistance(items=32, scale=0.01)
    >>> found = engram.run(engram.load("blobs"), epochs=1, probes=[probe]).probes()
    >>> mean = found.set_index(["metric", "stage"])["mean"]
    >>> ratio = mean[f"{probe.name}/kl"] / mean[f"{probe.name}/full"]
    >>> len(ratio), bool((abs(ratio - 1) < 0.05).all())
    (4, True)

    References
    ----------
    Chaudhry et al. 2018, European Conference on Computer Vision (lemma 1, appendix A).
    """

    needs: ClassVar[tuple[str, ...]] = ("networks",)

    items: int = 128
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_int("items", self.items, 1)
        check_float("scale", self.scale, open_low=True)

    def check(self, learner: RunLearner) -> None:
        if learner.networks.objective.name == "bce":
            expected = "a loss over one label of each row: the outputs of 'bce' are no softmax"
            raise bad("loss", expected, "bce")

    def after_stage(self, view: StageView) -> Mapping[str, Any]:
        after = torch.stack([one.vector for one in view.learners]).detach()
        view.keep({"vector": after, "buffers": stack([one.buffers for one in view.learners])})
        if not view.state:
            return {}
        before, buffers = view.state["vector"], view.state["buffers"]
        change = self.scale * (after - before)
        columns = max(int((one.opening < view.stage).sum()) for one in view.items)

        def compare(
            net: FunctionalNet, weights: Tensor, own: Any, moved: Tensor, *rows: Tensor
        ) -> DivergenceForms:
            def outputs(theta: Tensor, x: Tensor) -> Tensor:
                return FunctionalNet(net.networks, theta, own, training=False)(x).logits

            return compare_divergence(outputs, weights, moved, *rows, columns=columns)

        chosen = [_choose_items(view, r, self.items) for r in range(len(view))]
        parts = []
        for start in range(0, self.items, ROWS_AT_ONCE):
            rows = _stack_items(view, [one[start : start + ROWS_AT_ONCE] for one in chosen])
            parts.append(view.map(compare, before, buffers, change, *rows))
        counted = torch.stack([one >= 0 for one in chosen]).to(after)  # [R, items]
        every = (torch.cat(one, 1) for one in zip(*parts, strict=True))
        return {
            name: (values * counted).sum(1) / counted.sum(1)
            for name, values in zip(DivergenceForms._fields, every, strict=True)
        }


def _choose_items(view: StageView, run: int, count: int) -> Tensor:
    """Choose test items of earlier tasks [count] by their places, padded with -1."""
    earlier = np.flatnonzero(view.items[run].task < view.stage)
    places = np.linspace(0, len(earlier) - 1, min(count, len(earlier))).round().astype(int)
    padded = np.full(count, -1)
    padded[: len(places)] = earlier[places]
    return torch.from_numpy(padded)


def _stack_items(view: StageView, chosen: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs [R, n, ...], classes [R, n] and the classes that compete [R, n, C]."""
    inputs, targets, within = [], [], []
    for learner, items, places in zip(view.learners, view.items, chosen, strict=True):
        where = places.clamp(min=0).numpy()
        task = items.task[where]
        rows, stages = (torch.from_numpy(one).to(view.device) for one in (items.rows[where], task))
        inputs.append(learner.feed(rows, stages))
        targets.append(torch.from_numpy(items.targets[where, 0]))
        known = np.broadcast_to(items.opening < view.stage, (len(where), items.width))
        if learner.stream.head == "multi":
            known = known & items.visible[task]
        within.append(torch.from_numpy(known.copy()))
    found = (torch.stack(one).to(view.device) for one in (inputs, targets, within))
    x, target, among = found
    return x, target.long(), among
