"""Images that stay on disk: the same rows, from an index, through a cache of limited size."""

from __future__ import annotations

import os
import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch

import engram
from engram.data import Data
from engram.data.duplicates import count_duplicates, find_repeats
from engram.data.image_files import ImageFiles
from engram.data.lazy_rows import RowCache
from engram.errors import BadArgument
from engram.learner.feed import Feed

Image = pytest.importorskip("PIL.Image")


def tree(folder, count=6, modes=("RGB", "L", "RGBA"), sizes=((6, 5),), seed=0):
    """Two classes of random pictures of some modes and sizes (width, height)."""
    rng = np.random.default_rng(seed)
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for i in range(count):
            mode, (width, height) = modes[i % len(modes)], sizes[i % len(sizes)]
            shape = (height, width, {"RGB": 3, "RGBA": 4}.get(mode, 1))
            picture = rng.integers(0, 256, shape, np.uint8)
            Image.fromarray(picture.squeeze()).save(folder / label / f"{i}.png")
    return folder


@pytest.mark.parametrize("options", [{}, {"modes": ("L",)}, {"sizes": ((6, 5), (9, 7))}])
def test_rows_are_those_in_memory(tmp_path, options):
    folder = tree(tmp_path / "all", **options)
    resize = (4, 3) if "sizes" in options else None
    plain = Data.from_folder(folder, resize=resize)
    lazy = engram.load(folder, resize=resize, lazy=True, cache=100, threads=2)
    assert isinstance(lazy.x, ImageFiles)
    rows = torch.tensor([3, 11, 3, 0])
    assert torch.equal(lazy.gather(rows), plain.gather(rows))
    assert torch.equal(torch.from_numpy(lazy.x[2:5]), plain.x[2:5])
    assert torch.equal(torch.from_numpy(lazy.x[-1]), plain.x[-1])
    assert (lazy.sample_shape, lazy.sample_bytes) == (plain.sample_shape, plain.sample_bytes)
    for part in ("y", "train", "test", "valid"):
        assert torch.equal(getattr(lazy, part), getattr(plain, part))
    assert lazy.classes == plain.classes
    assert lazy.notes[: len(plain.notes)] == plain.notes
    twin = pickle.loads(pickle.dumps(lazy.x))  # as a worker of another machine has it
    assert np.array_equal(twin[:], lazy.x[:])


def test_parts_of_a_folder_have_the_same_rows(tmp_path):
    for k, part in enumerate(("train", "val", "test")):
        tree(tmp_path / part, count=2, seed=k)
    plain, lazy = Data.from_folder(tmp_path), Data.from_folder(tmp_path, lazy=True)
    for part in ("train", "valid", "test"):
        assert torch.equal(lazy.gather(getattr(lazy, part)), plain.gather(getattr(plain, part)))


def test_identity_comes_from_names_sizes_and_times_or_from_sums(tmp_path):
    folder, index = tree(tmp_path / "all"), tmp_path / "index.npz"
    lazy = Data.from_folder(folder, lazy=True)
    again = Data.from_folder(folder, lazy=True, cache=0, threads=1)
    assert lazy.fingerprint() == again.fingerprint() != Data.from_folder(folder).fingerprint()
    assert Data.from_folder(folder, lazy=True, resize=(4, 4)).fingerprint() != lazy.fingerprint()
    summed = Data.from_folder(folder, lazy=True, index=index)
    file = folder / "cat" / "0.png"
    os.utime(file, ns=(1, 1))  # as a copy would be
    assert Data.from_folder(folder, lazy=True).fingerprint() != lazy.fingerprint()
    assert Data.from_folder(folder, lazy=True, index=index).fingerprint() == summed.fingerprint()
    folder.rename(tmp_path / "moved")
    moved = Data.from_folder(tmp_path / "moved", lazy=True, index=index)
    assert moved.fingerprint() == summed.fingerprint()
    file = tmp_path / "moved" / "cat" / "0.png"
    file.write_bytes((tmp_path / "moved" / "dog" / "0.png").read_bytes())
    assert Data.from_folder(tmp_path / "moved", lazy=True, index=index).fingerprint() != (
        summed.fingerprint()
    )


def test_an_index_is_read_instead_of_the_files(tmp_path, monkeypatch):
    folder, index = tree(tmp_path / "all"), tmp_path / "index.npz"
    lazy = Data.from_folder(folder, lazy=True, index=index)
    looked = []
    found = engram.data.image_files.read_image_header
    monkeypatch.setattr(
        "engram.data.image_files.read_image_header",
        lambda *one: looked.append(one[1]) or found(*one),
    )
    assert Data.from_folder(folder, lazy=True, index=index).fingerprint() == lazy.fingerprint()
    assert not looked
    (folder / "dog" / "9.png").write_bytes((folder / "cat" / "1.png").read_bytes())
    more = Data.from_folder(folder, lazy=True, index=index)
    assert looked == [str(folder / "dog" / "9.png")]
    assert len(more) == len(lazy) + 1
    assert len(find_repeats(more, torch.tensor([1]), torch.tensor([12]))) == 1
    assert count_duplicates(more, torch.arange(13)) == 1
    assert (
        len(
            find_repeats(Data.from_folder(folder, lazy=True), torch.tensor([1]), torch.tensor([12]))
        )
        == 0
    )  # without sums nobody looks, and the notes say so
    np.savez(index, index=np.array(1), text=np.zeros(3, np.uint8))
    with pytest.raises(BadArgument, match="index: expected a file that was written as an index"):
        Data.from_folder(folder, lazy=True, index=index)


