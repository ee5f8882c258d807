"""A trained model in hand: predict, learn further tasks, measure novelty, save, export.

Training runs through `engine`; HTTP is in `serve`. Begin with `deployed_learner` (`Learner`), then
`new_task` and `snapshot`.
"""

from __future__ import annotations

from engram.deploy.deployed_learner import Learner

__all__ = ["Learner"]
