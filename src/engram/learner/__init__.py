"""One run: its parameters as one vector, its networks, its memory, and its honest access to
data.

The training loop is in `engine`; here is nothing that knows of epochs or optimisers. Begin with
`learner` (`RunLearner`), then `batch` and `networks` (what a loss gets); `learner_proxy` is what
methods see of it.
"""

from engram.learner.batch import Batch
from engram.learner.learner import RunLearner
from engram.learner.networks import Net

__all__ = ["Batch", "RunLearner", "Net"]
