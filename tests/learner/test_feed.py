from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from engram import keys
from engram.data.dataset import Data
from engram.errors import BadArgument
from engram.learner.feed import CROP_PADDING, Feed, resized_crop
from engram.streams.input_views import Permuted, Restaged, Rotated

CPU = torch.device("cpu")


def images(**options: object) -> Data:
    x = torch.arange(4 * 2 * 5 * 6, dtype=torch.long).reshape(4, 2, 5, 6).remainder(256)
    y = torch.tensor([0, 1, 0, 1])
    return Data.from_arrays(x.to(torch.uint8), y, test=(x.to(torch.uint8), y), **options)


def feed(data: Data, *augment: str) -> Feed:
    return Feed(data, device=CPU, dtype=torch.float64, augment=augment)


def test_bytes_become_numbers_below_one():
    data = images()
    found = feed(data)(torch.tensor([2, 0]))
    assert found.dtype == torch.float64
    assert torch.allclose(found, data.x[[2, 0]].double() / 255)


def test_mean_and_deviation_per_channel():
    data = images(mean=(0.5, 0.25), std=(2.0, 4.0))
    found = feed(data)(torch.tensor([1]))
    raw = data.x[[1]].double() / 255
    assert torch.allclose(found[:, 0], (raw[:, 0] - 0.5) / 2)
    assert torch.allclose(found[:, 1], (raw[:, 1] - 0.25) / 4)


def test_any_leading_shape():
    one = feed(images())
    rows = torch.tensor([[0, 1, 2], [3, 3, 0]])
    assert torch.equal(one(rows), torch.stack([one(row) for row in rows]))


def test_a_memory_map_gives_the_same(tmp_path):
    data = images()
    np.save(tmp_path / "x.npy", data.x.numpy())
    mapped = replace(data, x=np.load(tmp_path / "x.npy", mmap_mode="r"))
    rows = torch.tensor([[3, 1], [0, 0]])
    assert torch.equal(feed(data)(rows), feed(mapped)(rows))


def test_an_order_in_memory_changes_no_value():
    data = images(mean=(0.5, 0.25), std=(2.0, 4.0))
    rows = torch.tensor([[0, 1, 2], [3, 3, 0]])
    wanted = Feed(data, device=CPU, dtype=torch.float32, axes=(2, 0, 1))
    plain = Feed(data, device=CPU, dtype=torch.float32)
    assert torch.equal(wanted(rows), plain(rows))
    joints_first = wanted(rows).permute(0, 1, 4, 2, 3)
    assert joints_first.is_contiguous()
    assert not plain(rows).permute(0, 1, 4, 2, 3).is_contiguous()


class TestAugmentation:
    rows = torch.arange(4).repeat(8)

    def test_flips_mirror_about_half(self):
        one = feed(images(), "flip")
        plain, found = one(self.rows), one.fetch_augmented(self.rows, None, torch.tensor(3))
        same = (found == plain).flatten(1).all(1)
        turned = (found == plain.flip(-1)).flatten(1).all(1)
        assert bool((same ^ turned).all())
        assert 6 < int(turned.sum()) < 26

    def test_crops_shift_and_fill_with_zeros(self):
        one = feed(images(), "crop")
        plain, found = one(self.rows), one.fetch_augmented(self.rows, None, torch.tensor(3))
        wide = torch.nn.functional.pad(plain, [CROP_PADDING] * 4)
        height, width = plain.shape[-2:]
        shifts = set()
        for picture, source in zip(found, wide, strict=True):
            hits = [
                (dy, dx)
                for dy in range(2 * CROP_PADDING + 1)
                for dx in range(2 * CROP_PADDING + 1)
                if torch.equal(picture, source[:, dy : dy + height, dx : dx + width])
            ]
            assert hits
            shifts.add(hits[0])
        assert len(shifts) > 10

    def test_crops_fill_with_black_before_normalising(self):
        plain = feed(images(), "crop").fetch_augmented(self.rows, None, torch.tensor(3))
        channels = plain.shape[1]
        mean, std = (tuple(c + base for c in range(channels)) for base in (0.2, 0.5))
        own = feed(replace(images(), mean=mean, std=std), "crop")
        found = own.fetch_augmented(self.rows, None, torch.tensor(3))
        m, d = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (mean, std))
        torch.testing.assert_close(found, (plain - m) / d)

    def test_resized_crops_are_parts_of_the_image(self):
        ramp = torch.arange(16.0, dtype=torch.float64)
        x = (ramp[:, None] * 100 + ramp)[None, None].expand(300, 1, 16, 16)  # place as value
        found = resized_crop(x, keys.uniform(3, 300, 4).double())
        assert found.shape == x.shape
        assert found.min() >= x.min()
        assert found.max() <= x.max()
        wide = (found[:, 0, 0, -1] - found[:, 0, 0, 0]) / 15  # widths of the parts, in shares
        tall = (found[:, 0, -1, 0] - found[:, 0, 0, 0]) / 1500
        area = wide * tall
        assert 0.05 < float(area.min()) < 0.15
        assert float(area.max()) > 0.8
        inside = (wide < 0.9) & (tall < 0.9)  # borders cut the others
        ratio = (wide / tall)[inside]
        assert 0.74 < float(ratio.min()) < 0.8
        assert 1.25 < float(ratio.max()) < 1.35
        whole = torch.tensor([[1.0, 0.5, 0.5, 0.5]]).double()
        torch.testing.assert_close(resized_crop(x[:1], whole), x[:1])

    def test_a_runs_draw_is_its_own(self):
        """Alone, in company and in a longer batch a row is changed in the same way."""
        one = feed(images(), "crop", "flip", "resized_crop")
        key = torch.tensor([3, 8])
        both = one.fetch_augmented(self.rows.expand(2, -1), None, key)
        for run in range(2):
            alone = one.fetch_augmented(self.rows, None, key[run])
            assert torch.equal(both[run], alone)
            assert torch.equal(one.fetch_augmented(self.rows[:7], None, key[run]), alone[:7])

    def test_only_images(self):
        flat = Data.from_arrays(torch.zeros(10, 3), [0, 1] * 5)
        with pytest.raises(BadArgument, match="images of shape"):
            feed(flat, "flip")
        with pytest.raises(BadArgument, match="did you mean 'flip'"):
            feed(images(), "flips")


