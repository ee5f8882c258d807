"""Reproduction of published tables: plan which cells can be made, run within a budget, compare
our numbers with the paper's.

Not here: the choices of single papers (engram.reproduce.papers), the printed numbers
(engram.records.printed_tables). Begin with reproduction.reproduce, then paper_table and planning.
"""

from __future__ import annotations

from engram.reproduce import measures
from engram.reproduce.cells import Cell, choose_cells, read_cells
from engram.reproduce.coverage import TableCoverage, count_coverage
from engram.reproduce.paper_table import REASONS, CellEntry, PaperFigure, PaperTable
from engram.reproduce.planning import ReproductionPlan, plan
from engram.reproduce.protocol_differences import Difference, compare_recipes, read_recipes
from engram.reproduce.reproduction import Reproduction, default_out, reproduce
from engram.reproduce.table_registry import find_table, table_names
from engram.reproduce.verdicts import ReproductionLine, judge_cell

__all__ = [
    "REASONS",
    "Cell",
    "Difference",
    "CellEntry",
    "PaperFigure",
    "ReproductionLine",
    "ReproductionPlan",
    "Reproduction",
    "PaperTable",
    "read_cells",
    "choose_cells",
    "compare_recipes",
    "default_out",
    "find_table",
    "judge_cell",
    "measures",
    "plan",
    "read_recipes",
    "reproduce",
    "table_names",
    "TableCoverage",
    "count_coverage",
]
