"""From recorded results to diagnoses, tables, figures and one self-contained page.

Metrics are computed in `metrics`, results are read in `records`; figures of papers are in
`reproduce.papers`. Begin with `report_inputs` (what a report is made of), then `report_data`,
`sections` and `page`; `diagnostics` stands alone.
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

# Training asks for a diagnosis only: what draws (plotly) and fills templates (jinja2) is loaded
# when a page or a picture is made.
_HOME = {"build": "page", "write_images": "static_images", "write_tables": "report_tables"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'engram.report' has no attribute {name!r}")
    value = getattr(import_module(f"engram.report.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
