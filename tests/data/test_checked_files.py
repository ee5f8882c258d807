"""Small files that would exhaust memory or time are refused, in words, before that."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zipfile

import numpy as np
import pytest

from engram.data import checked_files
from engram.data.checked_files import read_npz
from engram.data.images import decode
from engram.data.photos.cifar import LAYOUTS, _contents
from engram.data.photos.idx_files import read_idx
from engram.data.picture_sets import crop_picture
from engram.errors import BadArgument, RecordError
from engram.records import Rows, RunDirectory, read
from engram.records.table_parts import read_part


def npy_header(shape):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


def test_an_array_that_says_more_than_it_holds(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy_header((10**9, 10**6)) + bytes(80))
    with pytest.raises(BadArgument, match=r"x\.npy: expected 8000000000000\d+ bytes for"):
        read_npz(tmp_path / "a.npz")


def test_an_archive_that_is_far_larger_than_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(checked_files, "LARGE_FILE", 1 << 20)
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1 << 20))
    with pytest.raises(BadArgument, match="at most 300 times as large as its file"):
        read_npz(tmp_path / "a.npz")
    monkeypatch.setattr(checked_files, "total_memory", lambda: 1000)
    with pytest.raises(BadArgument, match="what fits into memory"):
        read_npz(tmp_path / "a.npz")


def test_a_gzip_file_is_read_as_far_as_it_announces(tmp_path, monkeypatch):
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">HBB2I", 0, 8, 2, 2, 2) + bytes(1 << 22)))
    with pytest.raises(BadArgument, match="expected 4 bytes for shape"):
        read_idx(path)
    monkeypatch.setattr(checked_files, "total_memory", lambda: 1000)
    path.write_bytes(gzip.compress(struct.pack(">HBB2I", 0, 8, 2, 2000, 2000)))
    with pytest.raises(BadArgument, match="what fits into memory"):
        read_idx(path)


def test_an_archive_of_gigabytes_is_not_read_through(tmp_path):
    header = tarfile.TarInfo("something")
    header.size = 1 << 40
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(gzip.compress(header.tobuf() + bytes(512)))
    with pytest.raises(BadArgument, match="an archive of at most"):
        _contents(path, LAYOUTS[0])


def test_pipes_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(BadArgument, match="not a regular file"):
        decode([tmp_path / "a.png"])
    with pytest.raises(BadArgument, match="not a regular file"):
        crop_picture(tmp_path / "a.png", 8)
    folder = RunDirectory(tmp_path / "run")
    folder.append(rows_of([0]), ledger={})
    for name in ("results-0.parquet", "ledger-0.json", "recipes/r.yaml"):
        os.mkfifo(folder.path / name)
    result = read(folder.path)
    assert {os.path.basename(one.file) for one in result.problems} == {"r.yaml", "ledger-0.json"}


def rows_of(stages):
    rows = Rows(recipe="r", label="ER", seed=0)
    rows.add_array("accuracy", np.full(len(stages), 0.5), stage=stages, task=stages, head="single")
    return rows


def test_stages_and_rows_that_no_run_has(tmp_path, monkeypatch):
    folder = RunDirectory(tmp_path)
    folder.append(rows_of([0, 32000]))
    with pytest.raises(RecordError, match="recipe r, seed 0: has 2 rows that reach to stage"):
        _ = read(tmp_path).view(head="single").matrix
    folder.append(rows_of(np.zeros(100_000, np.int64)))
    monkeypatch.setattr("engram.records.table_parts._DENSE", 1)
    with pytest.raises(RecordError, match="100000 rows in"):
        read_part(folder.result_files()[-1])
