"""The learner: all that one run knows, as a tree of tensors, and the networks bound to it."""

from engram.learner.batch import Batch
from engram.learner.learner import Learner
from engram.learner.net import Net

__all__ = ["Batch", "Learner", "Net"]
