"""Standard probes, which measure every run: accuracy, chance, cost, curves, divergence, losses,
memory, repeated samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from engram.learner.learner import RunLearner, count_closed
from engram.probes.probe import Probe
from engram.probes.stage_view import StageView
from engram.records.long_table import Rows
from engram.records.prediction_scoring import decide_predictions, figure_of, task_figure
from engram.records.scored_items import EvaluationItems
from engram.records.stage_rows import add_stage
from engram.streams.stream_warnings import count_repeated_test_rows


@dataclass(frozen=True)
class Accuracy(Probe):
    """Record accuracy by task and class, and the share of predictions by class, in both heads."""

    average: str = "micro"

    def after_stage(self, view: StageView) -> Rows:
        rows = view.rows()
        if not view.members[0].diverged:
            scores = [one.scores for one in view.members]
            whole = [EvaluationItems.of_stream(one) for one in view.streams]
            add_stage(rows, scores, view.items, stage=view.stage, average=self.average, whole=whole)
        return rows


@dataclass(frozen=True)
class Chance(Probe):
    """Record the accuracy of guessing once, by task and head view.

    It is one over the number of competing classes; for label sets there is none.
    """

    def after_stage(self, view: StageView) -> Rows:
        rows, items = view.rows(), view.items
        if view.stage > 0 or items[0].multilabel:
            return rows
        tasks = np.arange(items[0].tasks)
        opening = np.stack([one.opening for one in items])  # [R, C]
        opened = np.stack([(opening <= k).sum(1) for k in tasks], axis=1)
        visible = np.stack([one.visible for one in items])  # [R, T, C]
        competing = {"single": opened, "multi": visible.sum(2)}
        for head in items[0].heads:
            rows.add("chance", 1 / competing[head], task=tasks, head=head)
        return rows


@dataclass(frozen=True)
class Cost(Probe):
    """Record seconds, steps and parameters, and the bytes and items kept."""

    def after_stage(self, view: StageView) -> Rows:
        rows = view.rows()
        values = [list(map(float, facts.values())) for facts in view.facts]
        rows.add(list(view.facts[0]), values)
        return rows


def run_facts(learner: RunLearner, *, seconds: float, steps: int) -> Mapping[str, float]:
    """Return the time, steps and memory of a run after a stage, by the names of the metrics."""
    size = learner.nbytes()
    facts: dict[str, float] = {
        "seconds": seconds,
        "steps": steps,
        "parameters": learner.vector.numel() - count_closed(learner),
        "state_bytes": size["state"],
        "network_bytes": size["networks"],
        "buffer_bytes": size["buffers"],
        "optimizer_bytes": size["optimizer"],
        "memory_items": len(learner.exemplars),
        "memory_bytes": size["exemplars"],
    }
    # parts of the memory other than samples
    if any(settings.counts for settings in learner.networks.settings.values()):
        facts["generator_bytes"] = learner.generator_bytes()
    if "latent" in learner.values:
        facts["latent_bytes"] = learner.latent_bytes()
    if learner.reads == "past":  # all of it must be available, so it counts as kept
        facts["past_items"] = sum(len(task.train) for task in learner.stream.tasks[: learner.stage])
        facts["past_bytes"] = facts["past_items"] * learner.stream.data.sample_bytes
    return facts


@dataclass(frozen=True)
class Curve(Probe):
    """Record the accuracy of each task at every evaluated step (see ``evaluate_every``)."""

    average: str = "micro"

    def after_stage(self, view: StageView) -> Rows:
        rows, first = view.rows(), view.items[0]
        task = np.arange(first.scored_tasks(view.stage))
        for number, (step, _) in enumerate(view.members[0].curve):
            for head in first.heads:
                values = [self._value(view, r, number, head) for r in range(len(view))]
                scored = np.stack(values)[:, task]
                rows.add(figure_of(first), scored, step=step, task=task, head=head)
        return rows

    def _value(self, view: StageView, run: int, number: int, head: str) -> np.ndarray:
        one = view.members[run]
        scores = one.curve[number][1]
        # before an interruption another version may have scored the tasks to come, too
        thin = one.items.thin(one.curve_rows)
        items = thin.first(min(len(scores), len(thin)))
        predicted = decide_predictions(scores[: len(items)], items, stage=view.stage, head=head)
        return task_figure(
            predicted, items, stage=view.stage, figure=figure_of(items), average=self.average
        )


@dataclass(frozen=True)
class Divergence(Probe):
    """Record ``diverged`` for runs whose loss stopped being finite, in that stage."""

    def after_stage(self, view: StageView) -> Rows:
        rows = view.rows()
        if view.members[0].diverged:
            rows.add("diverged", np.ones(len(view)))
        return rows


@dataclass(frozen=True)
class Losses(Probe):
    """Record the terms of the loss at the logged steps."""

    def after_stage(self, view: StageView) -> Rows:
        rows = view.rows()
        terms = [(f"loss/{name}", step) for step, of in view.members[0].losses for name in of]
        if terms:
            values = [[v for _, of in one.losses for v in of.values()] for one in view.members]
            names, steps = zip(*terms, strict=True)
            rows.add(names, values, step=steps)
        return rows


@dataclass(frozen=True)
class MemoryCount(Probe):
    """Record the number of exemplars by class."""

    needs: ClassVar[tuple[str, ...]] = ("networks",)

    def after_stage(self, view: StageView) -> Rows:
        rows, width = view.rows(), view.items[0].width
        columns = [one.exemplars.columns for one in view.learners]
        if len(columns[0]):
            run = np.repeat(np.arange(len(view)), [len(one) for one in columns])
            column = torch.cat(columns).numpy()
            place = (run * width + column)[column >= 0]
            counts = np.bincount(place, minlength=len(view) * width).reshape(len(view), width)
            rows.add("memory_count", counts, cls=np.stack([one.classes for one in view.items]))
        return rows


@dataclass(frozen=True)
class RepeatedSamples(Probe):
    """Record once how many test rows are also training rows, if there are any."""

    def after_stage(self, view: StageView) -> Rows:
        rows = view.rows()
        if view.stage == 0 and count_repeated_test_rows(view.streams[0]):
            rows.add("repeated_samples", [float(count_repeated_test_rows(s)) for s in view.streams])
        return rows
