from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from engram.cli import app

# Two tasks of tiny data: a run takes a fraction of a second.
SMALL = ("--data", "blobs", "-s", "classes_per_task=5")


@pytest.fixture
def engram(tmp_path, monkeypatch) -> Callable[..., Any]:
    """Calls the command line in an empty working directory; fails on an unexpected exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENGRAM_DATA", raising=False)

    def call(*args: object, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [str(arg) for arg in args])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return call
