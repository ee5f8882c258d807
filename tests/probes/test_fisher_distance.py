"""KL divergences and their quadratic forms, against closed forms and whole Fisher matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import engram
from engram.errors import BadArgument
from engram.probes import DivergenceForms, FisherDistance, compare_divergence
from tests.refusals import refuses

CLASSES, INPUTS, ROWS = 3, 4, 5


def linear(theta, x):
    return x @ theta.view(INPUTS, CLASSES)


def drawn(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def test_linear_softmax_has_closed_forms():
    """F of a row is (diag(p) - p p') x (x x'), the empirical one (e_y - p)(e_y - p)' x (x x')."""
    theta, change, x = drawn(12), 0.05 * drawn(12, seed=1), drawn(ROWS, INPUTS, seed=2)
    target = torch.tensor([0, 1, 2, 0, 1])
    found = compare_divergence(linear, theta, change, x, target)
    p, q = (linear(t, x).softmax(-1) for t in (theta, theta + change))
    torch.testing.assert_close(found.kl, (p * (p / q).log()).sum(-1))
    for row in range(ROWS):
        true = torch.diag(p[row]) - torch.outer(p[row], p[row])
        miss = torch.eye(CLASSES, dtype=p.dtype)[target[row]] - p[row]
        for fisher, full, diagonal in (
            (true, found.full, found.diagonal),
            (torch.outer(miss, miss), found.empirical, found.empirical_diagonal),
        ):
            whole = torch.kron(
                torch.outer(x[row], x[row]), fisher
            )  # [P, P], weights input by input
            assert full[row].item() == pytest.approx((change @ whole @ change / 2).item())
            narrow = (whole.diagonal() * change.square()).sum() / 2
            assert diagonal[row].item() == pytest.approx(narrow.item())


def test_the_form_of_the_true_fisher_becomes_exact():
    """Lemma 1: the error shrinks with the change; that of the others does not."""
    theta, direction, x = drawn(12), drawn(12, seed=1), drawn(ROWS, INPUTS, seed=2)
    target = torch.zeros(ROWS, dtype=torch.long)

    def ratios(scale):
        found = compare_divergence(linear, theta, scale * direction, x, target)
        return {name: (found.kl.mean() / value.mean()).item()
                for name, value in zip(DivergenceForms._fields, found, strict=True)}  # fmt: skip

    near, far = ratios(1e-3), ratios(1.0)
    assert near["full"] == pytest.approx(1, abs=2e-3)
    assert abs(far["full"] - 1) > 0.1
    assert all(abs(near[name] - 1) > 0.1 for name in ("diagonal", "empirical_diagonal"))


def test_classes_that_do_not_compete():
    theta, change, x = drawn(12), 0.1 * drawn(12, seed=1), drawn(ROWS, INPUTS, seed=2)
    target = torch.tensor([0, 1, 1, 0, 1])

    def two(theta, x):
        return linear(theta, x)[:, :2]

    wanted = compare_divergence(two, theta, change, x, target)
    among = torch.tensor([True, True, False])
    for columns in (None, 2):
        found = compare_divergence(linear, theta, change, x, target, among, columns=columns)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)


def measured(probe, kind=engram.class_incremental, **options):
    data = engram.load("blobs", classes=6, per_class=20)
    settings = {"model": {"name": "mlp", "hidden": [8]}, "epochs": 1, "device": "cpu", "seeds": 2}
    stream = kind(data, classes_per_task=2)
    result = engram.run(stream, **{**settings, "probes": [probe], **options})
    frame = result.frame()
    frame = frame[frame["metric"].astype(str).str.startswith(probe.name)]
    return result, frame.set_index(["metric", "seed", "stage"])["value"].sort_index()


def test_the_probe_measures_what_a_stage_moved():
    """By hand from the recorded scores: items of earlier tasks, among the classes open before."""
    result, found = measured(FisherDistance(items=1000))
    for recipe, seed, order in result.runs:
        items = result.items(recipe)
        for stage in (1, 2):
            p, q = (
                torch.from_numpy(result.predictions.get(recipe, seed, order, at).scores.copy())
                .double()[: (items.task < stage).sum(), items.opening < stage].softmax(-1)
                for at in (stage - 1, stage)
            )  # fmt: skip
            wanted = (p * (p / q).log()).sum(-1).mean().item()
            assert found["fisher_distance items=1000/kl", seed, stage] == pytest.approx(
                wanted, rel=0.03
            )


@pytest.mark.parametrize("kind", [engram.class_incremental, engram.task_incremental])
def test_in_lockstep_and_alone(kind):
    probe = FisherDistance(items=20)
    _, together = measured(probe, kind, together=True)
    _, alone = measured(probe, kind, together=False)
    assert len(alone) == 5 * 2 * 2
    assert alone.to_numpy() == pytest.approx(together.reindex(alone.index).to_numpy(), rel=1e-3)


def test_bad_options():
    with refuses("items"):
        FisherDistance(items=0)
    with refuses("scale"):
        FisherDistance(scale=0)
    with pytest.raises(BadArgument, match="loss"):
        measured(FisherDistance(), loss="bce")
