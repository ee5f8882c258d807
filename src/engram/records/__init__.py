"""Records of runs: the long table, stored predictions, run directories, results, paper tables."""

from __future__ import annotations

from engram.records.arrange import RunKey
from engram.records.directory import RunDirectory
from engram.records.environment import environment
from engram.records.items import Items
from engram.records.papers import document, reference
from engram.records.parts import Problem
from engram.records.predictions import KEEP, Prediction, Predictions, StageKey
from engram.records.reading import combine, from_csv, read
from engram.records.result import Result
from engram.records.run_names import new_part, run_id
from engram.records.stage_rows import StageRows
from engram.records.stages import record_stage
from engram.records.table import COLUMNS, Rows
from engram.records.views import accuracy_matrix, predict, predict_sets

__all__ = [
    "COLUMNS",
    "KEEP",
    "Items",
    "StageKey",
    "Prediction",
    "Predictions",
    "Problem",
    "Result",
    "Rows",
    "RunKey",
    "RunDirectory",
    "StageRows",
    "accuracy_matrix",
    "combine",
    "document",
    "environment",
    "from_csv",
    "new_part",
    "predict",
    "predict_sets",
    "read",
    "record_stage",
    "reference",
    "run_id",
]
