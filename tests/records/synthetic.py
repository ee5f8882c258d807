"""Made-up runs with scores, for tests of records."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engram.records import EvaluationItems, Prediction, Rows, RunDirectory, record_stage

RECIPES = {
    "aaaaaaaaaaaa": {"method": {"name": "ER"}, "stream": {"head": "single"}},
    "bbbbbbbbbbbb": {"method": {"name": "EWC", "strength": 5.0}, "stream": {"head": "multi"}},
}
LABELS = {"aaaaaaaaaaaa": "ER", "bbbbbbbbbbbb": "EWC strength=5"}


def make_items(
    tasks: int = 3, per_class: int = 7, width: int = 2, seed: int = 0
) -> EvaluationItems:
    """`tasks` tasks of `width` classes with class ids in a shuffled order and unequal sizes."""
    rng = np.random.default_rng(seed)
    columns = tasks * width
    counts = per_class + np.arange(columns)
    targets = np.repeat(np.arange(columns), counts)
    return EvaluationItems(
        rows=rng.permutation(1000)[: len(targets)],
        task=targets // width,
        targets=targets,
        opening=np.arange(columns) // width,
        visible=np.arange(columns) // width == np.arange(tasks)[:, None],
        classes=rng.permutation(columns),
        names=tuple(f"class {c}" for c in range(columns)),
    )


def make_scores(items: EvaluationItems, seed: int) -> np.ndarray:
    """[n, C] noise with a lift of the true column; every other row differs by less than float16."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(len(items), items.width)) * 200
    scores[np.arange(len(items)), items.targets[:, 0]] += 150
    scores[::2] = 1000 + scores[::2] * 1e-4  # float16 steps by 0.5 here, so these rows are ties
    return scores


def fill(
    path: Path, *, keep: str = "scores", seeds: int = 2, stages: int | None = None
) -> RunDirectory:
    """A run directory with two methods, `seeds` seeds and one part per run and stage."""
    folder = RunDirectory(path)
    items = make_items()
    for number, (recipe, content) in enumerate(RECIPES.items()):
        folder.write_recipe(recipe, content)
        folder.write_items(recipe, "", items)
        for seed in range(seeds):
            for stage in range(items.tasks if stages is None else stages):
                scores = make_scores(items, 100 * number + 10 * seed + stage)
                run = {"recipe": recipe, "seed": seed}
                rows = Rows(label=LABELS[recipe], **run)
                record_stage(rows, scores, items, stage=stage)
                rows.add("seconds", 2.0, stage=stage)
                rows.add("steps", 10, stage=stage)
                rows.add("memory_items", 5 * (stage + 1), stage=stage)
                rows.add_array("loss/total", [1.0, 0.5], stage=stage, step=[4, 9])
                kept = Prediction.from_scores(
                    scores, items, stage=stage, keep=keep, parameters=np.arange(4.0), **run
                )
                folder.append(rows, predictions=[kept], ledger={"stage": stage})
    return folder
