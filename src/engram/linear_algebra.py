"""Products and small linear systems, computed in the way that suits the device.

Written for one run; they can be mapped over runs and, on CUDA, captured.
"""

from __future__ import annotations

import torch
from torch import Tensor

NARROW, WIDE = 1 << 14, 1 << 20  # columns of a block: to fit a CPU cache, to fill a GPU
BLOCKS = 32  # maximum number of blocks, to limit the number of calls


def inner_product(a: Tensor, b: Tensor) -> Tensor:
    """Compute the inner product of two vectors [P].

    Examples
    --------
    >>> inner_product(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    tensor(11.)
    """
    # mapped on CUDA, a dot product becomes a product of matrices, which fuses with nothing
    return (a * b).sum() if a.is_cuda else torch.dot(a, b)


def inner_products(past: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Compute M M' [t, t] and M g [t] for past gradients M [t, P] in double precision.

    Works block by block, so that not all gradients are held in double precision at once.

    Examples
    --------
    >>> products, along = inner_products(torch.tensor([[1.0, 2.0]]), torch.tensor([3.0, -1.0]))
    >>> products.tolist(), along.tolist()
    ([[5.0]], [1.0])
    """
    size = past.shape[-1]
    width = max(WIDE if past.is_cuda else NARROW, -(-size // BLOCKS))
    products, along = [], []
    for start in range(0, size, width):
        rows = past[:, start : start + width].double()
        products.append(rows @ rows.mT)
        along.append(rows @ gradient[start : start + width].double())
    if len(products) == 1:
        return products[0], along[0]
    return torch.stack(products).sum(0), torch.stack(along).sum(0)


def eliminate(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve positive definite systems [..., t, t] by Gaussian elimination without pivoting."""
    return _eliminate_columns(matrix, right.unsqueeze(-1))[..., 0]


def _eliminate_columns(matrix: Tensor, right: Tensor) -> Tensor:
    """Do the same for several right-hand sides [..., t, n]."""
    count = matrix.shape[-1]
    table = torch.cat([matrix, right], -1)  # [..., t, t + n]
    eye = torch.eye(count, dtype=matrix.dtype, device=matrix.device)
    for k in range(count):
        row = table[..., k, :] / table[..., k, k, None]
        column = table[..., :, k] - eye[k]
        table = torch.addcmul(table, column.unsqueeze(-1), row.unsqueeze(-2), value=-1)
    return table[..., count:]


def _must_eliminate(matrix: Tensor) -> bool:
    """Whether to use `eliminate`: on CUDA, torch's solvers cannot be captured when mapped."""
    return matrix.is_cuda


def invert(matrix: Tensor) -> Tensor:
    """Invert a positive definite matrix [t, t]."""
    if _must_eliminate(matrix):
        return _eliminate_columns(
            matrix, torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        )
    found: Tensor = torch.linalg.inv_ex(matrix)[0]
    return found


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve a positive definite system [t, t]."""
    if _must_eliminate(matrix):
        return eliminate(matrix, right)
    found: Tensor = torch.linalg.solve_ex(matrix, right)[0]
    return found


def may_read_values(q: Tensor) -> bool:
    """Whether values may be read: a single problem on the CPU, neither mapped nor captured."""
    wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(q)
    return q.device.type == "cpu" and not wrapped
