"""Use of trained models: predict, learn further tasks, measure novelty, save, export.

Not here: training itself (engram.engine), HTTP (engram.serve). Begin with
deployed_learner.Learner, then new_task (what it learns) and snapshot (how it predicts);
model_store keeps versions of a learner, monitor tells how a served one does.
"""

from __future__ import annotations

from engram.deploy.deployed_learner import Learner
from engram.deploy.gate import Gate
from engram.deploy.model_store import ModelStore, Version
from engram.deploy.monitor import Monitor

__all__ = ["Gate", "Learner", "ModelStore", "Monitor", "Version"]
