"""Skeleton data as torch_geometric graphs and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engram.data.dataset import Data
from engram.data.skeletons.skeleton_data import bones
from engram.errors import EngramError, bad


def _graph_class() -> Any:
    try:
        from torch_geometric.data import Data as Graph
    except ImportError:
        how = "pip install 'engram-cl[graph]'"
        raise EngramError(f"torch_geometric is not installed: {how}") from None
    return Graph


def to_geometric(data: Data, rows: Tensor | Sequence[int]) -> list[Any]:
    """One graph per row: a node per joint with its coordinates over time [V, C * T].

    ``graph.axes`` and ``graph.frames`` say how to unfold the features, ``graph.row`` is the row.
    """
    if len(data.sample_shape) != 3:
        raise bad("data", "skeletons [N, C, T, V]", data.sample_shape)
    axes, frames, joints = data.sample_shape
    pairs = torch.tensor(bones(joints))
    edge_index = torch.cat([pairs, pairs.flip(1)]).T.contiguous()  # [2, 2 * bones]
    graph = _graph_class()
    index = torch.as_tensor(rows)
    x = data.gather(index).permute(0, 3, 1, 2).flatten(2)  # [B, V, C * T]
    return [
        graph(x=one, edge_index=edge_index, y=data.labels[row : row + 1], axes=axes,
              frames=frames, row=row)
        for one, row in zip(x, index.tolist(), strict=True)
    ]  # fmt: skip


def from_geometric(
    graphs: Sequence[Any], test: Sequence[Any] | None = None, **options: Any
) -> Data:
    """Data [N, C, T, V] from graphs that share one set of nodes; the edges are not kept.

    Without ``axes`` and ``frames`` on the graphs, each node's features become channels of one
    frame. Options are those of `Data.from_arrays`.
    """
    if test is not None:
        options["test"] = _stack("test", test)
    return Data.from_arrays(*_stack("graphs", graphs), **options)


def _stack(argument: str, graphs: Sequence[Any]) -> tuple[Tensor, Tensor]:
    if not len(graphs):
        raise bad(argument, "at least one graph", "none")
    nodes, width = graphs[0].x.shape
    axes = getattr(graphs[0], "axes", None) or width
    for i, graph in enumerate(graphs):
        if tuple(graph.x.shape) != (nodes, width):
            raise bad(f"{argument}[{i}]", f"{nodes} nodes of {width} features, as the first",
                      tuple(graph.x.shape))  # fmt: skip
    x = torch.stack([graph.x for graph in graphs])  # [N, V, C * T]
    folded = x.reshape(len(x), nodes, axes, width // axes).permute(0, 2, 3, 1).contiguous()
    return folded, torch.stack([_check_label(argument, i, one.y) for i, one in enumerate(graphs)])


def _check_label(argument: str, place: int, y: Any) -> Tensor:
    if not isinstance(y, Tensor) or y.numel() != 1:
        got = tuple(y.shape) if isinstance(y, Tensor) else y
        raise bad(f"{argument}[{place}].y", "one label", got)
    return y.reshape(())
