"""Scores that depend on the batch are found, by the size of the difference; others are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import engram
from engram.cli import app
from engram.deploy.batch_invariance import (
    check_model_batches,
    check_network_batches,
    measure_batch_effects,
)
from tests.refusals import refuses

ROWS = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
GROUPS = torch.arange(40) % 4
NET = """
import torch
from torch import nn


class Normalised(nn.Module):
    def __init__(self, track=True):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 10)
        self.norm = nn.BatchNorm1d(8, track_running_stats=track)

    def forward(self, x):
        return self.last(self.norm(self.first(x.flatten(1))).relu())


class ByBatch(Normalised):
    def __init__(self):
        super().__init__(track=False)
"""


class Prompted(nn.Module):
    """Adds one prompt to the whole batch: that which most of its rows are close to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.prompts, self.head = nn.Parameter(torch.randn(5, 6)), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = (x @ self.prompts.T).argmax(1).mode().values
        return self.head(x + self.prompts[chosen])


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def wrong(effects):
    return [one.how for one in effects if not one.ok]


def test_batch_norm_in_eval_mode_scores_rows_alone():
    assert wrong(check_network_batches(normalised().eval(), ROWS, GROUPS)) == []


def test_batch_norm_in_training_mode_is_found():
    net = normalised().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    effects = {one.how: one for one in check_network_batches(net, ROWS, GROUPS)}
    assert effects["the same batches again"].ok
    assert "ValueError" in effects["one row at a time"].error
    assert effects["shuffled"].ok  # the batches of a task hold the same rows
    assert effects["tasks mixed"].gap > 0.01
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_prompts_of_a_batch_are_found():
    effects = check_network_batches(Prompted(), ROWS, GROUPS)
    assert {"one row at a time", "tasks mixed"} <= set(wrong(effects))
    (alone,) = (one for one in effects if one.how == "one row at a time")
    net = Prompted().requires_grad_(False)
    apart = [net(ROWS[k == GROUPS]) for k in range(4)]
    single = torch.cat([net(row[None]) for row in ROWS])
    together = torch.empty(40, 3)
    for k in range(4):
        together[k == GROUPS] = apart[k]
    assert alone.gap == pytest.approx(float((together - single).abs().max()))
    assert alone.changed == int((together.argmax(1) != single.argmax(1)).sum())


def test_random_scores_differ_in_the_same_batches():
    net = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)).train()
    state = torch.random.get_rng_state()
    assert "the same batches again" in wrong(check_network_batches(net, ROWS))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(("dtype", "step"), [(torch.float32, 1e-3), (torch.float64, 1e-8)])
def test_what_counts_as_rounding_depends_on_the_precision(dtype, step):
    def scores(size):
        return lambda x: x.to(dtype) + size * (len(x) - 1)

    assert wrong(measure_batch_effects(scores(step), ROWS, dtype=dtype))
    assert not wrong(measure_batch_effects(scores(step / 1e4), ROWS, dtype=dtype))


def test_scores_must_be_one_line_per_row():
    with refuses("net"):
        measure_batch_effects(lambda x: x.mean(), ROWS)
    with refuses("rows"):
        measure_batch_effects(lambda x: x, ROWS[:1])
    with refuses("groups"):
        measure_batch_effects(lambda x: x, ROWS, GROUPS[:3])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "kept"
    data = engram.load("digits")
    stream = engram.class_incremental(data)[:2]
    options = {"model": {"name": "mlp", "hidden": [16]}, "iterations": 5, "device": "cpu"}
    engram.run(stream, method=["ER", "ICaRL"], out=out, **options)
    return out


def test_kept_models_score_rows_alone(trained):
    result = engram.read(trained)
    for label in ("ER", "ICaRL"):
        assert wrong(check_model_batches(result.model(label))) == []
    x = engram.load("digits").x[:60]
    effects = check_model_batches(result.model("ER"), x, torch.arange(60) % 3)
    assert wrong(effects) == []
    assert effects[-1].how == "tasks mixed"


def test_a_kept_model_that_depends_on_its_batch_is_found(trained, monkeypatch):
    learner = engram.read(trained).model("ER")
    net = learner.snapshot.bundle.get_submodule("net")
    own = net.head.forward
    monkeypatch.setattr(net.head, "forward", lambda x: own(x - x.mean(0)))
    effects = check_model_batches(learner)
    assert "one row at a time" in wrong(effects)


def test_heads_of_tasks_are_checked_in_turn():
    stream = engram.task_incremental(engram.load("digits"))[:2]
    run = engram.run(stream, model={"name": "mlp", "hidden": [8]}, iterations=2, device="cpu")
    effects = check_model_batches(run.model())
    assert wrong(effects) == []
    assert {one.how.split(",")[0] for one in effects} == {"head of task 1", "head of task 2"}


def test_command(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"nets_{tmp_path.name.replace('-', '_')}.py"
    (tmp_path / name).write_text(NET)

    def call(*words):
        found = CliRunner().invoke(app, ["check", *words])
        return found.exit_code, found.output

    code, told = call(str(trained))
    assert code == 0, told
    assert told.count("scores do not depend on the batch") == 2
    code, told = call(str(trained), "--data", "digits")
    assert (code, told.count("tasks mixed: equal")) == (0, 2)
    assert call(f"{name}:Normalised", "--batch-invariance")[0] == 0
    for further in ([], ["--data", "digits"]):
        code, told = call(f"{name}:ByBatch", "--batch-invariance", *further)
        assert code == 1, told
        assert "FAIL  all at once: scores differ by up to" in told
    assert call("ER", "--batch-invariance")[0] == 2
