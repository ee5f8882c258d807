"""Mammoth's comparison on MNIST (Buzzega et al. 2020), beside runs of its code."""

from __future__ import annotations

from engram.reproduce.papers.code_tables import make_paper

TABLES = make_paper("mammoth")