@pytest.mark.parametrize("options", [{}, {"mean": (0.5, 0.25), "std": (2.0, 4.0)}], ids=str)
@pytest.mark.parametrize("name", ["permuted", "rotated", "restaged"])
def test_inputs_under_a_view_are_kept_as_they_are_made(monkeypatch, name, options):
    """Where a view only moves pixels, bytes are kept; otherwise what the network sees."""
    data = images(**options)
    pixels = 5 * 6
    view = {
        "permuted": Permuted(tasks=2, pixels=pixels),
        "rotated": Rotated(angles=(0, 30)),
        "restaged": Restaged(Permuted(tasks=3, pixels=pixels), [2, 0]),
    }[name]
    one, none = (Feed(data, device=CPU, view=view, dtype=torch.float32) for _ in range(2))
    rows, stages = torch.tensor([4, 5, 6, 7] * 2), torch.tensor([0] * 4 + [1] * 4)
    parts = [slice(0, 3), slice(3, 4), slice(4, 8)]
    wanted = torch.stack([none(row[None], stage[None])[0] for row, stage in zip(rows, stages)])
    for _ in range(2):
        found = torch.cat([x for _, x in one.chunks(rows, stages, parts)])
        assert torch.equal(found, wanted)
    kept = [made for _, made in one._viewed.values()]
    assert [len(made) for made in kept] == [3, 1, 4]
    assert {made.dtype for made in kept} == {torch.float32 if name == "rotated" else torch.uint8}
    assert one._viewed_bytes == 8 * 2 * pixels * (4 if name == "rotated" else 1)
    # other rows in the same place, and rows of several tasks, are no longer those
    other = torch.tensor([4, 6, 5])
    assert torch.equal(next(one.chunks(other, stages[:3], [slice(0, 3)]))[1], wanted[[0, 2, 1]])
    assert torch.equal(next(one.chunks(rows, stages, [slice(0, 8)]))[1], wanted)
    assert len(pickle.loads(pickle.dumps(one))._viewed) == 0
    monkeypatch.setattr("engram.learner.feed.VIEWED_BYTES", 3 * 2 * pixels)
    small = Feed(data, device=CPU, view=view, dtype=torch.float32)
    assert torch.equal(torch.cat([x for _, x in small.chunks(rows, stages, parts)]), wanted)
    assert small._viewed_bytes <= 3 * 2 * pixels


def test_pixels_with_means_of_their_own_are_moved_after_they_are_normalised():
    x = torch.arange(24, dtype=torch.uint8).reshape(4, 6)
    means = tuple(float(k) / 10 for k in range(6))
    data = Data.from_arrays(x, [0, 1, 0, 1], mean=means, std=(1.0,) * 6)
    view = Permuted(tasks=2, pixels=6)
    one = Feed(data, device=CPU, view=view, dtype=torch.float32)
    rows, stages = torch.arange(2), torch.ones(2, dtype=torch.long)
    found = next(one.chunks(rows, stages, [slice(0, 2)]))[1]
    assert torch.equal(found, one(rows, stages))
    assert torch.allclose(found, view((x[:2] / 255 - torch.tensor(means)), stages), atol=1e-6)
