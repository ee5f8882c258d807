"""What planning a thousand recipes costs, against training them.

    python -m benchmarks.sweeps.planner [--recipes 1000] [--trained 20] [--out FILE.json]

Planned are grids over methods, learning rates and models: recipes read and checked, identities and
plans, a look at what is finished, groups by shape, their order by cost. Some of the recipes, spread
evenly, are trained one by one; their mean is what each costs. Also: how long the same call takes
when all are finished (nothing is trained twice).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import engram
from engram.experiments import Plan, Recipe
from engram.experiments.changed_recipes import merge_equal_plans
from engram.experiments.plan import make_plans_by_recipe
from engram.experiments.pools.planner import divide_groups, group_plans
from engram.experiments.recorder import Recorder
from engram.records import Rows, RunDirectory

METHODS = ("ER", "EWC", "SI", "LwF", "Finetune", "DERpp", "AGEM", "RWalk")


def contents(count: int) -> list[dict[str, Any]]:
    """Recipes of small data, which train in seconds: the least favourable case."""
    base = {"stream": {"data": "digits"}, "seeds": 1}
    return [
        base | {
            "method": METHODS[i % len(METHODS)], "label": f"{METHODS[i % len(METHODS)]} {i}",
            "training": {"epochs": 5, "lr": 1e-4 * (1 + i // len(METHODS))},
        }
        for i in range(count)
    ]  # fmt: skip


def timed(spent: dict[str, float], name: str, act: Callable[[], Any]) -> Any:
    began = time.process_time()
    found = act()
    spent[name] = time.process_time() - began
    return found


def plan(recipes: Sequence[dict[str, Any]], out: Path) -> tuple[dict[str, float], list[Plan]]:
    """Processor seconds of every part of planning, and the plans."""
    spent: dict[str, float] = {}
    built = timed(spent, "recipes", lambda: [Recipe.of(one) for one in recipes])
    by_recipe = timed(spent, "plans", lambda: make_plans_by_recipe(built))
    plans = [one for some in by_recipe for one in some]
    recorder = timed(
        spent, "finished", lambda: Recorder(merge_equal_plans(plans), out, device="cpu")
    )
    groups = timed(spent, "groups", lambda: group_plans(recorder.open))
    timed(spent, "order", lambda: divide_groups(groups, workers=2))
    timed(spent, "written", recorder.prepare)
    return spent, plans


def finish(plans: Sequence[Plan], out: Path) -> None:
    """Let all plans be finished: the rows of a last stage are all that is looked at."""
    folder = RunDirectory(out)
    rows = Rows()
    for one in plans:
        rows.bind(recipe=one.recipe, label=one.label, seed=one.run.seed, order=one.order)
        for stage in range(len(one.run.stream)):
            rows.add("accuracy", 0.5, stage=stage, task=0, head="single")
    folder.append(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", type=int, default=1000)
    parser.add_argument("--trained", type=int, default=20)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    recipes = contents(given.recipes)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = recipes[:: max(1, len(recipes) // given.trained)][: given.trained]
        began = time.perf_counter()
        engram.sweep(chosen, pool="serial", out=folder / "trained", device="cpu")
        each = (time.perf_counter() - began) / len(chosen)
        spent, plans = plan(recipes, folder / "planned")
        finish(plans, folder / "planned")
        began = time.perf_counter()
        engram.sweep(recipes, pool="serial", out=folder / "planned", device="cpu")
        again = time.perf_counter() - began
    planning = sum(spent.values()) - spent["written"]
    facts = {
        "recipes": len(recipes), "trained": len(chosen), "seconds_each": round(each, 3),
        "seconds": {name: round(value, 3) for name, value in spent.items()},
        "planning": round(planning, 3),
        "overhead": round(planning / (each * len(recipes)), 5),
        "overhead_with_files": round(sum(spent.values()) / (each * len(recipes)), 5),
        "nothing_left_to_do": round(again, 3), "torch": torch.__version__,
        "machine": platform.machine(), "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    print(json.dumps(facts, indent=1))
    if given.out:
        given.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
