from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engram import keys
from engram.engine.sampler import SIZE_OF_BATCH, Sampler, StepRows, pad_runs
from engram.learner.batch import TrainingRows

CPU = torch.device("cpu")


def items(count: int, first: int = 0) -> TrainingRows:
    """Rows first, first + 1, ...; the label of a row is its number."""
    rows = torch.arange(first, first + count)
    return TrainingRows(rows, rows % 2, rows[:, None], torch.ones(count), torch.full_like(rows, -1))


def sampler(sizes: list[int], batch: int, *, incomplete_batch: str = "keep",
           memory: list[int] | None = None, pair: bool = False, memory_size: int = 0,
           seed: int = 0, steps_per_epoch: int = 0) -> Sampler:  # fmt: skip
    tables = [pad_runs([items(n, 1000) for n in memory], CPU)] if memory else []
    return Sampler(
        pad_runs([items(n) for n in sizes], CPU), tables, stage=1, batch_size=batch,
        incomplete_batch=incomplete_batch, seeds=[seed + r for r in range(len(sizes))],
        pair=pair, memory_size=memory_size, dtype=torch.float64,
        steps_per_epoch=steps_per_epoch,
    )  # fmt: skip


def real_rows(rows: StepRows, run: int) -> list[list[int]]:
    """The rows that count, step by step."""
    pairs = zip(rows.main.rows[run], rows.main.w[run], strict=True)
    return [rows[w > 0].tolist() for rows, w in pairs]


def flat(steps: list[list[int]]) -> list[int]:
    return [row for step in steps for row in step]


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4)


