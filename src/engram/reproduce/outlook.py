"""What a plan promises: every cell with its printed number, and whether it can be made here."""

from __future__ import annotations

from collections.abc import Sequence

from engram.reproduce.output import printed
from engram.reproduce.planning import ReproductionPlan
from engram.reproduce.table import stand_in
from engram.reproduce.verdict import known_reasons

COLUMNS = ("cell", "stage", "metric", "paper", "can be made", "reason")


def outlook(planned: ReproductionPlan) -> list[dict[str, str]]:
    """One row per cell; the reason is why it cannot be made, or why our number may be another one.

    Examples
    --------
    >>> from engram.reproduce import find_table, plan
    >>> rows = outlook(plan(find_table("rwalk/2"), cells="method=GEM", measure=False))
    >>> rows[0]["paper"], rows[0]["can be made"], rows[0]["reason"]
    ('65.4', 'no', 'quoted by the paper from the authors of GEM')
    """
    return [
        {
            "cell": cell.name_on(stand_in(entry)), "stage": cell["stage"],
            "metric": cell["metric"], "paper": printed(cell),
            "can be made": "no" if entry.missing else "yes",
            "reason": entry.missing or "; ".join(known_reasons(cell, entry)),
        }
        for cell, entry in zip(planned.cells, planned.entries, strict=True)
    ]  # fmt: skip


def columns(rows: Sequence[dict[str, str]]) -> tuple[str, ...]:
    """The stage is among them where cells differ in nothing else."""
    alike = len({(row["cell"], row["metric"]) for row in rows}) < len(rows)
    return tuple(name for name in COLUMNS if name != "stage" or alike)
