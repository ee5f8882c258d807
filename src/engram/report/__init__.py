"""From recorded results to tables, figures and one self-contained page."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from engram.report.diagnostics import Finding, diagnose
from engram.report.inputs import ReportInput, from_directories, from_result

if TYPE_CHECKING:
    from engram.report.all_tables import write_tables
    from engram.report.page import build
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
_HOME = {"build": "page", "write_images": "images", "write_tables": "export"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'engram.report' has no attribute {name!r}")
    value = getattr(import_module(f"engram.report.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
