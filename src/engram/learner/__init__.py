"""The learner: all that one run knows, as a tree of tensors, and the networks bound to it."""

from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net

__all__ = ["Batch", "RunLearner", "Net"]
