"""The scripts of docs/guide/own-data.md, each alone, beside the files that it speaks of."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "own-data.md"
SCRIPT = re.compile(
    r"^## ([^\n]+)\n(?:(?!^## ).)*?```python script\n(.+?)```", re.DOTALL | re.MULTILINE
)
SCRIPTS = dict(SCRIPT.findall(PAGE.read_text(encoding="utf-8")))
MOST_LINES = 12
TABLES, FOLDERS = "Tables and CSV files", "Folders of images"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder as a user has it: a table with gaps, images of two sizes, one of them broken."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    kind = np.arange(160) % 4
    table = pd.DataFrame({"size": rng.normal(size=160) + 4 * (kind == 1) - 4 * (kind == 2)})
    table["weight"] = 1e4 * (rng.normal(size=160) + 4 * (kind % 2))
    table["coat"] = np.array(["fur", "fur", "down", "fur"])[kind]
    table["kind"] = np.array(["cat", "dog", "owl", "fox"])[kind]
    table.loc[::40, "size"] = np.nan
    table.to_csv("animals.csv", index=False)
    for i in range(80):
        colour, side = np.array([[200, 0, 0], [0, 200, 0], [0, 0, 200], [90, 90, 90]])[i % 4], 20
        noise = rng.integers(0, 50, (side + i % 2, side, 3))
        Path(f"photos/class {i % 4}").mkdir(parents=True, exist_ok=True)
        Image.fromarray((colour + noise).astype(np.uint8)).save(f"photos/class {i % 4}/{i}.png")
    Path("photos/class 0/broken.png").write_bytes(b"nothing")


def test_all_five_are_there():
    assert list(SCRIPTS) == [
        "Arrays", TABLES, FOLDERS, "Time series", "A torch Dataset",
    ]  # fmt: skip


@pytest.mark.parametrize("title", SCRIPTS)
def test_a_script_is_short_and_learns(title, files, monkeypatch, capsys):
    code = SCRIPTS[title]
    assert len(code.strip().splitlines()) <= MOST_LINES
    module = ModuleType("__script__")
    monkeypatch.setitem(sys.modules, "__script__", module)
    exec(compile(code, title, "exec", dont_inherit=True), module.__dict__)
    shown = capsys.readouterr().out
    assert "average_accuracy" in shown
    best = module.result.metric("average_accuracy").max()
    assert best > 0.5, "twice as much as a guess among four classes"
    assert ("look at: features with extreme scales: weight" in shown) == (title == TABLES)
    assert ("1 image left out that cannot be read: broken.png" in shown) == (title == FOLDERS)
