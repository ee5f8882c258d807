"""The state of one run: parameters as one vector, networks, memory, and guarded access to data.

Nothing here knows about epochs or optimisers: the training loop is in `engram.engine`. Begin with
`learner.RunLearner`, then `batch` and `networks` (the arguments of a loss); methods see a run
through `learner_proxy`.
"""

from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net

__all__ = ["Batch", "RunLearner", "Net"]
