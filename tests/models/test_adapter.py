from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from engram.models import BatchNorm, Dropout, adapt, build, forward_context


def filled(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        for i, value in enumerate([norm.weight, norm.bias, norm.running_mean, norm.running_var]):
            value.copy_(torch.arange(len(value)) + 1.0 + i)
    return norm


@pytest.mark.parametrize(
    ("stock", "shape"),
    [
        (nn.BatchNorm1d(3), (4, 3)),
        (nn.BatchNorm2d(3, momentum=0.4, eps=0.1), (4, 3, 2, 2)),
        (nn.BatchNorm3d(3), (4, 3, 2, 2, 2)),
    ],
)
def test_norms_keep_weights_statistics_and_mode(stock, shape):
    stock = filled(stock).eval()
    ours = adapt(nn.Sequential(stock))
    assert type(ours[0]) is BatchNorm
    assert not ours[0].training
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(x), stock(x))
    twin = copy.deepcopy(stock).train()
    torch.testing.assert_close(ours.train()(x), twin(x))
    torch.testing.assert_close(ours[0].var, twin.running_var)
    assert stock.running_var.tolist() == [4, 5, 6], "the user's module is untouched"


def test_plain_norm_without_weights():
    ours = adapt(nn.BatchNorm1d(3, affine=False))
    assert type(ours) is BatchNorm
    assert ours.weight is None


def test_dropouts_are_keyed():
    ours = adapt(nn.Sequential(nn.Dropout(0.3), nn.Dropout2d(0.2), nn.Dropout1d(0.1)))
    assert [(type(m), m.p, m.channels) for m in ours] == [
        (Dropout, 0.3, False),
        (Dropout, 0.2, True),
        (Dropout, 0.1, True),
    ]
    assert ours.mappable
    assert ours.unmappable == ()


def test_shared_layers_stay_shared():
    norm = nn.BatchNorm1d(4)
    ours = adapt(nn.Sequential(norm, nn.Sequential(norm, nn.ReLU()), norm))
    assert ours[0] is ours[1][0]
    assert ours[0] is ours[2]
    assert type(ours[2]) is BatchNorm


class SharedDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.drop = nn.Linear(6, 6), nn.Dropout(0.5)

    def forward(self, x):
        return torch.cat([self.drop(torch.ones_like(x)), self.drop(torch.ones_like(x))], 1)


def test_a_dropout_used_twice_draws_twice():
    net = build(SharedDropout(), sample_shape=(6,), classes=2, seed=0)
    with forward_context(key=1):
        left, right = net(torch.zeros(5, 6)).features.chunk(2, 1)
    assert not torch.equal(left, right)


def test_hooks_travel():
    norm, seen = nn.BatchNorm1d(2), []
    norm.register_forward_hook(lambda *_: seen.append(1))
    adapt(nn.Sequential(norm))(torch.zeros(3, 2))
    assert seen == [1]


class Custom(nn.BatchNorm1d):
    pass


class HostDecision(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 4)

    def forward(self, x):
        y = self.line(x)
        return y if float(y.detach().sum()) > 0 else -y


class Noise(HostDecision):
    def forward(self, x):
        return nn.functional.dropout(self.line(x), 0.5, self.training)


@pytest.mark.parametrize(
    ("module", "reason", "mixes"),
    [
        (nn.Sequential(nn.Linear(6, 4), Custom(4)), r"1 \(Custom\) uses batch statistics", True),
        (nn.BatchNorm1d(6, momentum=None), r"the module \(BatchNorm1d\) uses batch", True),
        (nn.BatchNorm1d(6, track_running_stats=False), "uses batch statistics", True),
        (nn.InstanceNorm1d(6, track_running_stats=True), "averages running statistics", True),
        (nn.Sequential(nn.Linear(6, 4), nn.AlphaDropout()), "torch's global generator", False),
        (nn.Sequential(nn.Linear(6, 4), nn.RReLU()), "torch's global generator", False),
        (
            nn.GRU(6, 4, num_layers=2, dropout=0.5),
            "draws its dropout from torch's global generator",
            False,
        ),
        (HostDecision(), "mapping over runs failed", False),
        (Noise(), "mapping over runs failed.*random", False),
    ],
)
def test_what_cannot_be_mapped_says_why(module, reason, mixes):
    ours = adapt(module, (6,))
    assert not ours.mappable
    assert ours.mixes_rows is mixes
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(ours.unmappable[0])


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2), nn.Flatten()),
        nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.GELU(), nn.Dropout(0.1)),
        nn.Sequential(
            nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 4, 2), nn.GroupNorm(2, 4), nn.Flatten()
        ),
        nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True)),
    ],
)
def test_ordinary_modules_map(module):
    ours = adapt(module, (6,))
    assert ours.unmappable == ()
    assert ours.mappable
    assert not ours.mixes_rows
    assert all(layer.training for layer in ours.modules())


def test_the_classifier_passes_the_verdict_on():
    net = build({"name": HostDecision(), "ends": "features"}, sample_shape=(6,), classes=2, seed=0)
    assert not net.mappable
    assert "mapping over runs failed" in net.unmappable[0]
    mixing = nn.Sequential(nn.Linear(6, 4), Custom(4))
    assert build(mixing, sample_shape=(6,), classes=2, seed=0).mixes_rows
    assert build("mlp", sample_shape=(6,), classes=2, seed=0).mappable


def test_trial_leaves_weights_and_statistics_alone():
    stock = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    ours = adapt(stock, (6,))
    assert torch.equal(ours[0].weight, stock[0].weight)
    assert ours[1].mean.tolist() == [0] * 4
    assert ours[0].weight.grad is None
