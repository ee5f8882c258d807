"""The graph networks beside the layers of torch_geometric, with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from engram.data import load, to_geometric
from engram.models import GCN, STGCN
from engram.models.stgcn import convolve_over_joints

pytest.importorskip("torch_geometric")

from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, GraphConv, global_add_pool, global_max_pool
from torch_geometric.utils import dense_to_sparse


def drawn(net: nn.Module) -> nn.Module:
    """The network in double precision with random weights and statistics, those of norms too."""
    generator = torch.Generator().manual_seed(0)
    net = net.double().eval()
    for name, value in [*net.named_parameters(), *net.named_buffers()]:
        noise = torch.rand(value.shape, generator=generator, dtype=value.dtype) - 0.5
        value.data = noise + 1 if name.endswith("var") else noise
    return net


def conv_of(layer: nn.Module) -> GraphConv:
    """Sum over neighbours with the weights of one of our layers, nothing from the node itself."""
    outputs, inputs = layer.linear.weight.shape
    conv = GraphConv(inputs, outputs, aggr="add").double()
    conv.lin_rel.weight.data = layer.linear.weight.data
    conv.lin_rel.bias.data = layer.bias.data
    conv.lin_root.weight.data.zero_()
    return conv


@pytest.fixture(scope="module")
def skeletons():
    return load("skeletons", per_class=10, frames=6)


def test_gcn_layers_and_readout_agree(skeletons):
    rows = skeletons.train[:7]
    net = drawn(GCN(skeletons.sample_shape, width=5, hidden=4))
    batch = Batch.from_data_list(to_geometric(skeletons, rows))
    h = batch.x.double()
    for layer in net.layers:
        mixed = conv_of(layer)(h, batch.edge_index).relu() + layer.residual(h).relu()
        h = layer.norm(mixed)
    x = skeletons.gather(rows).double()
    assert torch.allclose(net.root(x).flatten(0, 1), h, atol=1e-10)
    total = global_add_pool(torch.sigmoid(net.gate(h)) * h, batch.batch)
    highest = global_max_pool(h, batch.batch)
    expected = net.norm(net.hidden(torch.cat([total, highest], -1)).relu())
    assert torch.allclose(net(x), expected, atol=1e-10)


def test_st_gcn_sums_one_convolution_per_partition(skeletons):
    net = drawn(STGCN(skeletons.sample_shape, width=5))
    block = net.blocks[0]
    graph = net.graph.double() * block.importance  # [3, source, target]
    x: Tensor = skeletons.gather(skeletons.train[:2]).double().permute(0, 2, 3, 1)  # [N, T, V, C]
    expected = torch.zeros(*x.shape[:3], 5, dtype=torch.float64)
    for part, weight in zip(graph, block.spatial.weight.reshape(3, 5, 3), strict=True):
        edge_index, edge_weight = dense_to_sparse(part)
        conv = GCNConv(3, 5, normalize=False, add_self_loops=False, bias=False).double()
        conv.lin.weight.data = weight.data
        expected = expected + conv(x, edge_index, edge_weight)
    found = convolve_over_joints(
        x, graph, block.spatial.weight, torch.zeros_like(block.spatial.bias)
    )
    assert torch.allclose(found, expected, atol=1e-10)
