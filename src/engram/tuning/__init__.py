"""Search for hyper-parameters on validation rows of the first tasks."""

from engram.tuning.found import Search
from engram.tuning.ranges import Range
from engram.tuning.search import search
from engram.tuning.trials import Trial

__all__ = ["Range", "Search", "Trial", "search"]
