from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import grad, vmap
from torch.nn import functional as F

from engram.data.image_copies import rotation_grid
from engram.streams.input_views import (
    Permuted,
    Restaged,
    Rotated,
    find_base_view,
    restage,
    view_from_description,
)
from tests.streams.toy_data import same

SHAPES = [(6,), (3, 4), (2, 3, 4)]


def views(shape):
    pixels = 1
    for size in shape[-2:]:
        pixels *= size
    made = [Permuted(tasks=3, pixels=pixels, seed=1)]
    if len(shape) > 1:
        made.append(Rotated(angles=(0, 30, -115.5)))
    return [*made, *(Restaged(view, (2, 0, 1)) for view in made)]


CASES = [(shape, view) for shape in SHAPES for view in views(shape)]


@pytest.mark.parametrize(("shape", "view"), CASES)
def test_rows_are_independent_and_the_input_stays(shape, view):
    x, stage = torch.rand(7, *shape), torch.tensor([0, 1, 2, 2, 1, 0, 1])
    before = x.clone()
    together = view(x, stage)
    assert same(x, before)
    for i in range(7):
        torch.testing.assert_close(view(x[i : i + 1], stage[i : i + 1])[0], together[i])


@pytest.mark.parametrize(("shape", "view"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_every_float_type_stays(shape, view, dtype):
    x = torch.rand(4, *shape).to(dtype)
    out = view(x, torch.tensor([0, 1, 2, 1]))
    assert out.dtype == dtype
    assert out.shape == x.shape


@pytest.mark.parametrize(("shape", "view"), CASES)
def test_mapped_equals_looped(shape, view):
    x, stage = torch.rand(3, 5, *shape), torch.randint(0, 3, (3, 5))
    looped = torch.stack([view(a, s) for a, s in zip(x, stage, strict=True)])
    torch.testing.assert_close(vmap(view)(x, stage), looped)
    shared = torch.stack([view(x[0], s) for s in stage])
    torch.testing.assert_close(vmap(view, in_dims=(None, 0))(x[0], stage), shared)


@pytest.mark.parametrize(("shape", "view"), CASES)
def test_gradients_pass_through_under_a_map(shape, view):
    x, stage = torch.rand(2, 5, *shape), torch.randint(0, 3, (2, 5))
    found = vmap(grad(lambda a, s: (view(a, s) ** 2).sum()))(x, stage)
    assert bool(torch.isfinite(found).all())
    assert bool((found != 0).any())


@given(seed=st.integers(0, 50), pixels=st.integers(1, 40))
def test_permutations_permute_and_the_first_is_the_identity(seed, pixels):
    table = Permuted(tasks=4, pixels=pixels, seed=seed).table
    assert same(table[0], torch.arange(pixels))
    for row in table:
        assert same(row.sort().values, torch.arange(pixels))


def test_permutations_differ_by_task_and_seed_but_not_by_number_of_tasks():
    a, b = Permuted(tasks=3, pixels=50, seed=0), Permuted(tasks=5, pixels=50, seed=0)
    assert same(a.table, b.table[:3])
    assert len({tuple(row) for row in b.table.tolist()}) == 5
    assert not same(Permuted(tasks=3, pixels=50, seed=1).table[1], a.table[1])


def test_channels_are_permuted_alike():
    x = torch.arange(12.0).reshape(1, 1, 3, 4).repeat(1, 3, 1, 1)
    out = Permuted(tasks=2, pixels=12, seed=0)(x, torch.tensor([1]))
    assert same(out[0, 0], out[0, 1])
    assert not same(out, x)
    flat = Permuted(tasks=2, pixels=12, seed=0)(x[:, 0].reshape(1, 12), torch.tensor([1]))
    assert same(flat.reshape(3, 4), out[0, 0])


@pytest.mark.parametrize("turns", [1, 2, 3, -1])
def test_quarter_turns_are_exact(turns):
    x = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    out = Rotated(angles=(90.0 * turns,))(x, torch.zeros(2).long())
    torch.testing.assert_close(out, torch.rot90(x, turns, dims=(2, 3)))


def test_half_turn_of_an_oblong_image_and_no_shear():
    x = torch.rand(1, 4, 6, dtype=torch.float64)
    out = Rotated(angles=(180,))(x, torch.zeros(1).long())
    torch.testing.assert_close(out, x.flip(1, 2))
    # A quarter turn moves the middle 4 x 4 of a 4 x 6 image onto itself, turned.
    quarter = Rotated(angles=(90,))(x, torch.zeros(1).long())
    torch.testing.assert_close(quarter[:, :, 1:5], torch.rot90(x[:, :, 1:5], 1, dims=(1, 2)))


def test_no_turn_is_bitwise_the_identity():
    x = torch.rand(3, 5, 7)
    assert same(Rotated(angles=(0, 360, 33))(x, torch.tensor([0, 1, 0])), x)


@pytest.mark.parametrize("size", [(4, 4), (3, 8), (7, 2)])
def test_the_grid_is_that_of_an_affine_map(size):
    height, width = size
    turn = torch.tensor([0.3, -2.0], dtype=torch.float64)
    cos, sin = turn.cos(), turn.sin()
    zero = torch.zeros_like(cos)
    rows = [torch.stack([cos, -sin * height / width, zero], -1),
            torch.stack([sin * width / height, cos, zero], -1)]  # fmt: skip
    expected = F.affine_grid(torch.stack(rows, 1), [2, 1, height, width], align_corners=False)
    torch.testing.assert_close(rotation_grid(cos, sin, height, width), expected)


def test_there_and_back_is_close_in_the_middle():
    ramp = torch.linspace(0, 1, 21)
    x = (ramp[:, None] + ramp[None, :])[None]
    stage = torch.zeros(1).long()
    back = Rotated(angles=(-25,))(Rotated(angles=(25,))(x, stage), stage)
    torch.testing.assert_close(back[:, 7:14, 7:14], x[:, 7:14, 7:14], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotated(angles=()), "angles: expected at least one angle"),
        (lambda: Rotated(angles=30), "angles: expected at least one angle"),
        (lambda: Rotated(angles="30"), r"angles\[0\]: expected a number"),
        (lambda: Rotated(angles=(1, float("nan"))), r"angles\[1\]"),
        (lambda: Rotated(angles=(1, float("inf"))), r"angles\[1\]: expected a finite number"),
        (
            lambda: Rotated(angles=(0,))(torch.rand(2, 3), torch.zeros(2).long()),
            "x: expected images",
        ),
        (lambda: Permuted(tasks=0, pixels=3), "tasks: expected"),
        (lambda: Permuted(tasks=2, pixels=3, seed=-1), "seed: expected"),
        (lambda: view_from_description({"kind": "rotate"}), "did you mean 'rotated'"),
        (
            lambda: view_from_description({"kind": "restaged", "stages": [0], "view": {}}),
            "inner view",
        ),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(("shape", "view"), CASES)
def test_a_description_rebuilds_the_view(shape, view):
    x, stage = torch.rand(4, *shape), torch.tensor([0, 1, 2, 1])
    again = view_from_description(view.describe())
    assert again.describe() == view.describe()
    assert same(again(x, stage), view(x, stage))
    assert same(view.to("cpu")(x, stage), view(x, stage))


def test_renumbering_twice_is_renumbering_once():
    view = Permuted(tasks=4, pixels=5, seed=0)
    once = restage(view, (3, 1, 0), 4)
    twice = restage(once, (2, 0), 3)
    assert isinstance(twice, Restaged)
    assert twice.view is view
    assert twice.stages == (0, 3)
    assert restage(once, (2,), 3) is view  # task 0 alone is a prefix again
    assert find_base_view(view, 4) == (view, (0, 1, 2, 3))
    assert restage(None, (1, 0), 2) is None