@given(SIZES, st.integers(0, 17), st.integers(0, 5))
def test_every_row_once_per_epoch(sizes, batch, epoch):
    rows = sampler(sizes, batch).epoch(epoch)
    for run, size in enumerate(sizes):
        steps = real_rows(rows, run)
        assert sorted(flat(steps)) == list(range(size))
        full = batch or max(sizes)
        assert all(len(step) == min(full, size) for step in steps[: size // full])
        assert rows.live[run].tolist() == [bool(step) for step in steps]


@given(SIZES, st.integers(0, 17))
def test_padding_repeats_real_rows(sizes, batch):
    rows = sampler(sizes, batch).epoch(0)
    for run, size in enumerate(sizes):
        assert set(rows.main.rows[run].flatten().tolist()) <= set(range(size))
        assert set(rows.main.w[run].flatten().tolist()) <= {0.0, 1.0}
        assert torch.equal(rows.main.y[run][..., 0], rows.main.rows[run])


@given(SIZES, st.integers(1, 17), st.sampled_from(["keep", "drop", "wrap"]), st.integers(0, 3))
def test_a_group_changes_no_rows(sizes, batch, last, epoch):
    """A run gets the same rows in the same places, alone or beside larger ones."""
    together = sampler(sizes, batch, incomplete_batch=last).epoch(epoch)
    for run, size in enumerate(sizes):
        alone = sampler([size], batch, incomplete_batch=last, seed=run).epoch(epoch)
        mine, own = real_rows(together, run), real_rows(alone, 0)
        assert mine[: len(own)] == own
        assert not any(mine[len(own) :])
        steps = alone.key.shape[1]
        assert torch.equal(together.key[run, :steps], alone.key[0])


@given(st.integers(1, 40), st.integers(1, 17))
def test_drop_leaves_out_the_rest_and_wrap_fills_it(size, batch):
    own = min(batch, size)
    dropped = real_rows(sampler([size], batch, incomplete_batch="drop").epoch(0), 0)
    kept = real_rows(sampler([size], batch, incomplete_batch="keep").epoch(0), 0)
    wrapped = real_rows(sampler([size], batch, incomplete_batch="wrap").epoch(0), 0)
    assert dropped == kept[: size // own]
    assert {len(step) for step in dropped} == {own}
    assert {len(step) for step in wrapped} == {own}
    whole, once = flat(wrapped), flat(kept)
    assert whole == (once + once)[: len(whole)]
    assert len(wrapped) == len(kept)


@settings(max_examples=25)
@given(SIZES, st.integers(1, 17), st.integers(0, 12), st.integers(1, 12))
def test_iterations_are_epochs_end_to_end(sizes, batch, start, count):
    rows = sampler(sizes, batch).iterations(start, start + count)
    for run, size in enumerate(sizes):
        own = min(batch, size)
        alone = sampler([size], batch, seed=run, incomplete_batch="drop")
        epochs = [step for e in range(start + count) for step in real_rows(alone.epoch(e), 0)]
        assert real_rows(rows, run) == epochs[start : start + count]
        assert all(len(step) == own for step in real_rows(rows, run))


@pytest.mark.parametrize("batch", [4, 40], ids=["batches", "all rows at once"])
def test_epochs_of_so_many_steps_follow_one_another(batch):
    """Each goes on where the last one ended; runs of any size have the steps asked for."""
    epochs = sampler([13, 7], batch, steps_per_epoch=5)
    assert epochs.steps_per_epoch == 5
    whole = sampler([13, 7], batch).iterations(0, 15)
    for run in range(2):
        drawn = [real_rows(epochs(number), run) for number in range(3)]
        assert [len(steps) for steps in drawn] == [5, 5, 5]
        assert [step for steps in drawn for step in steps] == real_rows(whole, run)


def test_iterations_may_be_cut_anywhere():
    whole = sampler([13, 7], 4).iterations(0, 20)
    parts = [sampler([13, 7], 4).iterations(a, b) for a, b in ((0, 3), (3, 11), (11, 20))]
    for run in range(2):
        cut = [step for part in parts for step in real_rows(part, run)]
        assert cut == real_rows(whole, run)
    assert torch.equal(torch.cat([part.key for part in parts], 1), whole.key)


def test_epochs_differ_and_seeds_differ():
    one = sampler([30, 30], 8)
    assert real_rows(one.epoch(0), 0) != real_rows(one.epoch(1), 0)
    assert real_rows(one.epoch(0), 0) != real_rows(one.epoch(0), 1)
    assert real_rows(one.epoch(3), 0) == real_rows(sampler([30, 30], 8).epoch(3), 0)


def test_one_batch_needs_no_order():
    one = sampler([9], 0)
    assert one.fixed
    assert real_rows(one.epoch(4), 0) == [list(range(9))]


def test_a_fixed_deck_has_new_keys_in_every_epoch():
    one = sampler([9, 4], 0)
    rows = one.epoch(0)
    for epoch in (1, 63, 64, 65, 130, 2):
        rekeyed = one.reseed_rows(rows, epoch)
        assert torch.equal(rekeyed.key, one.epoch(epoch).key)
        assert torch.equal(rekeyed.main.rows, rows.main.rows)


class TestMemory:
    def test_pairs_come_first_and_padding_last(self):
        rows = sampler([21, 5], 8, memory=[6, 3], pair=True, memory_size=4).epoch(0)
        assert rows.main.rows.shape == (2, 3, 12)
        for run, size in enumerate((21, 5)):
            for step, w in zip(rows.main.rows[run], rows.main.w[run], strict=True):
                count = int(w.sum())
                assert w.tolist() == [1.0] * count + [0.0] * (12 - count)
                if count:
                    assert (step[:4] >= 1000).all()
                    assert (step[4:count] < size).all()
        assert rows.lengths == (12, 12, 9)

    def test_a_step_without_own_rows_has_no_memory_rows(self):
        rows = sampler([21, 5], 8, memory=[6, 3], pair=True, memory_size=4).epoch(0)
        assert rows.main.w[1].sum(-1).tolist() == [9.0, 0.0, 0.0]
        assert rows.live.tolist() == [[True, True, True], [True, False, False]]

    @given(SIZES, st.integers(0, 17), st.booleans())
    def test_a_group_changes_no_draw(self, sizes, batch, pair):
        kept = [n + 2 for n in sizes]
        how = {"pair": pair, "memory_size": SIZE_OF_BATCH}
        together = sampler(sizes, batch, memory=kept, **how).epoch(2)
        for run, size in enumerate(sizes):
            alone = sampler([size], batch, memory=[kept[run]], seed=run, **how).epoch(2)
            own = real_rows(alone, 0)
            assert real_rows(together, run)[: len(own)] == own
            if not pair:
                mine, other = together.apart[0], alone.apart[0]
                steps = other.rows.shape[1]
                for step in range(steps):
                    left = mine.rows[run, step][mine.w[run, step] > 0]
                    assert torch.equal(left, other.rows[0, step][other.w[0, step] > 0])
                    assert len(left) == min(batch or size, size)

    def test_draws_are_with_replacement_and_inside(self):
        rows = sampler([64], 4, memory=[3], memory_size=8).epoch(0)
        drawn = rows.apart[0].rows
        assert drawn.shape == (1, 16, 8)
        assert set(drawn.flatten().tolist()) == {1000, 1001, 1002}

    def test_size_zero_is_the_whole_memory_in_order(self):
        rows = sampler([8, 8], 4, memory=[5, 3]).epoch(0)
        part = rows.apart[0]
        assert part.rows[0, 1].tolist() == [1000, 1001, 1002, 1003, 1004]
        assert part.w[1, 0].tolist() == [1, 1, 1, 0, 0]
        assert part.rows[1, 0, 3:].tolist() == [1000, 1000]  # a real row, of weight 0


def test_keys_of_steps_are_those_of_the_seed():
    rows = sampler([10], 4, seed=3).epoch(2)
    expected = [keys.fold(3, "step", 1, 2, step) for step in range(3)]
    assert rows.key[0].tolist() == expected
