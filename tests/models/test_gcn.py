"""Graph networks against loops over edges, joints and frames."""

from __future__ import annotations

from collections import deque

import pytest
import torch

from engram import keys
from engram.models import GCN, SKELETONS, STGCN, build, forward_context
from engram.models.skeleton_graphs import adjacency, bidirectional_edges, bones, partitions
from tests.refusals import refuses

EDGES = [(1, 2), (3, 2), (4, 3), (5, 3)]
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return keys.normal(seed, *shape)


def steps(pairs: list[tuple[int, int]], start: int, end: int) -> int:
    near: dict[int, list[int]] = {}
    for a, b in pairs:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    far, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for there in near[here]:
            if there not in far:
                far[there] = far[here] + 1
                queue.append(there)
    return far[end]


@pytest.mark.parametrize(("name", "joints"), [("ucla", 20), ("ntu", 25)])
def test_hand_to_foot(name, joints):
    """[T-Y1]: left hand (8) to left foot (16) is 10 bones; a tree has one bone less than joints."""
    pairs = SKELETONS[name]
    assert steps(list(pairs), 8, 16) == 10
    assert len(bones(name, joints)) == joints - 1
    assert len({child for child, _ in pairs}) == joints - 1


@pytest.mark.parametrize(("name", "joints"), [("ucla", 20), ("ntu", 25)])
def test_the_number_of_joints_decides_the_skeleton(name, joints):
    assert bones(None, joints) == bones(name, joints) == bones(SKELETONS[name], joints)
    assert GCN((3, 4, joints)).edges.tolist() == GCN((3, 4, joints), edges=name).edges.tolist()
    assert torch.equal(STGCN((3, 4, joints)).graph, STGCN((3, 4, joints), edges=name).graph)
    for other in {20, 25, 30} - {joints}:  # five joints must not stay without a bone
        with pytest.raises(ValueError, match=f"{other} joints, got '{name}, which has {joints}'"):
            bones(name, other)
    with pytest.raises(ValueError, match="edges: expected 'ucla', 'ntu' or"):
        bones(None, 21)


def test_symmetric_aggregation_is_that_of_kipf_and_welling():
    found = GCN((3, 4, 5), edges=EDGES, aggregation="symmetric").neighbours
    degrees = [1 + sum(joint in edge for edge in EDGES) for joint in range(1, 6)]
    near = {frozenset((a - 1, b - 1)) for a, b in EDGES}
    for i in range(5):
        for j in range(5):
            meet = i == j or frozenset((i, j)) in near
            wanted = (degrees[i] * degrees[j]) ** -0.5 if meet else 0.0
            assert float(found[i, j]) == pytest.approx(wanted)
    with refuses("aggregation"):
        GCN((3, 4, 5), edges=EDGES, aggregation="mean")


@pytest.mark.parametrize("network", [GCN, STGCN])
def test_networks_that_stretch_ignore_place_and_scale(network):
    net = network((6, 4, 5), edges=EDGES, stretch=True).eval().double()
    x = draw(2, 6, 4, 5)
    moved = x * torch.tensor([2.0, 3.0, 4.0] * 2)[:, None, None] + 7
    torch.testing.assert_close(net(moved), net(x), **CLOSE)
    plain = network((6, 4, 5), edges=EDGES).eval().double()
    assert not torch.allclose(plain(moved), plain(x))
    with refuses("stretch"):
        network((4, 4, 5), edges=EDGES, stretch=True)


def test_adjacency_has_both_directions_and_no_loop():
    matrix = adjacency(bones(EDGES, 5), 5)
    assert torch.equal(matrix, matrix.T)
    assert matrix.diagonal().tolist() == [0] * 5
    assert matrix.sum(0).tolist() == [1, 2, 3, 1, 1]
    source, target = bidirectional_edges(bones(EDGES, 5))
    assert len(source) == 8
    assert (matrix[target, source] == 1).all()


def test_partitions_average_over_children_and_over_the_parent():
    own, inward, outward = partitions(bones(EDGES, 5), 5)
    assert torch.equal(own, torch.eye(5))
    assert inward[:, 2].tolist() == [0, 0, 0, 0.5, 0.5]  # joint 3 hears its children 4 and 5
    assert inward[:, 1].tolist() == [0.5, 0, 0.5, 0, 0]
    assert outward[:, 3].tolist() == [0, 0, 1, 0, 0]  # joint 4 hears its parent 3
    assert outward[:, 1].tolist() == [0] * 5  # joint 2 has none


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (None, "'ucla', 'ntu' or .child, parent. pairs"),
        ([], "pairs of joints counted from 1"),
        ("ucl", "did you mean 'ucla'"),
        ([(0, 1)], r"in 1..5, got \(0, 1\)"),
        ([(1, 6)], "in 1..5"),
        ([(2, 2)], "two different joints"),
        ([(1, 2), (2, 1)], "each pair once"),
        ([(1, 2, 3)], "each pair once"),
        ([(1, "2")], "pairs of whole numbers"),
        ([3], "pairs of whole numbers"),
    ],
)
def test_bad_edges(edges, message):
    with pytest.raises(ValueError, match=f"edges: .*{message}"):
        GCN((3, 4, 5), edges=edges)


