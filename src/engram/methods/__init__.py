"""Methods: one file each, written for one learner, mapped over many by the engine."""

from __future__ import annotations

from engram.methods.base import Method, Replay
from engram.methods.finetune import Finetune

__all__ = ["Finetune"]

_ = Method, Replay
