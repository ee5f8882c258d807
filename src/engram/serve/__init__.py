"""HTTP service of a learner: predict, novelty, learn, metrics, health. Needs the extra ``serve``.

Not here: the learner (engram.deploy), the command that starts the service (engram.cli). Begin with
service.Service, then app (the routes) and request_limits (checks of every request).
"""

from __future__ import annotations
