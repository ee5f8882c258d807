"""Use of trained models: predict, learn further tasks, measure novelty, save, export.

Not here: training itself (engram.engine), HTTP (engram.serve). Begin with
deployed_learner.Learner, then new_task (what it learns) and snapshot (how it predicts).
"""

from __future__ import annotations

from engram.deploy.deployed_learner import Learner

__all__ = ["Learner"]
