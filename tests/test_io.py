from __future__ import annotations

import os
from pathlib import Path

import pytest

from engram import io
from engram.errors import RecordError


def test_json_and_yaml_come_back_as_written(tmp_path: Path) -> None:
    content = {"lr": 1e-5, "layers": [1, 2], "name": "1e5", "none": None, "yes": True}
    assert io.read_json(io.write_json(tmp_path / "a.json", content)) == content
    assert io.read_yaml(io.write_yaml(tmp_path / "a.yaml", content)) == content
    assert list(io.read_yaml(tmp_path / "a.yaml")) == list(content)


def test_an_interrupted_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    path = io.write_text(tmp_path / "a.txt", "old")

    def interrupted() -> None:
        with io.atomic_write(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_the_content_is_on_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append("sync"), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("name"), replace(a, b)))
    io.write_text(tmp_path / "a.txt", "whole")
    assert events == ["sync", "name", "sync"]


@pytest.mark.parametrize(
    ("name", "content", "reader"),
    [
        ("a.json", b'{"a": [1, 2', io.read_json),
        ("a.json", b"\xff\xfe\x00", io.read_json),
        ("a.yaml", b"a: [1, 2", io.read_yaml),
    ],
)
def test_a_garbled_file_is_named(tmp_path: Path, name: str, content: bytes, reader: object) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(RecordError, match=str(path)):
        reader(path)  # type: ignore[operator]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"gone\.json: cannot be read"):
        io.read_json(tmp_path / "gone.json")


def test_long_lists_are_written_compactly(tmp_path):
    long = {"runs": [{"seed": seed} for seed in range(200)]}
    short = {"runs": long["runs"][:3]}
    assert io.write_json(tmp_path / "long.json", long).read_text().count("\n") == 1
    assert io.write_json(tmp_path / "short.json", short).read_text().count("\n") > 3
    assert io.read_json(tmp_path / "long.json") == long
