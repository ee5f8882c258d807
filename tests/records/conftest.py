from __future__ import annotations

from pathlib import Path

import pytest

from engram.records import RunDirectory
from tests.records.synthetic import fill


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    return fill(tmp_path / "runs")