def test_what_is_wrong_with_files_is_named(tmp_path):
    folder = tree(tmp_path / "all")
    lazy = Data.from_folder(folder, lazy=True, threads=2)
    (folder / "cat" / "1.png").write_bytes(b"other")
    with pytest.raises(BadArgument, match=r"1\.png: expected .* bytes, changed at .* as it was"):
        lazy.x[:4]
    (folder / "cat" / "2.png").unlink()
    with pytest.raises(BadArgument, match=r"2\.png: expected a file that still exists"):
        lazy.x[2]
    with pytest.raises(IndexError):
        lazy.x[np.array([99])]
    with pytest.raises(BadArgument, match=r"1\.png: expected a readable image"):
        Data.from_folder(folder, lazy=True)
    (folder / "cat" / "1.png").unlink()
    Image.new("RGB", (9, 9)).save(folder / "cat" / "1.png")
    with pytest.raises(BadArgument, match=r"1\.png: expected 5x6 pixels as .*resize"):
        Data.from_folder(folder, lazy=True)
    with pytest.raises(BadArgument, match="cache: expected None unless lazy=True"):
        Data.from_folder(folder, cache="1GB")
    os.mkfifo(folder / "cat" / "7.png")
    with pytest.raises(BadArgument, match=r"7\.png: expected an ordinary file"):
        Data.from_folder(folder, lazy=True)


def test_a_cache_keeps_to_its_size_and_never_mixes_rows():
    rng, shape = np.random.default_rng(0), (50, 3)
    values = rng.integers(0, 256, shape, np.uint8)
    cache = RowCache(30, shape, values.dtype)  # ten rows
    assert cache.slots == 10
    for _ in range(200):
        rows = rng.choice(50, rng.integers(1, 20), replace=False)
        out = np.zeros((len(rows), 3), np.uint8)
        there = cache.take(rows, out)
        assert np.array_equal(out[there], values[rows[there]])
        cache.put(rows[~there], values[rows[~there]])
        assert (cache._slot >= 0).sum() == cache._used <= 10
    assert 0.1 < cache.hits / cache.reads < 0.3
    nothing = RowCache(0, shape, values.dtype)
    nothing.put(rows, values[rows])
    assert not nothing.take(rows, np.zeros((len(rows), 3), np.uint8)).any()


def test_announced_rows_are_fetched_once_and_ahead(tmp_path):
    lazy = Data.from_folder(tree(tmp_path / "all"), lazy=True, cache=0)
    read, plain = [], ImageFiles.read
    lazy.x.read = lambda row: read.append(row) or plain(lazy.x, row)
    feed = Feed(lazy, device=torch.device("cpu"))
    rows = torch.arange(12)
    parts = [slice(*pair) for pair in pairwise(range(0, 13, 2))]
    found = list(feed.chunks(rows, torch.zeros_like(rows), parts))
    assert torch.equal(torch.cat([x for _, x in found]), feed(rows))
    assert sorted(read) == sorted([*range(12)] * 2)
    feed.announce([rows[:3]])
    assert len(feed._prefetch) == 1
    feed.announce([], anew=True)
    assert len(feed._prefetch) == 0


def test_a_packed_file_says_what_it_holds(tmp_path, monkeypatch):
    lazy = Data.from_folder(tree(tmp_path / "all"), lazy=True)
    plain = Data.from_folder(tmp_path / "all")
    mapped = engram.load(engram.data.pack(lazy, tmp_path / "set.npz"))
    assert isinstance(mapped.x, np.memmap)
    twice = find_repeats(mapped, torch.tensor([1]), torch.tensor([1]))
    monkeypatch.setattr(type(mapped.x), "__getitem__", None)  # identity reads no row
    fresh = engram.load(tmp_path / "set.npz")
    assert fresh.fingerprint() == plain.fingerprint()  # the very id of the data in memory
    cut = engram.load(tmp_path / "set.npz", crop=4)
    assert cut.fingerprint() != fresh.fingerprint()
    assert len(twice) == 1
    assert len(find_repeats(fresh, torch.tensor([1]), torch.tensor([2]))) == 0


def test_verify_reads_what_identity_does_not(tmp_path):
    folder = tree(tmp_path / "all", sizes=((60, 50),))
    assert all(one.good for one in engram.data.verify(folder, lazy=True))
    packed = engram.data.pack(folder, tmp_path / "set.npz", lazy=True)
    assert all(one.good for one in engram.data.verify(packed))
    place = int(engram.load(packed).x.offset)
    raw = bytearray(packed.read_bytes())
    raw[place + 5] ^= 1
    packed.write_bytes(raw)
    [bad] = [one for one in engram.data.verify(packed) if not one.good]
    assert bad.what == "inputs match the sum stored with them"
    file = folder / "dog" / "3.png"
    file.write_bytes(file.read_bytes()[:-30])
    [bad] = [one for one in engram.data.verify(folder, lazy=True) if not one.good]
    assert "3.png: expected a complete image" in bad.found