def gcn_by_loops(net: GCN, x: torch.Tensor) -> torch.Tensor:
    """One sample in eval mode, node by node and edge by edge."""
    joints = x.shape[2]
    h = [x[:, :, v].reshape(-1) for v in range(joints)]
    pairs = [(a - 1, b - 1) for a, b in EDGES]
    for layer in net.layers:
        sent = [layer.linear.weight @ one for one in h]
        heard = [layer.bias.clone() for _ in range(joints)]
        for a, b in pairs:
            heard[a] = heard[a] + sent[b]
            heard[b] = heard[b] + sent[a]
        mixed = [heard[v].relu() + layer.residual(h[v]).relu() for v in range(joints)]
        norm = layer.norm
        h = [(m - norm.mean) / (norm.var + 1e-5).sqrt() * norm.weight + norm.bias for m in mixed]
    total = sum(torch.sigmoid(net.gate(one)) * one for one in h)
    highest = torch.stack(h).max(0).values
    y = net.hidden(torch.cat([total, highest])).relu()
    return (y - net.norm.mean) / (net.norm.var + 1e-5).sqrt() * net.norm.weight + net.norm.bias


@pytest.mark.parametrize("depth", [1, 3])
def test_gcn_equals_edge_loops(depth):
    net = GCN((3, 4, 5), edges=EDGES, width=6, depth=depth, hidden=7).double()
    x = draw(8, 3, 4, 5)
    with torch.no_grad():
        for layer in net.layers:
            layer.bias.copy_(draw(6, seed=3))
        net(x)
        net.eval()
        expected = torch.stack([gcn_by_loops(net, one) for one in x])
    torch.testing.assert_close(net(x), expected, **CLOSE)


def test_gcn_norm_counts_every_node():
    """Statistics of a layer are those of torch over all nodes of all graphs in one list."""
    net = GCN((3, 4, 5), edges=EDGES, width=6, depth=1).double()
    x, inputs = draw(8, 3, 4, 5), []
    handle = net.layers[0].norm.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    net(x)
    handle.remove()
    twin = torch.nn.BatchNorm1d(6).double()
    twin(inputs[0].reshape(-1, 6))
    torch.testing.assert_close(net.layers[0].norm.mean, twin.running_mean, **CLOSE)
    torch.testing.assert_close(net.layers[0].norm.var, twin.running_var, **CLOSE)


def test_gcn_published_sizes():
    net = build("gcn", sample_shape=(3, 52, 20), classes=10, seed=0, edges="ucla")
    shapes = {name: tuple(value.shape) for name, value in net.named_parameters()}
    assert shapes["backbone.layers.0.linear.weight"] == (64, 156)
    assert shapes["backbone.layers.1.linear.weight"] == (64, 64)
    assert shapes["backbone.hidden.weight"] == (64, 128)
    assert shapes["head.weight"] == (10, 64)
    wide = build(
        "gcn", sample_shape=(3, 300, 25, 2), classes=10, seed=0, edges="ntu", width=512, depth=16
    )
    assert wide.backbone.layers[0].linear.in_features == 1800
    assert len(wide.backbone.layers) == 16
    assert wide.features == 64


@pytest.mark.parametrize(
    "shape, persons",
    [((2, 4, 5), "concat"), ((2, 4, 5, 2), "concat"), ((2, 4, 5, 2), "first")],
)
def test_gcn_finds_its_nodes_in_memory(shape, persons):
    """Samples stored in the network's order are matrices already; others are copied first."""
    net = GCN(shape, edges=EDGES, persons=persons)
    x, axes = torch.randn(3, *shape), net.sample_axes
    back = [1 + axes.index(axis) for axis in range(len(axes))]
    stored = x.permute(0, *(1 + axis for axis in axes)).contiguous().permute(0, *back)
    nodes = net.nodes(stored)
    assert torch.equal(nodes, net.nodes(x))
    assert nodes.data_ptr() == stored.data_ptr()
    assert nodes.stride(-1) == 1


def test_gcn_persons():
    x = draw(3, 2, 4, 5, 2).float()
    first = GCN((2, 4, 5, 2), edges=EDGES, persons="first").eval()
    other = x.clone()
    other[..., 1] = 9
    assert torch.equal(first(x), first(other))
    both = GCN((2, 4, 5, 2), edges=EDGES).eval()
    assert not torch.allclose(both(x), both(other))
    assert torch.equal(both.nodes(x)[1, 3], torch.cat([x[1, :, :, 3, m].flatten() for m in (0, 1)]))
    with refuses("persons"):
        GCN((2, 4, 5, 2), edges=EDGES, persons="all")


