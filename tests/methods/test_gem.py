from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import Tensor
from torch.func import vmap

from engram.errors import BadArgument
from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import FunctionalNet
from engram.linear_algebra import eliminate, inner_products
from engram.memory import Memory
from engram.methods import agem
from engram.methods.finetune import Finetune
from engram.methods.gem import (
    GEM,
    MOST_ENUMERATED,
    _exchange_signs,
    _solve_by_interior_points,
    _solve_every_set,
    project,
    quadratic_objective,
    solve_nonnegative,
)
from tests.methods import small


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    "g,past,margin,eps,expected",
    [
        # [T-Q1]
        ([-2, 3], [[1, 0]], 0.0, 0.0, [0, 3]),
        ([-2, 3], [[1, 0]], 0.0, 1e-3, [-0.001998, 3]),
        ([-2, 3], [[1, 0]], 0.5, 1e-3, [-0.001998, 3]),
        ([-2, 3], [[1, 0]], 5.0, 1e-3, [3, 3]),
        # [T-Q2]
        ([-1, -1], [[1, 0], [0, 1]], 0.0, 0.0, [0, 0]),
        # [T-Q3]
        ([-1, 2, 0.5], [[1, 0, 0], [0, 1, 0], [1, 1, 0]], 0.0, 1e-3, [-0.000999, 2, 0.5]),
        ([-1, 2, 0.5], [[1, 0, 0], [0, 1, 0], [1, 1, 0]], 0.5, 1e-3, [0, 3, 0.5]),
        # no memory is violated: untouched, whatever the margin
        ([2, 3], [[1, 0]], 5.0, 1e-3, [2, 3]),
    ],
)
def test_projections(g: Any, past: Any, margin: float, eps: float, expected: Any) -> None:
    found = project(tensor(g), tensor(past), margin=margin, eps=eps)
    assert torch.allclose(found, tensor(expected), atol=1e-5)


def problem(seed: int, tasks: int, kind: int) -> tuple[Tensor, Tensor]:
    """Gradients of past tasks (independent, alike, of unequal size, dependent) and the present."""
    rng = np.random.default_rng(seed)
    past = rng.standard_normal((tasks, 40))
    if kind == 1:
        past += 3 * rng.standard_normal(40)
    if kind == 2:
        past *= np.logspace(0, 2, tasks)[:, None]
    if kind == 3:
        past[0] = past[-1] * 1.001
    g = rng.standard_normal(40) - (seed % 3) * past.mean(0)
    return tensor(past), tensor(g)


def reference(a: Tensor, q: Tensor) -> Tensor:
    """The same program as nonnegative least squares: |L' u + L^-1 q|^2, A = L L'."""
    lower = np.linalg.cholesky(a.numpy())
    return torch.tensor(nnls(lower.T, -np.linalg.solve(lower, q.numpy()), maxiter=5000)[0])


