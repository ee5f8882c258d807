"""What holds for every model, whatever its name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from engram import keys
from engram.models import build, forward_context, models
from engram.models.published_weights import PUBLISHED

CHAIN = [(1, 2), (3, 2), (4, 3), (5, 3)]
CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": ({"name": "mlp", "hidden": [7, 6]}, (2, 3)),
    "mlp latent": ({"name": "mlp", "hidden": [7, 6], "latent": 4}, (5,)),
    "lenet": ("lenet", (1, 16, 16)),
    "lenet latent": ({"name": "lenet", "latent": 9, "hidden": 8}, (1, 18, 17)),
    "lenet hidden": ({"name": "lenet", "latent": "hidden", "hidden": 8, "padding": 2}, (2, 8, 8)),
    "cnn": ("cnn", (1, 8, 9)),
    "resnet32": ("resnet32", (1, 8, 8)),
    "resnet18_slim": ({"name": "resnet18_slim", "nf": 3, "dropout": 0.4}, (2, 9, 9)),
    "vgg11_slim": ({"name": "vgg11_slim", "width": 2, "hidden": 8, "dropout": 0.4}, (2, 9, 8)),
    "gcn": ({"name": "gcn", "edges": CHAIN, "width": 6, "dropout": 0.3}, (3, 4, 5)),
    "gcn persons": ({"name": "gcn", "edges": CHAIN, "width": 6, "depth": 3}, (2, 4, 5, 2)),
    "stgcn": ({"name": "stgcn", "edges": CHAIN, "width": 4, "tk": 3, "dropout": 0.3}, (3, 6, 5)),
    "stgcn persons": ({"name": "stgcn", "edges": CHAIN, "width": 4}, (3, 6, 5, 2)),
    "transformer": (
        {"name": "transformer", "vocabulary": 9, "width": 6, "heads": 2, "dropout": 0.3},
        (7,),
    ),
    "transformer post": (
        {
            "name": "transformer",
            "vocabulary": 9,
            "width": 6,
            "heads": 3,
            "norm": "post",
            "unit": True,
            "split": 0,
        },
        (7,),
    ),
    "vit": ({"name": "vit", "width": 6, "heads": 2, "dropout": 0.3}, (2, 8, 12)),
    "vit mean": ({"name": "vit", "width": 6, "heads": 2, "pooling": "mean", "split": 2}, (1, 4, 8)),
}
CLOSE = {"rtol": 1e-10, "atol": 1e-10}
ROWS, CLASSES = 5, 3


def net_of(case: str, *, seed: int = 0, head: str = "linear"):
    spec, shape = CASES[case]
    net = build(spec, sample_shape=shape, classes=CLASSES, seed=seed, head=head)
    return net.double(), shape


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return keys.normal(keys.fold(seed, "test"), *shape)


def draw_inputs(case: str, *rows: int, seed: int = 0) -> torch.Tensor:
    """Inputs of a case; those of texts are token ids, the last ones of each row padding."""
    shape = CASES[case][1]
    x = draw(*rows, *shape, seed=seed)
    if not case.startswith("transformer"):
        return x
    length = (x[..., :1].abs() * 2).ceil() + 1
    return torch.where(torch.arange(shape[0]) < length, 1 + (3 * x.abs()).clamp(max=7).floor(), 0)


def test_every_name_is_tried():
    named = {spec if isinstance(spec, str) else spec["name"] for spec, _ in CASES.values()}
    # of millions of parameters at the least: test_image_networks.py tries them alone
    # (published weights: test_published_weights.py; folders: test_pretrained_folders.py)
    elsewhere = {"resnet50", "alexnet", "huggingface", "open_clip", *PUBLISHED}
    assert named == set(models()) - elsewhere


def loss_of(output, weights: torch.Tensor) -> torch.Tensor:
    wanted = draw(ROWS, CLASSES, seed=7)
    return (((output.logits - wanted) ** 2).sum(1) * weights).sum() + output.features.mean()


def stacked(nets) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    params = [{k: v.detach() for k, v in net.named_parameters()} for net in nets]
    buffers = [dict(net.named_buffers()) for net in nets]
    return tuple(
        {k: torch.stack([one[k] for one in group]) for k in group[0]} for group in (params, buffers)
    )


def mapped_gradient(skeleton, buffer_names):
    def loss(params, buffers, x, weights, key):
        state = {**params, **buffers}  # one dict: statistics that a layer replaces are read back
        with forward_context(weights, key):
            output = functional_call(skeleton, state, (x,))
        return loss_of(output, weights), {k: state[k] for k in buffer_names}

    return vmap(grad(loss, has_aux=True))


@pytest.mark.parametrize(
    ("case", "head"), [*((case, "linear") for case in CASES), ("mlp", "cosine")]
)
def test_mapped_over_runs_equals_plain_autograd(case, head):
    """Train mode, own padding, statistics and dropout key per run."""
    nets = [net_of(case, seed=run, head=head)[0] for run in range(3)]
    x = draw_inputs(case, 3, ROWS)
    real = torch.tensor([5, 3, 4])
    weights = (torch.arange(ROWS) < real[:, None]).double()
    key = torch.tensor([3, 99, -12345678901234567])
    skeleton = copy.deepcopy(nets[0])
    params, buffers = stacked(nets)
    step = mapped_gradient(skeleton, list(buffers))
    slopes, after = step(params, buffers, x, weights, key)
    for run, net in enumerate(nets):
        with forward_context(weights[run], int(key[run])):
            loss_of(net(x[run]), weights[run]).backward()
        for name, value in net.named_parameters():
            torch.testing.assert_close(slopes[name][run], value.grad, **CLOSE)
        for name, value in net.named_buffers():
            torch.testing.assert_close(after[name][run], value, **CLOSE)
            assert not torch.equal(value, buffers[name][run]), "statistics did not move"


@pytest.mark.parametrize("case", CASES)
def test_padding_changes_nothing_in_training(case):
    net, _ = net_of(case)
    twin = copy.deepcopy(net)
    x = draw_inputs(case, ROWS)
    with forward_context(None, 5):
        plain = net(x)
    weights = torch.cat([torch.ones(ROWS), torch.zeros(2)])
    far = draw_inputs(case, 2, seed=4) * (1 if case.startswith("transformer") else 50)
    with forward_context(weights, 5):
        padded = twin(torch.cat([x, far]))
    torch.testing.assert_close(padded.logits[:ROWS], plain.logits, **CLOSE)
    for mine, other in zip(net.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


@pytest.mark.parametrize("case", CASES)
def test_eval_does_not_depend_on_company(case):
    net, _ = net_of(case)
    x = draw_inputs(case, ROWS)
    with forward_context(None, 5):
        net(x)  # statistics that are not 0 and 1
    net.eval()
    together = net(x)
    alone = torch.cat([net(x[i : i + 1]).logits for i in range(ROWS)])
    torch.testing.assert_close(together.logits, alone, **CLOSE)
    assert together.features.shape == (ROWS, net.features)
    assert not torch.equal(together.logits[0], together.logits[1])


@pytest.mark.parametrize("case", CASES)
def test_top_after_root_is_the_whole(case):
    net, _ = net_of(case)
    net.eval()
    x = draw_inputs(case, ROWS)
    assert net.splits
    assert torch.equal(net.top(net.root(x)).logits, net(x).logits)
    named = dict(net.named_parameters())
    assert set(net.root_names) < set(named)
    slopes = torch.autograd.grad(net.root(x).sum(), list(named.values()), allow_unused=True)
    reached = {name for name, slope in zip(named, slopes, strict=True) if slope is not None}
    assert set(net.root_names) == reached


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("head", [{"name": "linear", "bias": False}, "cosine"], ids=str)
def test_every_model_takes_every_head(case, head):
    spec, shape = CASES[case]
    spec = {"name": spec} if isinstance(spec, str) else spec
    net = build({**spec, "head": head}, sample_shape=shape, classes=CLASSES, seed=0).eval()
    assert net.class_rows == ("head.weight",)  # no bias
    found = net(draw_inputs(case, ROWS).float())
    logits = found.features @ net.head.weight.T
    if head == "cosine":
        logits = logits / found.features.norm(dim=1, keepdim=True) / net.head.weight.norm(dim=1)
    torch.testing.assert_close(found.logits, logits)


@pytest.mark.parametrize("case", CASES)
def test_seed_decides_all_weights(case):
    one, _ = net_of(case, seed=4)
    again, other = net_of(case, seed=4)[0], net_of(case, seed=5)[0]
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(one.head.weight, other.head.weight)
    drawn = [k for k, v in one.backbone.named_parameters() if len(v.unique()) > 2]
    assert drawn
    for name in drawn:
        assert not torch.equal(
            one.state_dict()["backbone." + name], other.state_dict()["backbone." + name]
        )


@pytest.mark.parametrize("case", CASES)
def test_state_dict_is_learnt_or_measured_state_only(case):
    net, _ = net_of(case)
    assert all(value.is_floating_point() for value in net.state_dict().values())
    assert {k for k, _ in net.named_buffers()} == {
        k for k in net.state_dict() if k.endswith((".mean", ".var"))
    }


@pytest.mark.parametrize(
    "case", ["mlp latent", "cnn", "lenet latent", "gcn", "stgcn persons", "transformer"]
)
def test_mapped_step_takes_no_host_decision(case):
    """Traced once on fake tensors, the step answers for other numbers: it can be captured."""
    nets = [net_of(case, seed=run)[0] for run in range(2)]
    params, buffers = stacked(nets)
    step = mapped_gradient(nets[0], list(buffers))

    def inputs(seed: int) -> tuple[torch.Tensor, ...]:
        x = draw_inputs(case, 2, ROWS, seed=seed)
        return x, (draw(2, ROWS, seed=seed) > 0).double(), torch.tensor([seed, 3 * seed])

    traced = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(
        params, buffers, *inputs(1)
    )
    found, expected = traced(params, buffers, *inputs(2)), step(params, buffers, *inputs(2))
    for mine, other in zip(found, expected, strict=True):
        for name in other:
            torch.testing.assert_close(mine[name], other[name], **CLOSE)
