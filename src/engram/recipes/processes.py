"""Recipes spread over processes that write into one run directory."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engram.errors import EngramError, bad, in_own_code
from engram.recipes.execute import execute
from engram.recipes.plan import plans_of
from engram.recipes.recipe import Recipe
from engram.records import Result, RunDirectory


def spread(
    recipes: Sequence[Recipe],
    *,
    out: str | Path | None,
    device: str,
    data: str | None,
    workers: int,
    again: bool = False,
) -> Result:
    """Run every recipe in one of `workers` processes (0: one per core) and read the directory."""
    if out is None:
        raise bad("out", "a run directory, because processes meet there", out)
    if again:  # once, before the processes start
        RunDirectory(out).supersede(plan.key for plan in plans_of(recipes, data))
    count = min(workers or os.cpu_count() or 1, len(recipes))
    context = multiprocessing.get_context("spawn")
    jobs = [(recipe.plain(), str(out), device, data, count) for recipe in recipes]
    with context.Pool(count) as pool:
        failures = [message for message in pool.imap_unordered(_one, jobs) if message]
    if failures:
        raise EngramError("; ".join(failures))
    return execute(plans_of(recipes, data), out=out, device=device)


def _one(job: tuple[dict[str, Any], str, str, str | None, int]) -> str:
    """Run one recipe in a worker; returns what went wrong, in words."""
    import torch

    content, out, device, data, count = job
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // count))
    try:
        execute(plans_of([Recipe.of(content)], data), out=out, device=device)
    except Exception as error:
        words = in_own_code(error) or f"{type(error).__name__}: {error}"
        return f"{content['label']}: {words}"
    return ""
