"""Doctests are collected from all modules; those of kernels need a package for GPUs."""

from __future__ import annotations

import importlib.util

collect_ignore: list[str] = []
if importlib.util.find_spec("triton") is None:
    collect_ignore.append("src/engram/models/graph_kernels.py")
