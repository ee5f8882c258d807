"""Operations with Triton kernels: graph mixing and readout, batch norm with pooling; each has a
plain form in torch.

Layers and networks that use them are in `models`; draws of random numbers have theirs in
`engram.key_kernels`. Begin with the plain functions of `norm_pool` and `graph_ops`; the `*_kernels`
modules are imported on CUDA only.
"""

from __future__ import annotations
