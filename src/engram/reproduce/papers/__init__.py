"""The papers, one module each: its preset (every choice the paper leaves open), recipes, tables
and figures, as `TABLES`. Code bases, whose numbers are runs of their code, are named like papers.

Planning, measuring and verdicts are the same for all and are in `reproduce`. Begin with
`paper_base` (what presets share), then `rwalk_paper`.
"""

from __future__ import annotations

# modules here, whose `TABLES` are a `Paper`; what a paper only enumerates is in tables/NAME.yaml
PAPER_NAMES = ("rwalk", "cgl", "confer", "iirc", "cnd", "mammoth")
