"""A trained model in hand: predict, go on learning, save, export."""

from __future__ import annotations

from engram.deploy.deployed_learner import Learner

__all__ = ["Learner"]
