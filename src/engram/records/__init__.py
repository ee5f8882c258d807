"""Records of runs: run directories, the long table, stored predictions and `Result`, which
reads them; numbers printed in papers.

Not here: formulas (engram.metrics), reports (engram.report), deciding what is recorded and when
(engram.experiments). Begin with result.Result and reading.read; run_directory.RunDirectory writes
what they read, and long_table defines the columns.
"""

from __future__ import annotations

from engram.records.head_views import accuracy_matrix, predict, predict_sets
from engram.records.imported_logs import import_log
from engram.records.long_table import COLUMNS, Rows
from engram.records.predictions import KEEP, Prediction, Predictions, StageKey
from engram.records.printed_tables import document, reference
from engram.records.reading import combine, from_csv, read
from engram.records.result import Result
from engram.records.run_arrays import RunKey
from engram.records.run_directory import RunDirectory, new_part, run_id
from engram.records.run_environment import environment
from engram.records.scored_items import EvaluationItems
from engram.records.stage_rows import record_stage
from engram.records.table_parts import Problem

__all__ = [
    "COLUMNS",
    "KEEP",
    "EvaluationItems",
    "StageKey",
    "Prediction",
    "Predictions",
    "Problem",
    "Result",
    "Rows",
    "RunKey",
    "RunDirectory",
    "accuracy_matrix",
    "combine",
    "document",
    "environment",
    "from_csv",
    "import_log",
    "new_part",
    "predict",
    "predict_sets",
    "read",
    "record_stage",
    "reference",
    "run_id",
]
