"""HTTP service of learners: predict, novelty, learn, metrics, health. Needs the extra ``serve``,
except for client.Client.

Not here: the learner (engram.deploy), the command that starts the service (engram.cli). Begin with
service.Service and served_model.ServedModel, then app (the routes) and request_limits (what every
request meets).
"""

from __future__ import annotations
