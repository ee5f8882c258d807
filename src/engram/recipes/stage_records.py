"""What is recorded of finished stages besides their rows, and records without a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from engram.engine.checkpoints.portable import portable
from engram.engine.engine import FinishedStage
from engram.learner.learner import Learner
from engram.learner.tree import nbytes
from engram.recipes.checkpoints import ends, with_models
from engram.recipes.model_file import KeptModel, about
from engram.recipes.plan import Plan
from engram.recipes.rows import Done
from engram.records import Items, Prediction, Result, Rows, environment
from engram.records.arrange import RunKey
from engram.records.arrays import Arrays, StoredArrays
from engram.records.models import Kept

MODEL_BYTES = 512 << 20  # of models in memory, after which no further one is kept


def predictions_of(done: Sequence[Done]) -> list[Prediction]:
    """What finished stages keep of their scores."""
    return [found for one in done if (found := _prediction(*one)) is not None]


def _prediction(plan: Plan, stage: FinishedStage, items: Items) -> Prediction | None:
    if stage.learner.diverged >= 0 or plan.keep == "counts":
        return None
    return Prediction.of(
        stage.outcome.scores, items, recipe=plan.recipe, seed=plan.run.seed, order=plan.order,
        stage=stage.stage, keep=plan.keep, **_network(stage.learner, plan.keep),
    )  # fmt: skip


def _network(learner: Learner, keep: str) -> dict[str, Any]:
    """What is kept of a network besides its scores: all that probes named later may need."""
    if keep != "parameters":
        return {}
    exemplars = torch.stack(learner.exemplars[:4])
    return {"parameters": learner.vector, "buffers": learner.buffers, "exemplars": exemplars}


def probed(done: Sequence[Done]) -> list[dict[str, Any]]:
    """Which probes have measured which stages."""
    return [
        {
            "recipe": plan.recipe, "seed": plan.run.seed, "order": plan.order,
            "stage": stage.stage, "probes": list(plan.probes),
        }
        for plan, stage, _ in done if plan.probes
    ]  # fmt: skip


def ledgers_of(done: Sequence[Done]) -> list[dict[str, Any]]:
    """What runs that are through have read."""
    return [
        {
            "recipe": plan.recipe, "label": plan.label, "seed": plan.run.seed, "order": plan.order,
            "reads": plan.run.method.reads, "stages": stage.learner.ledger.to_dict(),
        }
        for plan, stage, _ in done if ends(plan, stage)
    ]  # fmt: skip


class MemoryRecords:
    """The records of runs that have no directory."""

    def __init__(self) -> None:
        self._rows: list[Rows] = []
        self._predictions: list[Prediction] = []
        self._arrays: list[StoredArrays] = []
        self._ledgers: list[dict[str, Any]] = []
        self._models: dict[RunKey, Kept] = {}
        self._model_bytes = 0

    def append(
        self, done: Sequence[Done], rows: Sequence[Rows], arrays: Sequence[StoredArrays]
    ) -> None:
        """Finished stages, their rows, and what probes stored of them."""
        self._rows += rows
        self._predictions += predictions_of(done)
        self._arrays += arrays
        self._ledgers += ledgers_of(done)
        self._keep_models(done)

    def _keep_models(self, done: Sequence[Done]) -> None:
        """Models, as long as they are not too much for the memory."""
        for plan, stage in with_models(done):
            if self._model_bytes < MODEL_BYTES:
                run, key = plan.run, RunKey(*plan.key)
                found = portable(stage.learner, run)
                self._model_bytes += nbytes(found.tensors)
                made = about(run, plan.probes.values())
                self._models[key] = KeptModel(found=found, run=run, made=made)

    def result(
        self, plans: Sequence[Plan], items: Mapping[tuple[str, str], Items], device: torch.device
    ) -> Result:
        """All of it."""
        return Result(
            Rows.joined(self._rows).frame(),
            recipes={plan.recipe: dict(plan.content) for plan in plans},
            predictions=self._predictions,
            arrays=Arrays(memory=self._arrays),
            items=items,
            ledger=self._ledgers,
            environment=[environment(device)],
            models=self._models.get,
        )
