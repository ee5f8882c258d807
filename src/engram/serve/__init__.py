"""A learner behind HTTP: predict, novelty, learn, metrics, health. Needs the extra ``serve``.

What a learner can do is in `deploy`; the command that starts the service is in `cli`. Begin with
`service` (what is served), then `app` (the routes) and `request_limits` (the gate before them).
"""

from __future__ import annotations
