"""What the long table keeps of a finished stage, of one run or of all that trained together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from engram.engine.run import Stage
from engram.recipes.plan import Plan
from engram.records import Items, Rows, record_stage, round_scores
from engram.records.company import Block, add_stage, kind
from engram.records.judging import decide, figure_of, task_figure
from engram.records.views import HEADS
from engram.streams.repeats import repeated_test_rows

Done = tuple[Plan, Stage, Items]


def group_rows(done: Sequence[Done]) -> list[Rows]:
    """The rows of each run; runs of one form are counted together."""
    alike: dict[Any, list[int]] = {}
    for place, one in enumerate(done):
        alike.setdefault(_form(*one), []).append(place)
    found: dict[int, Rows] = {}
    for form, places in alike.items():
        chosen = [done[place] for place in places]
        together = None if form is None or len(chosen) == 1 else _together(chosen)
        if together is None:
            together = [run_rows(*one) for one in chosen]
        found |= dict(zip(places, together, strict=True))
    return [found[place] for place in range(len(done))]


def _form(plan: Plan, stage: Stage, items: Items) -> Any:
    """What runs must share to be counted together; None for runs that are counted alone."""
    outcome, learner = stage.outcome, stage.learner
    if learner.diverged >= 0 or outcome.curve or (items_kind := kind(items)) is None:
        return None
    losses = tuple((step, *terms) for step, terms in outcome.losses)
    twice = repeated_test_rows(plan.run.stream) > 0
    return stage.stage, plan.average, items_kind, len(learner.exemplars) > 0, losses, twice


def _together(done: Sequence[Done]) -> list[Rows] | None:
    plans, stages, items = zip(*done, strict=True)
    stage, outcome = stages[0].stage, stages[0].outcome
    block = Block(len(done))
    scores = [one.outcome.scores for one in stages]
    if not add_stage(block, scores, items, stage=stage, average=plans[0].average):
        return None
    facts = [_facts(one) for one in stages]
    block.add(list(facts[0]), [list(map(float, one.values())) for one in facts])
    names = [(f"loss/{name}", step) for step, terms in outcome.losses for name in terms]
    if names:
        values = [[v for _, terms in one.outcome.losses for v in terms.values()] for one in stages]
        block.add([name for name, _ in names], values, step=[step for _, step in names])
    classes = np.stack([one.classes for one in items])
    if len(stages[0].learner.exemplars):
        block.add("memory_count", _memory(stages, items[0].width), cls=classes)
    if stage == 0:
        for head, chance in _chance(items).items():
            block.add("chance", chance, task=np.arange(items[0].tasks), head=head)
        twice = [repeated_test_rows(plan.run.stream) for plan in plans]
        if any(twice):
            block.add(["repeated_samples"], [[float(count)] for count in twice])
    rows = block.rows(
        recipe=[plan.recipe for plan in plans], label=[plan.label for plan in plans],
        seed=[plan.run.seed for plan in plans], order=[plan.order for plan in plans], stage=stage,
    )  # fmt: skip
    return rows.parts(len(block))


def _memory(stages: Sequence[Stage], width: int) -> np.ndarray:
    """[R, C] kept items per output column."""
    columns = [one.learner.exemplars.columns for one in stages]
    run = np.repeat(np.arange(len(stages)), [len(one) for one in columns])
    column = torch.cat(columns).numpy()
    place = (run * width + column)[column >= 0]
    return np.bincount(place, minlength=len(stages) * width).reshape(len(stages), width)


def _facts(stage: Stage) -> dict[str, float]:
    learner, outcome = stage.learner, stage.outcome
    size = learner.nbytes()
    facts = {
        "seconds": outcome.seconds,
        "steps": outcome.steps,
        "parameters": learner.vector.numel(),
        "state_bytes": size["state"],
        "network_bytes": size["networks"],
        "buffer_bytes": size["buffers"],
        "optimizer_bytes": size["optimizer"],
        "memory_items": len(learner.exemplars),
        "memory_bytes": size["exemplars"],
    }
    if learner.reads == "past":  # all of it must be at hand, as if it were kept
        facts["past_items"] = sum(len(task.train) for task in learner.stream.tasks[: stage.stage])
        facts["past_bytes"] = facts["past_items"] * learner.stream.data.sample_bytes
    return facts


def _chance(items: Sequence[Items]) -> Mapping[str, np.ndarray]:
    """[R, T] what guessing gives by head: one over the number of competing classes."""
    opening = np.stack([one.opening for one in items])  # [R, C]
    opened = [(opening <= k).sum(1) for k in range(items[0].tasks)]
    visible = np.stack([one.visible for one in items])  # [R, T, C]
    return {"single": 1 / np.stack(opened, axis=1), "multi": 1 / visible.sum(2)}


def run_rows(plan: Plan, stage: Stage, items: Items) -> Rows:
    """The rows of one run."""
    rows = Rows(recipe=plan.recipe, label=plan.label, seed=plan.run.seed, order=plan.order)
    learner, outcome = stage.learner, stage.outcome
    if learner.diverged >= 0:
        rows.add("diverged", 1.0, stage=stage.stage)
    else:
        record_stage(rows, outcome.scores, items, stage=stage.stage, average=plan.average)
    for step, scores in outcome.curve:
        _add_curve(rows, scores, items, stage.stage, step, plan.average)
    numbers = [(name, float(value), -1) for name, value in _facts(stage).items()]
    numbers += [
        (f"loss/{name}", value, step)
        for step, terms in outcome.losses
        for name, value in terms.items()
    ]
    names, values, steps = zip(*numbers, strict=True)
    rows.add_array(list(names), np.array(values), stage=stage.stage, step=np.array(steps))
    if len(learner.exemplars):
        counts = learner.exemplars.counts(items.width).numpy()
        rows.add_array("memory_count", counts, stage=stage.stage, cls=items.classes)
    if stage.stage == 0:
        # nobody knows what guessing sets would give
        for head, chance in _chance([items]).items() if not items.multilabel else ():
            rows.add_array("chance", chance[0], stage=0, task=np.arange(items.tasks), head=head)
        if twice := repeated_test_rows(plan.run.stream):
            rows.add("repeated_samples", float(twice), stage=0)
    return rows


def _add_curve(
    rows: Rows, scores: np.ndarray, items: Items, stage: int, step: int, average: str
) -> None:
    for head in HEADS:
        said = decide(round_scores(scores), items, stage=stage, head=head)
        value = task_figure(said, items, stage=stage, figure=figure_of(items), average=average)
        task = np.arange(len(value))
        rows.add_array(figure_of(items), value, stage=stage, step=step, task=task, head=head)
