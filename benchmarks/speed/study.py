"""How long a study will take, and how well that is forecast: a part of it is run.

    python -m benchmarks.speed.study cgl/2 --data DIR --part 24 --device cpu [--out FILE.json]

The forecast of the whole is the one of ``engram reproduce cgl/2 --dry-run``. The part is spread
evenly over the runs of the study, or over those of some cells (``--cells "method=BARE"``). It is
forecast in the same way, then run and recorded as `reproduce` does. Forecasts count every task of
every run; runs in lockstep that begin with the same tasks train those once, and are faster then.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.speed.throughput import facts
from engram.engine.backend import resolve_device
from engram.errors import bad, check_int
from engram.experiments import execute
from engram.experiments.plain_values import format_duration
from engram.reproduce import PaperTable, find_table, plan
from engram.reproduce.cost_estimate import estimate_costs

T = TypeVar("T")


def spread(runs: Sequence[T], count: int) -> list[T]:
    """`count` of the runs at equal distances, all if there are not more."""
    count = min(count, len(runs))
    return [runs[i * len(runs) // count] for i in range(count)]


def measure(
    table: PaperTable | str,
    *,
    part: int,
    data: str | None = None,
    cells: str = "",
    device: str = "auto",
) -> dict[str, Any]:
    """Seconds of the whole study as forecast, of a part as forecast and as measured."""
    check_int("part", part, 1)
    device = resolve_device(device).type
    table = find_table(table) if isinstance(table, str) else table
    study = plan(table, data, device=device)
    among = plan(table, data, cells=cells, measure=False).runs if cells else study.runs
    if not among:
        raise bad("study", "one with runs that can be made here", table.name)
    chosen = spread(among, part)
    forecast = sum(cost.seconds for cost in estimate_costs(chosen, device=device))
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        execute(chosen, out=folder, device=device)
        measured = time.perf_counter() - began
    return {
        "study": table.name, **facts(device),
        "whole": {"runs": len(study.runs), "forecast_s": round(study.seconds, 1)},
        "part": {
            "cells": cells, "runs": len(chosen), "forecast_s": round(forecast, 2),
            "measured_s": round(measured, 2), "ratio": round(measured / forecast, 3),
        },
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", metavar="PAPER/TABLE")
    parser.add_argument("--data", metavar="DIR", help="folder of the data sets")
    parser.add_argument("--part", type=int, default=24, help="how many runs are made")
    parser.add_argument("--cells", default="", metavar="EXPR", help="take the part from these")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--embedded", action="store_true")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="assignments")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    table = find_table(given.name, embedded=given.embedded, assignments=given.assignments)
    found = measure(
        table, data=given.data, part=given.part, cells=given.cells, device=given.device
    )  # fmt: skip
    found |= {"embedded": given.embedded, "set": given.assignments}
    study, part = found["whole"], found["part"]
    print(f"{found['study']} on {found['device']}, {found['threads']} threads")
    print(f"whole: {study['runs']} runs, forecast {format_duration(study['forecast_s'])}")
    print(
        f"part:  {part['runs']} runs, forecast {format_duration(part['forecast_s'])}, "
        f"measured {format_duration(part['measured_s'])}, ratio {part['ratio']:.2f}"
    )
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
