"""A writer that is killed at any moment loses nothing it had finished."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engram.records import RunDirectory, read

# One process imports everything once and forks the writers, so that ten kills take a second.
KILLER = """
import json, os, random, signal, sys, time
import numpy as np
import pandas, pyarrow.parquet, safetensors.numpy
from engram.records import EvaluationItems, Prediction, Rows, RunDirectory

items = EvaluationItems(rows=range(300), task=[0] * 300, targets=[0] * 300, opening=[0],
                        visible=[[1]], classes=[0])

def write(seed, pipe):
    folder = RunDirectory(sys.argv[1])
    for stage in range(10_000):
        rows = Rows(recipe="r", label="ER", seed=seed)
        rows.add_array("accuracy", np.full(1, 0.5), stage=stage, task=0, head="single")
        rows.add_array("loss/total", np.arange(200.0), stage=stage, step=np.arange(200))
        kept = Prediction.from_scores(np.zeros((300, 1)), items, recipe="r", seed=seed, stage=stage)
        folder.append(rows, predictions=[kept], ledger={"stage": stage})
        os.write(pipe, b".")

draw, reported = random.Random(0), []
for seed in range(10):
    source, pipe = os.pipe()
    child = os.fork()
    if child == 0:
        write(seed, pipe)
        os._exit(0)
    os.close(pipe)
    said = os.read(source, 1)
    time.sleep(draw.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    while more := os.read(source, 10_000):
        said += more
    reported.append(len(said))
print(json.dumps(reported))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_killed_writers_lose_no_finished_part(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(tmp_path)], capture_output=True, text=True, check=True
    )
    reported = json.loads(done.stdout)
    folder, result = RunDirectory(tmp_path), read(tmp_path)
    assert result.problems == ()
    for seed, count in enumerate(reported):
        finished = folder.finished("r", seed)
        assert finished == set(range(len(finished)))
        assert len(finished) in (count, count + 1)  # the last part may be there, its report not
        rows = result.frame().query("seed == @seed")
        assert len(rows) == 201 * len(finished)  # whole stages only
        for stage in finished:
            assert result.predictions.get("r", seed, "", stage) is not None
