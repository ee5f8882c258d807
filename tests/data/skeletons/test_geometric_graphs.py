"""Graphs of the real torch_geometric; test_skeleton.py has a stand-in where it is not installed."""

from __future__ import annotations

import pytest
import torch

from engram.data import Data, from_geometric, load, to_geometric

pytest.importorskip("torch_geometric")

from torch_geometric.data import Data as Graph
from torch_geometric.loader import DataLoader


@pytest.fixture(scope="module")
def data() -> Data:
    return load("skeletons", per_class=10, frames=6)


def test_there_and_back(data):
    train, test = (to_geometric(data, rows) for rows in (data.train, data.test))
    assert all(isinstance(one, Graph) for one in train)
    assert train[0].validate()
    assert train[0].num_nodes == 20
    assert train[0].is_undirected()
    assert not train[0].has_self_loops()
    again = from_geometric(train, test, classes=data.classes)
    assert again.classes == data.classes
    assert torch.equal(again.x[again.train], data.x[data.train])
    assert torch.equal(again.x[again.test], data.x[data.test])
    assert torch.equal(again.labels[again.train], data.labels[data.train])


def test_batches_of_a_loader(data):
    graphs = to_geometric(data, data.train[:6])
    batch = next(iter(DataLoader(graphs, batch_size=6)))
    assert batch.x.shape == (120, 18)
    assert batch.edge_index.shape == (2, 6 * 38)
    assert batch.y.tolist() == data.labels[data.train[:6]].tolist()
    assert batch.row.tolist() == data.train[:6].tolist()
    assert from_geometric(batch.to_data_list()).sample_shape == data.sample_shape


def test_graphs_from_elsewhere():
    edges = torch.tensor([[0, 1], [1, 0]])
    graphs = [Graph(x=torch.full((2, 3), float(i)), edge_index=edges, y=i % 2) for i in range(10)]
    for one in graphs:
        one.y = torch.tensor([one.y])
    found = from_geometric(graphs)
    assert found.sample_shape == (3, 1, 2)  # features are channels of one frame
    assert found.labels.tolist() == [0, 1] * 5
