"""Reports: diagnoses, tables, figures and one self-contained page from recorded results.

Not here: metrics (engram.metrics), reading results (engram.records), figures of papers
(engram.reproduce.papers). Begin with report_inputs (what a report is made of), then report_data
(its aggregates), sections and page; diagnostics can be used alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from engram.report.diagnostics import Finding, diagnose
from engram.report.report_inputs import ReportInput, from_directories, from_result

if TYPE_CHECKING:
    from engram.report.page import build
    from engram.report.report_tables import write_tables
    from engram.report.static_images import write_images

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

# Imported on first use, since plotly and jinja2 are needed for pages and figures only.
_HOME = {"build": "page", "write_images": "static_images", "write_tables": "report_tables"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'engram.report' has no attribute {name!r}")
    value = getattr(import_module(f"engram.report.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
