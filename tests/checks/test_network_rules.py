"""Networks of one's own against the contract: faults are found, and named by what mends them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from engram.checks import check, check_suite, equality_rules, form_rules, learning_rules
from engram.checks.check_report import check_name
from engram.checks.network_rules import NETWORK_CHECKS
from engram.cli import app
from engram.errors import BadArgument
from engram.methods.method import Method

SHAPE = (4,)


class Good(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.BatchNorm1d(8), nn.ReLU())
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.drop(self.layers(x))


class Remembers(Good):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + 0.001 * self.calls)


class Noisy(Good):
    def forward(self, x):
        return super().forward(x) + torch.randn(1)


class Writes(Good):
    def forward(self, x):
        x += 1
        return super().forward(x)


class Mixes(Good):
    def forward(self, x):
        found = super().forward(x)
        return found - found.mean(0)


class Stuck(Good):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__()


class Lucky(Good):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(np.random.rand(8), dtype=torch.float32))  # noqa: NPY002

    def forward(self, x):
        return self.scale * super().forward(x)


class Spare(Good):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(2, 2)


class Cut(Good):
    def forward(self, x):
        return super().forward(x).detach()


class Infinite(Good):
    def forward(self, x):
        return super().forward(x) / 0


class Blind(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 8), nn.Sigmoid())

    def forward(self, x):
        return super().forward(0 * x)


FAULTS = {
    Remembers: ("answers the same again", "keep nothing on self"),
    Noisy: ("answers the same again", "draws random numbers in eval mode"),
    Writes: ("inputs stay as they are", "x = x + 1"),
    Mixes: ("rows do not matter to each other", "no mean over rows"),
    Stuck: ("the seed decides its weights", "set no seed of your own"),
    Lucky: ("the seed decides its weights", "not from numpy's"),
    Spare: ("gradients reach all weights", "spare.weight, spare.bias have no part"),
    Cut: ("answers features", "take no_grad and detach out"),
    Infinite: ("answers features", "not finite"),
    Blind: ("learns", "layers that lose the input"),
}


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.__name__)
def test_a_fault_is_named_first_by_what_mends_it(kind):
    first = check(kind, sample_shape=SHAPE).failed[0]
    rule, words = FAULTS[kind]
    assert first.check == rule
    assert words in first.message


@pytest.mark.parametrize("target", [Good, Good(), lambda sample_shape: Good(), nn.Flatten])
def test_sound_networks_pass(target):
    report = check(target, sample_shape=SHAPE)
    assert report.ok, str(report)
    assert [one.check for one in report] == [check_name(one) for one in NETWORK_CHECKS]


def test_the_page_on_the_contract_lists_every_check():
    page = (Path(__file__).parents[2] / "docs" / "contract.md").read_text(encoding="utf-8")
    for rule in NETWORK_CHECKS:
        assert f"| {check_name(rule)} | {rule.__doc__} |" in page


def test_a_network_that_cannot_be_mapped_says_so():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(2, 8, batch_first=True)

        def forward(self, x):
            return self.gru(x)[0][:, -1]

    report = check(Reads, sample_shape=(3, 2))
    assert report.ok, str(report)
    assert "one run at a time: torch cannot map gru" in str(report)


def test_samples_are_guessed_or_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    net = "from torch import nn\nclass Net(nn.Linear):\n    def __init__(self):\n"
    (tmp_path / "net_on_trial.py").write_text(net + "        super().__init__(5, 3)\n")
    np.savez("five.npz", x=np.eye(5, dtype="float32").repeat(4, 0), y=np.arange(5).repeat(4))
    asked = ["check", "net_on_trial.py:Net"]
    lost = CliRunner().invoke(app, asked)
    assert lost.exit_code == 1
    assert "(3, 224, 224) were tried; --data NAME names data that it reads" in lost.stdout
    told = CliRunner().invoke(app, [*asked, "--data", "five.npz"])
    assert "Net on samples of shape (5,)" in told.stdout, told.output
    assert "(1, 8, 8)" not in told.stdout
    table = "a,b,c,d,e,kind\n" + "1,2,3,4,5,x\n6,7,8,9,0,y\n" * 5
    (tmp_path / "five.csv").write_text(table)
    told = CliRunner().invoke(app, [*asked, "--data", "five.csv", "--label", "kind"])
    assert "Net on samples of shape (5,)" in told.stdout, told.output


@pytest.fixture
def few_checks(monkeypatch):
    """Some checks of methods, of all kinds: there are many, and each is tested elsewhere."""
    chosen = (
        form_rules.check_verbs_return_what_they_should,
        equality_rules.check_maps_without_host_decisions,
        equality_rules.check_it_does_something,
        learning_rules.check_beats_chance,
        learning_rules.check_finish_leaves_statistics_alone,
    )
    monkeypatch.setattr(check_suite, "METHOD_CHECKS", chosen)


@dataclass(frozen=True, kw_only=True)
class Weighted(Method):
    """A method that notes the shapes of the weights it trains."""

    seen: ClassVar[set[tuple[int, ...]]] = set()

    def loss(self, net, batch, state):
        self.seen.update(tuple(one.shape) for one in net.params.values())
        return {"task": 2 * net.task(batch)}


def test_a_method_on_a_network_of_ones_own(few_checks):
    report = check(Weighted, model=Good, sample_shape=SHAPE)
    assert report.ok, str(report)
    assert len(report) == 5
    assert str(report).startswith("Weighted with Good on samples of shape (4,)")
    assert (8, 4) in Weighted.seen


def test_a_network_at_fault_is_not_the_methods(few_checks):
    report = check(Weighted, model=Cut, sample_shape=SHAPE)
    assert str(report).startswith("Cut on samples")
    assert report.failed[0].check == "answers features"


def test_what_a_network_cannot_do_is_not_asked_of_a_method(few_checks):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(2, 8, batch_first=True)

        def forward(self, x):
            return self.gru(x)[0][:, -1]

    report = check("Finetune", model=Recurrent, sample_shape=(3, 2))
    assert report.ok, str(report)
    assert "one run at a time: torch cannot map gru" in str(report)
    assert "1.weight" not in str(report)


def test_only_methods_are_checked_on_networks():
    with pytest.raises(BadArgument, match="herding is no method"):
        check("herding", model=Good)


def test_data_is_for_networks_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = CliRunner().invoke(app, ["check", "EWC", "--data", "digits"])
    assert asked.exit_code == 2
    assert "EWC is no network" in asked.stderr
    asked = CliRunner().invoke(app, ["check", "EWC", "--label", "kind"])
    assert "--data: expected the data that --set and --label apply to" in asked.stderr
