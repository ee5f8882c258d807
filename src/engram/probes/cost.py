"""What a stage cost: time, steps, and all that must be held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engram.learner.learner import Learner
from engram.probes.base import Probe
from engram.probes.view import StageView
from engram.records.stage_rows import StageRows


@dataclass(frozen=True)
class Cost(Probe):
    """Seconds, steps and parameters, and the bytes and items kept."""

    def after_stage(self, view: StageView) -> StageRows:
        rows = view.rows()
        values = [list(map(float, facts.values())) for facts in view.facts]
        rows.add(list(view.facts[0]), values)
        return rows


def facts_of(learner: Learner, *, seconds: float, steps: int) -> Mapping[str, float]:
    """What a run holds after a stage, by the names of the metrics."""
    size = learner.nbytes()
    facts: dict[str, float] = {
        "seconds": seconds,
        "steps": steps,
        "parameters": learner.vector.numel(),
        "state_bytes": size["state"],
        "network_bytes": size["networks"],
        "buffer_bytes": size["buffers"],
        "optimizer_bytes": size["optimizer"],
        "memory_items": len(learner.exemplars),
        "memory_bytes": size["exemplars"],
    }
    # parts of the memory that are no samples
    if any(settings.counts for settings in learner.networks.settings.values()):
        facts["generator_bytes"] = learner.generator_bytes()
    if "latent" in learner.values:
        facts["latent_bytes"] = learner.latent_bytes()
    if learner.reads == "past":  # all of it must be at hand, as if it were kept
        facts["past_items"] = sum(len(task.train) for task in learner.stream.tasks[: learner.stage])
        facts["past_bytes"] = facts["past_items"] * learner.stream.data.sample_bytes
    return facts