def test_first_layer_hands_out_transformed_nodes():
    """TWP reads h W of the first layer by path, and the edges."""
    net = build("gcn", sample_shape=(3, 4, 5), classes=2, seed=0, edges=EDGES).double()
    seen, x = [], draw(2, 3, 4, 5)
    net.get_submodule("backbone.layers.0.linear").register_forward_hook(
        lambda _, __, output: seen.append(output)
    )
    net(x)
    expected = net.backbone.nodes(x) @ net.backbone.layers[0].linear.weight.T
    torch.testing.assert_close(seen[0], expected, **CLOSE)
    assert net.backbone.edges.shape == (2, 8)
    assert net.backbone.edges.dtype == torch.long


def test_constants_follow_the_module_but_are_no_state():
    net = GCN((3, 4, 5), edges=EDGES).double()
    assert net.neighbours.dtype == torch.float64
    assert net.edges.dtype == torch.long
    assert net.to("meta").neighbours.device.type == "meta"
    assert not [k for k in net.state_dict() if "neighbours" in k or "edges" in k]


def stgcn_by_loops(net: STGCN, x: torch.Tensor) -> torch.Tensor:
    """One sample [C, T, V, M] in eval mode, with sums written out."""

    def norm(layer, y, channel):
        scale = layer.weight[channel] / (layer.var[channel] + 1e-5).sqrt()
        return (y - layer.mean[channel]) * scale + layer.bias[channel]

    channels, frames, joints, people = x.shape
    means = []
    for person in range(people):
        h = x[..., person].clone()
        for c in range(channels):
            for v in range(joints):
                h[c, :, v] = norm(net.data_norm, x[c, :, v, person], v * channels + c)
        for block in net.blocks:
            width = block.temporal.out_channels
            weight = block.spatial.weight[:, :, 0, 0].reshape(3, width, -1)
            bias = block.spatial.bias.reshape(3, width)
            mixed = torch.zeros(width, frames, joints).double()
            for p in range(3):
                sent = torch.tensordot(weight[p], h, 1) + bias[p][:, None, None]
                for v in range(joints):
                    for w in range(joints):
                        mixed[:, :, w] += sent[:, :, v] * (net.graph * block.importance)[p, v, w]
            mixed = torch.stack(
                [norm(block.spatial_norm, mixed[c], c) for c in range(width)]
            ).relu()
            kernel = block.temporal.weight[..., 0]  # [out, in, tk]
            half, out = kernel.shape[2] // 2, torch.zeros_like(mixed)
            for t in range(frames):
                out[:, t] = block.temporal.bias[:, None]
                for k in range(kernel.shape[2]):
                    if 0 <= t + k - half < frames:
                        out[:, t] += kernel[:, :, k] @ mixed[:, t + k - half]
            out = torch.stack([norm(block.temporal_norm, out[c], c) for c in range(width)])
            h = (out + h if block.residual else out).relu()
        means.append(h.mean((1, 2)))
    return torch.stack(means).mean(0)


def test_stgcn_equals_loops():
    net = STGCN((3, 6, 5, 2), edges=EDGES, width=4, tk=3).double()
    x = draw(4, 3, 6, 5, 2)
    with torch.no_grad():
        for block in net.blocks:
            block.importance.copy_(1 + draw(3, 5, 5, seed=2) / 4)
        net(x)
        net.eval()
        expected = torch.stack([stgcn_by_loops(net, one) for one in x])
    torch.testing.assert_close(net(x), expected, rtol=1e-10, atol=1e-10)


def test_stgcn_published_sizes_and_residuals():
    net = STGCN((3, 52, 20), edges="ucla")
    assert [block.residual for block in net.blocks] == [False, True]
    assert net.blocks[0].temporal.weight.shape == (64, 64, 9, 1)
    assert net.blocks[0].spatial.weight.shape == (192, 3, 1, 1)
    assert (net.blocks[1].importance == 1).all()
    assert net.features == 64
    with pytest.raises(ValueError, match="tk: expected an odd number of frames, got 4"):
        STGCN((3, 52, 20), edges="ucla", tk=4)


def test_stgcn_one_person_is_the_same_with_and_without_axis():
    flat, deep = (STGCN((3, 6, 5), edges=EDGES, width=4) for _ in range(2))
    deep.load_state_dict(flat.state_dict())
    x = draw(3, 3, 6, 5).float()
    assert torch.equal(flat(x), deep(x.unsqueeze(-1)))


def test_stgcn_data_norm_counts_persons_and_frames():
    net = STGCN((2, 4, 5, 2), edges=EDGES, width=4).double()
    x = draw(6, 2, 4, 5, 2)
    with forward_context(torch.tensor([1.0] * 4 + [0.0] * 2)):
        net(x)
    expected = 0.1 * x[:4].mean((0, 2, 4)).T.reshape(-1)  # [V * C]
    torch.testing.assert_close(net.data_norm.mean, expected, **CLOSE)
