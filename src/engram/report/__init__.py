"""From recorded results to tables, figures and one self-contained page."""

from __future__ import annotations

from engram.report.doctor import Finding, diagnose
from engram.report.export import write_tables
from engram.report.images import write_images
from engram.report.inputs import ReportInput, from_directories, from_result
from engram.report.page import build

__all__ = [
    "Finding",
    "ReportInput",
    "build",
    "diagnose",
    "from_directories",
    "from_result",
    "write_images",
    "write_tables",
]
