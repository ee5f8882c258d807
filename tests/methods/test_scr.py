"""SCR against the loss written row by row, and its answers against means computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from engram import keys
from engram.data.dataset import Data
from engram.errors import BadArgument
from engram.learner.feed import CROP_AREA, CROP_RATIOS, change_images, resized_crop
from engram.methods import SCR
from engram.methods.scr import contrast_classes
from engram.streams import class_incremental
from tests.methods import rehearsal
from tests.methods.plain_reservoirs import MEMORY
from tests.refusals import refuses

METHOD = SCR(temperature=0.3, views=(), width=5, memory=MEMORY)


def contrast(z: Tensor, y: Tensor, temperature: float) -> Tensor:
    """As the paper writes it: over anchors, and the other rows of their class."""
    found = []
    for i in range(len(y)):
        others = [j for j in range(len(y)) if j != i]
        alike = [j for j in others if y[j] == y[i]]
        shares = ((z[others] @ z[i]) / temperature).softmax(0)
        if alike:
            found.append(-torch.stack([shares[others.index(j)].log() for j in alike]).mean())
    return torch.stack(found).mean()


def test_the_loss_is_the_contrast_of_projected_rows(monkeypatch):
    found: list[tuple[float, float]] = []
    loss = SCR.loss

    def noting(self: SCR, net: Any, batch: Any, state: Any) -> Any:
        terms = loss(self, net, batch, state)
        z = F.normalize(net.projection(net(batch.x, batch.w).features), dim=1)
        expected = contrast(z, batch.target, 0.3)
        found.append((float(terms["task"].detach()), float(expected.detach())))
        return terms

    monkeypatch.setattr(SCR, "loss", noting)
    rehearsal.train(METHOD, class_incremental(rehearsal.clouds()))
    assert len(found) > 15
    assert all(ours == pytest.approx(theirs, abs=1e-9) for ours, theirs in found)


def test_padding_and_rows_alone_in_their_class_do_not_count():
    z = F.normalize(torch.randn(6, 3, dtype=torch.float64, generator=torch.manual_seed(0)), dim=1)
    y, w = torch.tensor([0, 0, 1, 2, 2, 0]), torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]).double()
    z.requires_grad_(True)
    total = contrast_classes(z, y, w, 0.3)
    expected = contrast(z.detach()[:5], y[:5], 0.3)
    assert float(total.detach()) == pytest.approx(float(expected), abs=1e-12)
    total.backward()
    assert bool((z.grad[5] == 0).all())


def test_the_nearest_mean_of_the_exemplars_answers():
    (*_, last) = rehearsal.train(METHOD, class_incremental(rehearsal.clouds()))
    learner = last.learner
    kept, rows = learner.exemplars, learner.task.train
    features = F.normalize(learner.outputs(kept.rows, kept.stages).features, dim=1)
    held = kept.columns.unique()
    means = torch.stack([F.normalize(features[kept.columns == c].mean(0), dim=0) for c in held])
    own = F.normalize(learner.outputs(rows).features, dim=1)
    nearest = held[torch.cdist(own, means).argmin(1)]
    assert torch.equal(learner.answers(rows).logits.argmax(1), nearest)


def pictures() -> Data:
    rng = np.random.default_rng(0)
    x = rng.random((60, 1, 6, 6)).astype(np.float32) + np.repeat(np.arange(6), 10)[:, None, None,
                                                                                  None]  # fmt: skip
    y = np.repeat(np.arange(6), 10)
    return Data.from_arrays(x, y, test=(x[::5], y[::5]))


def test_views_are_the_same_alone_and_mapped():
    images = torch.rand(2, 5, 1, 8, 8, dtype=torch.float64, generator=torch.manual_seed(0))
    key = torch.tensor([3, 4])
    both = ("resized_crop", "flip")
    mapped = vmap(lambda x, k: change_images(x, k, both))(images, key)
    alone = torch.stack([change_images(x, k, both) for x, k in zip(images, key, strict=True)])
    assert torch.equal(mapped, alone)
    shorter = change_images(images[0, :3], key[0], both)  # padding changes nothing
    assert torch.equal(alone[0, :3], shorter)
    assert not bool((alone == images).flatten(2).all(2).any())
    turned = change_images(images[0], key[0], ("flip",))
    same = (turned == images[0]).flatten(1).all(1)
    mirrored = (turned == images[0].flip(-1)).flatten(1).all(1)
    assert bool((same ^ mirrored).all())


def test_crops_are_those_of_torch():
    """The grid of a crop is made by hand, to the bits of `affine_grid`."""
    x = torch.rand(20, 3, 12, 9, generator=torch.manual_seed(0))
    draw = keys.uniform(5, 20, 4).float()
    area = CROP_AREA[0] + (CROP_AREA[1] - CROP_AREA[0]) * draw[:, 0]
    low, high = (math.log(one) for one in CROP_RATIOS)
    ratio = (low + (high - low) * draw[:, 1]).exp() * (12 / 9)
    wide, tall = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    theta = torch.zeros(20, 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = wide, tall
    theta[:, 0, 2], theta[:, 1, 2] = (
        (2 * draw[:, 2] - 1) * (1 - wide), (2 * draw[:, 3] - 1) * (1 - tall)
    )  # fmt: skip
    grid = F.affine_grid(theta, [20, 3, 12, 9], align_corners=False)
    expected = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    assert torch.equal(resized_crop(x, draw), expected)


def test_lockstep_is_the_loop_with_views():
    methods = [SCR(temperature=t, width=5, memory=MEMORY) for t in (0.1, 0.2, 0.5)]

    def scenario(_data: Data, order: Any) -> Any:
        return class_incremental(PICTURES, order=order)

    assert rehearsal.lockstep_gap(methods, scenario=scenario) < 1e-10


PICTURES = pictures()


@pytest.mark.parametrize(
    "values",
    [{"temperature": 0.0}, {"views": ("blur",)}, {"width": 0}, {"size": -1}, {"memory": 5}],
)
def test_bad_values(values):
    with pytest.raises(BadArgument, match=next(iter(values))):
        SCR(**values)


def test_views_of_what_is_no_image_are_refused():
    with refuses("views"):
        rehearsal.train(SCR(memory=MEMORY), class_incremental(rehearsal.clouds()))
