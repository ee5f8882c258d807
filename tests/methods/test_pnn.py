"""Progressive networks against a plain loop; columns that grow with the tasks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engram.engine.engine import Engine
from engram.engine.evaluation import test_items as items_of
from engram.engine.run_definition import Run
from engram.engine.training import Training
from engram.methods.pnn import PNN
from engram.streams import task_incremental
from tests.methods.rehearsal import SGD, Normed, clouds, train

STREAM = task_incremental(clouds(), classes_per_task=2)
DEEP = {"name": "mlp", "hidden": (8, 6)}
EXACT = {**SGD, "batch_size": 0, "momentum": 0.0, "epochs": 3}


def forward(weights: dict[str, torch.Tensor], x: torch.Tensor, columns: int) -> torch.Tensor:
    """Logits of the last of some columns, by hand."""
    known: list[list[torch.Tensor]] = []
    for k in range(columns):
        start = f"column{k}.model." if k else "net."
        first, second = (
            (weights[f"{start}backbone.{name}.0.weight"], weights[f"{start}backbone.{name}.0.bias"])
            for name in ("lower", "upper")
        )
        one = torch.relu(F.linear(x, *first))
        two, last = (
            F.linear(one, *second),
            [weights[f"{start}head.{n}"] for n in ("weight", "bias")],
        )
        if known:
            below = torch.cat([older[0] for older in known], 1)
            two = two + below @ weights[f"column{k}.lateral.0"].T
        two = torch.relu(two)
        logits = F.linear(two, *last)
        if known:
            below = torch.cat([older[1] for older in known], 1)
            logits = logits + below @ weights[f"column{k}.lateral.1"].T
        known.append([one, two])
    return logits


def test_a_plain_loop_trains_the_same_columns():
    stages = train(PNN(), STREAM, model=DEEP, **EXACT)
    run = Run(stream=STREAM, method=PNN(), model=DEEP, training=Training(**EXACT))
    weights = {k: v.clone() for k, v in Engine([run], device="cpu").learner(run).params.items()}
    for stage, task in enumerate(STREAM.tasks):
        x, y = STREAM.data.x[task.train].double(), STREAM.targets[task.train][:, 0]
        own = [k for k in weights if k.startswith(f"column{stage}." if stage else "net.")]
        for _ in range(3):
            leaves = {k: weights[k].clone().requires_grad_() for k in own}
            logits = forward({**weights, **leaves}, x, stage + 1)
            logits = logits.masked_fill(~STREAM.visible[stage], -torch.inf)
            slopes = torch.autograd.grad(F.cross_entropy(logits, y), list(leaves.values()))
            for name, slope in zip(own, slopes, strict=True):
                weights[name] = weights[name] - 0.05 * slope
    for name, one in stages[-1].learner.params.items():
        assert torch.allclose(one, weights[name], atol=1e-12), name


@pytest.mark.parametrize("together", [False, True], ids=["alone", "lockstep"])
@pytest.mark.parametrize("model", [DEEP, Normed], ids=["plain", "normed"])
def test_no_score_of_a_task_ever_changes(together, model):
    others = task_incremental(clouds(), order=[5, 1, 3, 0, 4, 2], classes_per_task=2)
    runs = [
        Run(stream=stream, method=PNN(), model=model, training=Training(**SGD), seed=seed)
        for seed, stream in enumerate((STREAM, others))
    ]
    first: dict[tuple[int, int], np.ndarray] = {}
    for stage in Engine(runs, device="cpu", together=together).stages():
        tasks = items_of(stage.learner.stream)[1][: len(stage.scores)].numpy()
        for task in range(stage.stage + 1):
            own = stage.learner.stream.visible[task].numpy()
            found = stage.scores[tasks == task][:, own]
            kept = first.setdefault((stage.run, task), found)
            assert np.abs(found - kept).max() <= 1e-12 * np.abs(kept).max()
    assert len(first) == 6


def test_bytes_and_weights_of_a_column_count_from_its_task_on():
    model = {"name": "mlp", "hidden": (8, 6)}
    run = Run(stream=STREAM, method=PNN(), model=model, training=Training(**SGD))
    sizes = []
    for stage in Engine([run], device="cpu").stages():
        learner = stage.learner
        held = sum(
            one.numel() for name, one in learner.params.items()
            if not name.startswith(learner.networks.closed(learner.stage) or "-")
        )  # fmt: skip
        main = learner.networks.main_size
        sizes.append(held)
        assert learner.nbytes()["networks"] == 8 * (held - main)
        moments = sum(v.numel() == len(learner.vector) for v in learner.opt.values())
        assert learner.nbytes()["optimizer"] <= 8 * moments * held + 64
    lateral = [8 * 6 + 6 * 6, 2 * (8 * 6 + 6 * 6)]
    main = 5 * 8 + 8 + 8 * 6 + 6 + 6 * 6 + 6
    assert sizes == [main, 2 * main + lateral[0], 3 * main + sum(lateral)]