class TestDual:
    @given(
        seed=st.integers(0, 10_000), tasks=st.sampled_from([1, 2, 4, 6, 7, 10, 20]),
        kind=st.integers(0, 3),
    )  # fmt: skip
    def test_equals_nonnegative_least_squares(self, seed: int, tasks: int, kind: int) -> None:
        past, g = problem(seed, tasks, kind)
        a, q = past @ past.T + 1e-3 * torch.eye(tasks).double(), past @ g
        found, expected = solve_nonnegative(a, q), reference(a, q)
        assert bool((found >= 0).all())
        best = float(quadratic_objective(a, q, expected))
        assert float(quadratic_objective(a, q, found)) == pytest.approx(best, rel=1e-9, abs=1e-12)
        assert torch.allclose(past.T @ found, past.T @ expected, atol=1e-6 * float(q.abs().max()))

    def test_all_three_solvers_agree(self) -> None:
        quick = 0
        for seed in range(30):
            past, g = problem(seed, MOST_ENUMERATED, seed % 4)
            a, q = past @ past.T + 1e-3 * torch.eye(MOST_ENUMERATED).double(), past @ g
            root = a.diagonal().sqrt()
            a, q = a / root[:, None] / root, q / root
            every, inside, guessed = (
                f(a, q) for f in (_solve_every_set, _solve_by_interior_points, _exchange_signs)
            )
            assert torch.allclose(every, inside, atol=1e-8)
            if guessed is not None:
                quick += 1
                assert torch.allclose(every, guessed, atol=1e-8)
        assert quick > 20

    @pytest.mark.parametrize("eliminates", [False, True])
    def test_fixed_rounds_do_without_a_look(
        self, monkeypatch: pytest.MonkeyPatch, eliminates: bool
    ) -> None:
        """By torch's routines, and by elimination as on CUDA."""
        monkeypatch.setattr("engram.methods.gem.may_read_values", lambda _q: False)
        monkeypatch.setattr("engram.linear_algebra._must_eliminate", lambda _m: eliminates)
        for seed in range(40):
            past, g = problem(seed, (7, 12, 20)[seed % 3], seed % 4)
            a, q = past @ past.T + 1e-3 * torch.eye(len(past)).double(), past @ g
            best = float(quadratic_objective(a, q, reference(a, q)))
            assert float(quadratic_objective(a, q, solve_nonnegative(a, q))) == pytest.approx(
                best, rel=1e-9
            )

    @pytest.mark.parametrize("tasks, eliminates", [(3, False), (9, False), (9, True)])
    def test_maps_over_runs_of_which_one_is_singular(
        self, monkeypatch: pytest.MonkeyPatch, tasks: int, eliminates: bool
    ) -> None:
        monkeypatch.setattr("engram.linear_algebra._must_eliminate", lambda _m: eliminates)
        problems = [problem(seed, tasks, 0) for seed in range(3)]
        past = torch.stack([p for p, _ in problems])
        g = torch.stack([g for _, g in problems])
        past[1, 0] = past[1, 1]  # the same memory twice
        past[2] = 0.0  # memories without gradient
        found = vmap(lambda p, v: project(v, p, eps=0.0))(past, g)
        assert bool(torch.isfinite(found).all())
        for run in range(3):
            assert torch.allclose(found[run], project(g[run], past[run], eps=0.0), atol=1e-9)
            assert bool((past[run] @ found[run] >= -1e-7).all())
        assert torch.equal(found[2], g[2])

    def test_elimination_solves(self) -> None:
        past, g = problem(0, 5, 0)
        a = past @ past.T
        assert torch.allclose(a @ eliminate(a, g[:5]), g[:5])


