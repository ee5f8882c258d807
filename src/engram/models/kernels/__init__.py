"""Operations with Triton kernels and plain torch versions: graph layers, batch norm with pooling.

Layers that use them are in `engram.models`, kernels of random draws in `engram.key_kernels`. Begin
with the plain functions of `norm_pool` and `graph_ops`; `*_kernels` are imported on CUDA only.
"""

from __future__ import annotations
