"""Options that say how to run, and are no part of the question."""

from __future__ import annotations

from pathlib import Path

from engram.cli.console import read_requests
from tests.cli.conftest import SMALL


def test_resume_goes_on_as_before_unless_told_otherwise(engram):
    call = ("run", *SMALL, "-m", "ER", "-o", "out", "--device", "cpu", "--deterministic")
    said = engram(*call, "--checkpoint-every", "soon", code=2)
    assert "--checkpoint-every" in said.output + said.stderr
    assert not Path("out").exists()
    engram(*call, "--checkpoint-every", "90s")
    (first,) = read_requests(Path("out"))
    assert (first.deterministic, first.checkpoint_every) == (True, "90s")
    engram("resume", "out")
    assert read_requests(Path("out")) == [first]
    engram("resume", "out", "--no-deterministic", "--checkpoint-every", "10m")
    (last,) = read_requests(Path("out"))
    assert (last.deterministic, last.checkpoint_every) == (False, "10m")