class TestProjection:
    @given(seed=st.integers(0, 10_000), tasks=st.sampled_from([1, 3, 6, 8, 15]))
    def test_goes_against_no_memory(self, seed: int, tasks: int) -> None:
        past, g = problem(seed, tasks, seed % 3)
        found = project(g, past, eps=0.0)
        sizes = past.norm(dim=1) * g.norm()
        assert bool((past @ found >= -1e-8 * sizes).all())
        # and it is the nearest such gradient: its change is orthogonal to itself
        assert float((found - g) @ found) == pytest.approx(0, abs=1e-7 * float(g @ g))

    @given(seed=st.integers(0, 10_000))
    def test_one_memory_without_margin_is_agem(self, seed: int) -> None:
        past, g = problem(seed, 1, 0)
        assert torch.allclose(project(g, past, eps=0.0), agem.project(g, past[0]), atol=1e-10)

    @pytest.mark.parametrize("width", [1, 7, 40, 64])
    def test_blocks_change_nothing(self, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("engram.linear_algebra.NARROW", width)
        monkeypatch.setattr("engram.linear_algebra.BLOCKS", 40)
        past, g = problem(3, 5, 1)
        products, along = inner_products(past.float(), g.float())
        rows = past.float().double()
        assert products.dtype == torch.float64
        assert torch.allclose(products, rows @ rows.T, rtol=1e-14, atol=1e-13)
        assert torch.allclose(along, rows @ g.float().double(), rtol=1e-14, atol=1e-13)

    def test_nearly_parallel_memories_in_single_precision(self) -> None:
        # products of float32 would not see that these differ
        rng = np.random.default_rng(0)
        common = rng.standard_normal(50_000)
        past = torch.tensor(common + 1e-4 * rng.standard_normal((9, 50_000))).float()
        g = torch.tensor(-common + rng.standard_normal(50_000)).float()
        rows, exact = past.double(), g.double()
        a = rows @ rows.T + 1e-3 * torch.eye(9).double()
        expected = exact + rows.T @ reference(a, rows @ exact)
        found = project(g, past).double()
        assert float((found - expected).norm() / expected.norm()) < 2e-6

    def test_precision_of_the_network_is_not_that_of_the_projection(self) -> None:
        past, g = (one.float() for one in problem(1, 3, 1))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = project(g, past, margin=0.5)
        assert torch.equal(found, project(g, past, margin=0.5))

    def test_single_precision_keeps_its_type(self) -> None:
        past, g = problem(1, 3, 1)
        found = project(g.float(), past.float())
        assert found.dtype == torch.float32
        assert torch.allclose(found.double(), project(g, past), atol=1e-4)


class TestRun:
    def test_keeps_a_fraction_of_every_task(self) -> None:
        learner = small.after(GEM(memory=Memory(fraction=0.2)))
        sizes = [small.SIZES[i] + small.SIZES[i + 1] for i in (0, 2, 4)]
        assert learner.exemplars.stages.bincount().tolist() == [-(-n // 5) for n in sizes]

    def test_forgets_less_than_finetuning(self) -> None:
        assert small.accuracy(GEM()) > small.accuracy(Finetune()) + 0.2

    def test_does_not_train_on_its_memory(self) -> None:
        method = GEM()
        assert method.replay(1).kind == "tasks"
        assert torch.equal(small.after(method, 0).vector, small.after(Finetune(), 0).vector)

    def test_every_step_is_projected(self) -> None:
        angles: list[float] = []

        class Watched(GEM):
            def gradient(self, grad: Any, batch: Any, state: Any) -> Tensor:
                found = super().gradient(grad, batch, state)
                if batch.memory:
                    past = torch.stack([grad(one) for one in batch.memory])
                    angles.extend((past @ found).tolist())
                    angles.append(float((past @ grad(batch)).min()))
                return found

        small.after(Watched(margin=0.0, eps=0.0))
        assert len(angles) > 10
        assert min(angles[:-1]) < -1e-3  # plain gradients do go against some memory
        assert sum(a < -1e-8 for a in angles) < len(angles) / 2

    @pytest.mark.parametrize(
        "options",
        [
            {}, {"margin": 0.0, "eps": 0.0, "size": 3, "memory": Memory(per_class=4)},
            {"counted": 0.3, "memory": Memory(fraction=1.0)},
            {"counted": 0.3, "redraw": True, "memory": Memory(fraction=1.0)},
        ],
    )  # fmt: skip
    def test_lockstep_is_the_loop(self, options: dict[str, Any]) -> None:
        model = small.Normed if "counted" in options else None  # where the other rows matter
        assert small.gap([GEM(**options)] * 3, model=model) < 1e-10

    def test_lockstep_is_the_loop_with_many_tasks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # with the interior method from the second past task on
        monkeypatch.setattr("engram.methods.gem.MOST_ENUMERATED", 1)
        streams = [small.stream(1, seed=seed) for seed in range(2)]
        assert small.gap([GEM(memory=Memory(per_class=3))] * 2, streams=streams) < 1e-9

    def test_margins_may_differ_in_lockstep(self) -> None:
        assert small.gap([GEM(margin=m) for m in (0.0, 0.5, 2.0)], model=small.Normed) < 1e-10


class TestCounted:
    """Whole tasks pass through the network, the loss of some of their rows counts."""

    @staticmethod
    def memory_batch(learner: RunLearner, *, short: int = 0) -> Batch:
        """The exemplars of the first task; padding of weight 0 behind."""
        kept = learner.exemplars
        batch = learner.batch(kept.rows, kept.stages)
        real = torch.arange(len(batch.w)) < len(batch.w) - short
        return batch._replace(w=real.double(), old=torch.ones_like(batch.w))

    @staticmethod
    def learner() -> RunLearner:
        return small.after(GEM(memory=Memory(fraction=1.0)), 0, model=small.Normed)

    def test_first_rows_are_what_a_smaller_memory_holds(self) -> None:
        whole = small.after(GEM(memory=Memory(fraction=1.0)), 0).exemplars
        part = small.after(GEM(memory=Memory(fraction=0.2)), 0).exemplars
        assert torch.equal(whole.rows[: len(part)], part.rows)

    @pytest.mark.parametrize("redraw", [False, True])
    def test_share_is_rounded_up_and_padding_never_counts(self, redraw: bool) -> None:
        learner = self.learner()
        for short, expected in ((0, 9), (3, 8), (8, 7)):  # 0.2 of 43, 40, 35 rows
            batch = self.memory_batch(learner, short=short)
            found = GEM(counted=0.2, redraw=redraw).counts(batch)
            assert int(found.sum()) == expected
            assert not bool((found * (batch.w == 0)).any())

    def test_redrawn_rows_differ_from_step_to_step(self) -> None:
        batch = self.memory_batch(self.learner())
        method = GEM(counted=0.5, redraw=True)
        steps = [method.counts(batch._replace(key=torch.tensor(k))) for k in range(200)]
        assert torch.equal(steps[0], method.counts(batch._replace(key=torch.tensor(0))))
        shares = torch.stack(steps).mean(0)
        assert bool((shares > 0.3).all())
        assert bool((shares < 0.7).all())

    def test_gradient_in_plain_torch(self) -> None:
        learner = self.learner()
        batch = self.memory_batch(learner)
        vector = learner.vector.clone().requires_grad_(True)
        net = FunctionalNet(learner.networks, vector, learner.buffers, training=True)
        (found,) = torch.autograd.grad(GEM(counted=0.2).loss(net, batch, {})["task"], vector)

        def by_hand(rows: int, counted: int) -> Tensor:
            net = FunctionalNet(learner.networks, vector, learner.buffers, training=True)
            logits = net(batch.x[:rows]).logits[:counted]
            closed = logits.masked_fill(~batch.open[:counted], -1e9)
            loss = torch.nn.functional.cross_entropy(closed, batch.y[:counted, 0])
            return torch.autograd.grad(loss, vector)[0]

        assert torch.allclose(found, by_hand(len(batch.w), 9), rtol=0, atol=1e-13)
        assert not torch.allclose(found, by_hand(9, 9), rtol=0, atol=1e-3)  # statistics of 9 rows

    def test_a_loss_of_its_own_only_where_rows_are_left_out(self) -> None:
        assert [GEM(counted=c).implements("loss") for c in (1.0, 0.2)] == [False, True]

    def test_rows_of_the_task_all_count(self) -> None:
        every, some = (small.after(GEM(counted=c), 0).vector for c in (1.0, 0.2))
        assert torch.allclose(every, some, rtol=0, atol=1e-14)

    def test_shares_may_differ_in_lockstep(self) -> None:
        methods = [GEM(counted=c, memory=Memory(fraction=1.0)) for c in (1.0, 0.5, 0.2)]
        assert small.gap(methods, model=small.Normed) < 1e-10


@pytest.mark.parametrize(
    "options,words",
    [
        ({"margin": -1.0}, "margin"),
        ({"counted": 0.0}, "counted: expected a share above 0"),
        ({"counted": 1.5}, "counted"),
        ({"eps": -1e-3}, "eps"),
        ({"size": -1}, "size"),
        ({"memory": None}, "memory: expected a Memory"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        GEM(**options)
