"""Reproduce published tables: plan, run within a budget, put our numbers beside the paper's."""

from __future__ import annotations

from engram.reproduce import measures
from engram.reproduce.cells import Cell, cells_of, choose_cells
from engram.reproduce.coverage import Tally, tally
from engram.reproduce.differences import Difference, compare, read_side
from engram.reproduce.paper_table import REASONS, Entry, PaperFigure, PaperTable
from engram.reproduce.planning import ReproductionPlan, plan
from engram.reproduce.registry import find_table, table_names
from engram.reproduce.reproduce_table import Reproduction, default_out, reproduce
from engram.reproduce.verdicts import Line, judge

__all__ = [
    "REASONS",
    "Cell",
    "Difference",
    "Entry",
    "PaperFigure",
    "Line",
    "ReproductionPlan",
    "Reproduction",
    "PaperTable",
    "cells_of",
    "choose_cells",
    "compare",
    "default_out",
    "find_table",
    "judge",
    "measures",
    "plan",
    "read_side",
    "reproduce",
    "table_names",
    "Tally",
    "tally",
]
