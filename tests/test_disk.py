"""Files that appear whole, words for disks that fail, and bits that flip."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import engram
from engram.errors import EngramError, RecordError
from engram.experiments import Callback
from engram.io import (
    DiskError,
    TensorFile,
    atomic_write,
    make_folder,
    remove_leftovers,
    save_tensors,
    write_together,
)
from engram.records import Rows, RunDirectory, read
from engram.records.journal import read_journal


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes: the nearest to a full disk that needs no disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", [np.ones, torch.ones])
def test_tensors_that_do_not_fit_are_an_error_in_words_and_leave_nothing(tmp_path, kind):
    with (
        small_disk(1000),
        pytest.raises(DiskError, match=r"/a\.safetensors: the file exceeds the size"),
    ):
        save_tensors(tmp_path / "a.safetensors", {"x": kind(10_000)}, {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "the disk is read-only"),
     (errno.EACCES, "no permission to write there"), (errno.ESTALE, "no longer exists")],
)  # fmt: skip
def test_disks_that_fail_in_words(tmp_path, monkeypatch, code, words):
    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    rows = Rows(recipe="r", seed=0)
    rows.add("accuracy", 0.5, stage=0, task=0, head="single")
    folder = RunDirectory(tmp_path)
    with pytest.raises(DiskError, match=f"{words}; everything written") as caught:
        folder.append(rows)
    assert isinstance(caught.value, EngramError)
    assert caught.value.errno == code
    assert os.listdir(tmp_path) == ["recipes"]


def test_files_that_appear_at_once_do_so_or_not_at_all(tmp_path, monkeypatch):
    def write(last="c"):
        for name in ("a", "b", last):
            with atomic_write(tmp_path / name) as temporary:
                temporary.write_text(name)

    with pytest.raises(ValueError, match="null byte"), write_together():
        write(last="\0")
    assert not list(tmp_path.iterdir())

    def full(source, target):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(DiskError, match="the disk is full"), write_together():
            write()
    assert not list(tmp_path.iterdir())
    with write_together():
        write()
        assert not list(tmp_path.glob("[!.]*"))
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["a", "b", "c"]
    with atomic_write(tmp_path / "d") as temporary:  # alone again
        temporary.write_text("d")
    assert (tmp_path / "d").exists()


def test_a_directory_that_is_deleted_stays_deleted(tmp_path):
    class Deleting(Callback):
        def stage(self, plan, stage, rows):
            moved.rename(tmp_path / "elsewhere")

    moved = tmp_path / "out"
    with pytest.raises(DiskError, match=r"out.*: the directory no longer exists"):
        engram.run(engram.load("blobs"), out=moved, device="cpu", callback=Deleting())
    assert not moved.exists()
    assert len(engram.read(tmp_path / "elsewhere").frame())
    folder = RunDirectory(moved)
    moved.rename(tmp_path / "third")
    RunDirectory(moved)  # somebody else's
    with pytest.raises(DiskError, match="no longer exists"):
        folder.append(None, environment={})
    moved.rename(tmp_path / "fourth")
    with pytest.raises(DiskError, match="no longer exists"):
        folder.finished("r", 0)


def test_folders_are_made_inside_what_is_there_only(tmp_path):
    make_folder(tmp_path / "a" / "b", inside=tmp_path)
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(DiskError, match="no longer exists"):
        make_folder(tmp_path / "gone" / "b" / "c", inside=tmp_path / "gone")


def test_what_a_dead_writer_left_is_removed_at_once_and_a_living_ones_is_not(tmp_path):
    code = (
        "import os, sys\nfrom engram.io import atomic_write\n"
        "with atomic_write(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('half')\n    os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=True)
    (half,) = tmp_path.iterdir()
    with atomic_write(tmp_path / "b") as temporary:
        temporary.write_text("going on")
        (tmp_path / ".c.tmp-0f0f0f0f-1-0").touch()  # of another machine
        assert remove_leftovers(tmp_path) == [half]
    assert (tmp_path / "b").read_text() == "going on"
    assert len(remove_leftovers(tmp_path, older_than=-1)) == 1


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_every_flipped_bit_of_a_file_of_tensors_is_noticed(tmp_path, kind):
    path, values = tmp_path / "a.safetensors", {"x": np.arange(5.0), "s": np.array(3, np.int16)}
    if kind == "torch":
        values = {"x": torch.arange(5.0).to(torch.bfloat16), "b": torch.tensor([True, False])}
    save_tensors(path, values, {"facts": '{"stage": 2}'})
    framework = "pt" if kind == "torch" else "np"
    whole = path.read_bytes()
    harmless = 0
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            file = TensorFile(path, framework=framework)
            assert set(file.keys()) == set(values)
            same = all(bool((file.get(name) == one).all()) for name, one in values.items())
        except (RecordError, AssertionError):
            continue
        harmless += 1
        assert same
        assert file.facts["facts"] == '{"stage": 2}'
    assert harmless == 0


def test_every_flipped_bit_of_results_is_noticed(tmp_path):
    folder, rows = RunDirectory(tmp_path), Rows(recipe="r", label="ER", seed=0)
    rows.add_array("accuracy", [0.25, 0.5], stage=[0, 1], task=0, head="single")
    folder.append(rows)
    (path,) = tmp_path.glob("results-*.tar")
    frame, whole = read(tmp_path).frame(), path.read_bytes()
    sums, record = read_journal(path).files
    end = record.start + record.size
    # checksums are read by `engram verify`
    aside = range(sums.start, record.start - tarfile.BLOCKSIZE)
    for place in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        found = read(tmp_path)
        if not found.problems:  # a letter of the name under which the sum stands, or padding
            assert found.frame().equals(frame)
            assert (
                place in aside
                or place >= end
                or whole[place - 11 : place + 12].count(b"engram-crc32"[:1])
            )
        else:
            assert found.problems[0].file in (str(path), str(record))
